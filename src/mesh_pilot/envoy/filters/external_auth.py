"""The Gateway API's filter ``ExternalAuth``: a server is asked whether the requests of a rule may pass.

A router has an ``ext_authz`` filter for each server that its route tables ask, and for each way of asking it. The
filters are off, but for the routes that name them. They come behind those of policies, so that no server is asked about
what a policy refuses, and behind CORS, because browsers send preflights without credentials.

A server that does not answer in time, or cannot be asked, lets nothing pass. Rules: the Gateway API's HTTPRoute;
Envoy's external authorization filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from envoy.config.core.v3 import config_source_pb2, grpc_service_pb2, http_uri_pb2
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from envoy.type.matcher.v3 import string_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, duration, encode, exact, regex
from mesh_pilot.envoy.filters.ext_authz import EXT_AUTHZ
from mesh_pilot.envoy.filters.rbac.matchers import quoted
from mesh_pilot.mesh.names.resources import BLACK_HOLE
from mesh_pilot.mesh.policies.telemetry import provider_cluster
from mesh_pilot.mesh.virtual_hosts.authorizers import Authorizer, authorizers_of
from mesh_pilot.world.view import View

TIMEOUT = timedelta(seconds=10)
"""The longest that an answer may take; the Gateway API has no field for it."""

UNANSWERED = 503
"""The status of a request about which no answer was had."""

_OF_THE_ANSWER = (
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-envoy-upstream-service-time",
)
"""Headers that are about the server's answer itself, its body or its connection: requests have their own."""


def external_auth_filters(view: View, namespace: str, authorizers: Iterable[Authorizer]) -> Iterator[HttpFilter]:
    """The filters of a router of a namespace, which are off by default."""
    for each in authorizers:
        config = any_of_encoded(ext_authz_pb2.ExtAuthz, _config(view, namespace, each))
        yield HttpFilter(name=_name(each), typed_config=config, disabled=True)


def external_auth_per_route(spec: api.HttpRoute) -> Iterator[tuple[str, any_pb2.Any]]:
    """The settings of a route that turn its filters on, by name."""
    for each in authorizers_of(spec):
        on = ext_authz_pb2.ExtAuthzPerRoute()
        on.check_settings.SetInParent()
        yield _name(each), any_of(on)


def _name(authorizer: Authorizer) -> str:
    return f"{EXT_AUTHZ.name}/{authorizer.name}"


@derived
def _config(view: View, namespace: str, authorizer: Authorizer) -> bytes:
    """The encoded configuration."""
    config = ext_authz_pb2.ExtAuthz(transport_api_version=config_source_pb2.V3)
    config.status_on_error.code = UNANSWERED
    if authorizer.allowed_headers:
        config.allowed_headers.CopyFrom(_names(authorizer.allowed_headers))
    if authorizer.max_body:
        config.with_request_body.max_request_bytes = authorizer.max_body
    reached = provider_cluster(view, namespace, authorizer.host, authorizer.port)
    if authorizer.grpc and reached is not None:
        target = grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=reached[0], authority=authorizer.host)
        config.grpc_service.CopyFrom(grpc_service_pb2.GrpcService(envoy_grpc=target, timeout=duration(TIMEOUT)))
    else:
        # Envoy refuses a filter that names an unknown cluster for gRPC. One without endpoints answers nothing, either.
        cluster = reached[0] if reached is not None else BLACK_HOLE
        service = config.http_service
        uri = f"http://{authorizer.host}"
        service.server_uri.CopyFrom(http_uri_pb2.HttpUri(uri=uri, cluster=cluster, timeout=duration(TIMEOUT)))
        service.path_prefix = authorizer.path_prefix
        allowed = authorizer.allowed_response_headers
        copied = _names(allowed) if allowed else _every_name_but(_OF_THE_ANSWER)
        service.authorization_response.allowed_upstream_headers.CopyFrom(copied)
    return encode(config)


def _names(names: Iterable[str]) -> string_pb2.ListStringMatcher:
    patterns = [exact(name) for name in names]
    for pattern in patterns:
        pattern.ignore_case = True
    return string_pb2.ListStringMatcher(patterns=patterns)


def _every_name_but(names: Iterable[str]) -> string_pb2.ListStringMatcher:
    """The matcher of all headers except these, and except HTTP/2's own (``:status``)."""
    return string_pb2.ListStringMatcher(patterns=[regex(_not_of({*names, ":"}, end=False))])


def _not_of(words: set[str], *, end: bool) -> str:
    """A regular expression for all texts but these, and but those that begin with ``:``, which is one of them; RE2 has
    no negation. ``end``: it may end here."""
    rest: dict[str, set[str]] = {}
    for word in words:
        if word:
            rest.setdefault(word[0], set()).add(word[1:])
    first = "".join(map(quoted, sorted(rest)))
    branches = [f"[^{first}].*" if first else ".+"]
    for letter in sorted(rest.keys() - {":"}):
        branches.append(quoted(letter) + _not_of(rest[letter], end="" not in rest[letter]))
    return f"(?:{'|'.join(branches)})" + ("?" if end else "")
