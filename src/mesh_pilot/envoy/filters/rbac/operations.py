"""Permissions of Envoy's RBAC: conditions on the host, method, path and port of a request, and on its destination."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from envoy.config.rbac.v3.rbac_pb2 import Permission
from envoy.type.matcher.v3 import path_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import regex
from mesh_pilot.envoy.filters.rbac.matchers import header, member, metadata, quoted, subnet, text

FILTER_METADATA_PREFIX = "experimental."
"""Prefix of the keys of ``when`` that read a filter's dynamic metadata: ``experimental.FILTER[KEY]``."""

_PLAIN = "a-zA-Z0-9._~%!$&'()+,;:@="
_TEMPLATES = {"{*}": f"[{_PLAIN}-]+", "{**}": f"[{_PLAIN}/-]*"}
"""Path segments that match any one segment, or any number of them, with their regular expressions.

They match the characters that Envoy's own path templates do, as Istio's. Those are not sent: gRPC has none.
"""


def host(value: str) -> Permission:
    """``operation.hosts``: case-insensitive; includes the port if the request names one."""
    return Permission(header=header(":authority", value, ignore_case=True))


def method(value: str) -> Permission:
    return Permission(header=header(":method", value))


def path(value: str) -> Permission:
    """``operation.paths``: without the query."""
    if "{" in value:
        segments = (_TEMPLATES.get(segment) or quoted(segment) for segment in value.split("/"))
        matcher = regex("/".join(segments))
    else:
        matcher = text(value)
    return Permission(url_path=path_pb2.PathMatcher(path=matcher))


def port(value: str) -> Permission:
    """``operation.ports`` and ``destination.port``: the connection's destination port."""
    return Permission(destination_port=int(value))


def _address(value: str) -> Permission:
    return Permission(destination_ip=subnet(value))


def _server_name(value: str) -> Permission:
    return Permission(requested_server_name=text(value))


def _filter_metadata(name: str, key: str, value: str) -> Permission:
    """Metadata that is this text; for a value in brackets, a list with that member."""
    if value.startswith("[") and value.endswith("]"):
        matcher = member(text(value[1:-1]))
    else:
        matcher = value_pb2.ValueMatcher(string_match=text(value))
    return Permission(metadata=metadata(name, (key,), matcher))


_SERVER_NAME = "connection.sni"

_CONDITIONS: dict[str, Callable[[str], Permission]] = {
    "destination.ip": _address,
    "destination.port": port,
    _SERVER_NAME: _server_name,
}


def of_condition(key: str) -> Callable[[str], Permission] | None:
    """The builder of a permission from a value of a ``when``; None if its key is not about the operation."""
    if key.startswith(FILTER_METADATA_PREFIX):
        name, _, inner = key.removeprefix(FILTER_METADATA_PREFIX).removesuffix("]").partition("[")
        return partial(_filter_metadata, name, inner)
    return _CONDITIONS.get(key)


def is_unsupported_by_grpc(key: str) -> bool:
    """True if proxyless gRPC servers cannot check the key of a ``when``."""
    return key == _SERVER_NAME or key.startswith(FILTER_METADATA_PREFIX)
