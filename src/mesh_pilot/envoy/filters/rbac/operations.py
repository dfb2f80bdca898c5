"""What a caller wants, as Envoy knows it: the host, method, path and port of a request, and where a connection goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from envoy.config.rbac.v3.rbac_pb2 import Permission
from envoy.type.matcher.v3 import path_pb2, value_pb2

from mesh_pilot.envoy.core.protobuf import regex
from mesh_pilot.envoy.filters.rbac.matchers import header, member, metadata, quoted, subnet, text

FILTER_METADATA = "experimental."
"""Begins the keys of ``when`` that read what another filter left: ``experimental.FILTER[KEY]``."""

_TEMPLATES = {"{*}": "[^/]+", "{**}": ".*"}
"""Segments of paths that stand for one segment, or any number, and the expressions for them."""


def host(value: str) -> Permission:
    """``operation.hosts``: case does not matter, a port does."""
    return Permission(header=header(":authority", value, ignore_case=True))


def method(value: str) -> Permission:
    return Permission(header=header(":method", value))


def path(value: str) -> Permission:
    """``operation.paths``, without the query."""
    if "{" in value:
        segments = (_TEMPLATES.get(segment) or quoted(segment) for segment in value.split("/"))
        matcher = regex("/".join(segments))
    else:
        matcher = text(value)
    return Permission(url_path=path_pb2.PathMatcher(path=matcher))


def port(value: str) -> Permission:
    """The port that the connection is for."""
    return Permission(destination_port=int(value))


def _address(value: str) -> Permission:
    return Permission(destination_ip=subnet(value))


def _server_name(value: str) -> Permission:
    return Permission(requested_server_name=text(value))


def _left_by_filter(name: str, key: str, value: str) -> Permission:
    """A text; in brackets, a list that has it."""
    if value.startswith("[") and value.endswith("]"):
        wanted = member(text(value[1:-1]))
    else:
        wanted = value_pb2.ValueMatcher(string_match=text(value))
    return Permission(metadata=metadata(name, (key,), wanted))


_SERVER_NAME = "connection.sni"

_CONDITIONS: dict[str, Callable[[str], Permission]] = {
    "destination.ip": _address,
    "destination.port": port,
    _SERVER_NAME: _server_name,
}


def of_condition(key: str) -> Callable[[str], Permission] | None:
    """What compares the attribute of a ``when`` with a value; None where it is not about the operation."""
    if key.startswith(FILTER_METADATA):
        name, _, inner = key.removeprefix(FILTER_METADATA).removesuffix("]").partition("[")
        return partial(_left_by_filter, name, inner)
    return _CONDITIONS.get(key)


def is_hidden_in_grpc(key: str) -> bool:
    """Whether a gRPC server can't look at the attribute of a ``when``."""
    return key == _SERVER_NAME or key.startswith(FILTER_METADATA)
