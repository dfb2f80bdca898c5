"""Encoded routes: those of a VirtualService for a client, with their matches, and the default route of a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.type.matcher.v3 import metadata_pb2, regex_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import boolean, encode, header_match, header_mismatch, seconds, string_match
from mesh_pilot.envoy.core.templates import Template, template
from mesh_pilot.envoy.filters import per_route_filters
from mesh_pilot.envoy.filters.jwt_authn import token_claim
from mesh_pilot.envoy.filters.stateful_session import STATEFUL_SESSION, session_config
from mesh_pilot.envoy.routes.action import (
    default_retries,
    forward,
    hash_policy,
    redirect,
    redirect_from_port,
    respond,
)
from mesh_pilot.envoy.routes.headers import header_operations
from mesh_pilot.envoy.routes.sessions import policy_session, session_routes
from mesh_pilot.istio.meaning.claims import claim_path
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef
from mesh_pilot.mesh.names.resources import outbound, parse_cluster
from mesh_pilot.mesh.routing.client import RouteClient, applicable_rules, redirect_ports
from mesh_pilot.mesh.virtual_services.chains import rules_at
from mesh_pilot.mesh.virtual_services.rules import ANY_TEXT, ANY_VALUE, HttpRule
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import View

DEFAULT_NAME = "default"
_UNASKED = api.HttpDirectResponse(status=503)
"""The answer for clients that cannot ask an authorizer: nothing may pass unasked."""


class EncodedRoute(NamedTuple):
    data: bytes
    matches_all: bool
    """True if it matches every request, so that routes after it are never used; also of those that go with such a
    route, right before it."""


@derived
def virtual_service_routes(view: View, key: ConfigKey, client: RouteClient, port: int) -> tuple[EncodedRoute, ...]:
    """The routes of a VirtualService for a client that connects to a port, in order."""
    selected = applicable_rules(rules_at(view, key, client.gateway), client, port)
    return tuple(
        encoded for rule, match in selected for encoded in _encoded_routes(view, key, rule, match, client, port)
    )


def service_routes(view: View, host: str, port: int, rule: DestinationRuleRef) -> tuple[EncodedRoute, ...]:
    """The one route to a service without a VirtualService; ``rule`` is its DestinationRule.

    Not derived: most services have no other routes, and to memoise this one would cost more than to make it.
    """
    cluster, operation = outbound(host, port), f"{host}:{port}/*"
    hashed, session = hash_policy(view, rule, port), policy_session(view, rule, port)
    if hashed is None and session is None:
        values = {"cluster": (cluster.encode(),), "operation": (operation.encode(),)}
        return (EncodedRoute(_route_template(view).fill(values), True),)
    route = _service_route(view, cluster, operation)
    if hashed is not None:
        route.route.hash_policy.append(hashed)
    if session is not None:
        route.typed_per_filter_config[STATEFUL_SESSION.name].CopyFrom(session_config(session))
    return (_encoded(route),)


@derived
def _route_template(view: View) -> Template:
    """The byte template of services' routes."""
    placeholders = {"cluster": "\0cluster", "operation": "\0operation"}
    route = _service_route(view, **placeholders)
    return template(encode(route), {name: value.encode() for name, value in placeholders.items()})


def _service_route(view: View, cluster: str, operation: str) -> rc.Route:
    route = default_route(cluster, operation)
    retries = default_retries(view)
    if retries is not None:
        route.route.retry_policy.CopyFrom(retries)
    return route


def default_route(cluster: str, operation: str) -> rc.Route:
    """All requests to one cluster, without timeouts."""
    route = rc.Route(name=DEFAULT_NAME, match=route_match(None), decorator=rc.Decorator(operation=operation))
    action = route.route
    action.cluster = cluster
    action.timeout.CopyFrom(seconds(0))
    action.max_stream_duration.grpc_timeout_header_max.CopyFrom(seconds(0))
    return route


def _encoded_routes(
    view: View, key: ConfigKey, rule: HttpRule, match: api.HttpMatchRequest | None, client: RouteClient, port: int
) -> Iterator[EncodedRoute]:
    """A rule's route for one of its matches, behind those for requests that it redirects away from their port, and
    those for requests whose session is at one of several clusters."""
    route = _route(view, key, rule, match, client, port)
    encoded = _encoded(route)
    for scheme, number in redirect_ports(rule, client):
        yield EncodedRoute(encode(redirect_from_port(route, scheme, number)), encoded.matches_all)
    if rule.spec.session is not None and not client.grpc:
        for kept in session_routes(route, rule.spec.session):
            yield EncodedRoute(encode(kept), encoded.matches_all)
    yield encoded


def _route(
    view: View, key: ConfigKey, rule: HttpRule, match: api.HttpMatchRequest | None, client: RouteClient, port: int
) -> rc.Route:
    spec = rule.spec
    route = rc.Route(name=_name(spec, match), match=route_match(match, whole_segments=bool(rule.semantics)))
    operations = header_operations(spec.headers)
    operations.write_to(route)
    if spec.redirect is not None:
        redirect(route, rule, port)
    elif spec.direct_response is not None:
        respond(route, spec.direct_response)
    elif client.grpc and spec.external_auth:
        respond(route, _UNASKED)
    else:
        forward(view, route, rule, client, port, operations.authority)
    route.decorator.operation = _operation(route, key.name, port)
    if match is not None and match.stat_prefix:
        route.stat_prefix = match.stat_prefix
    for name, config in per_route_filters(spec):
        route.typed_per_filter_config[name].CopyFrom(config)
    return route


def _name(spec: api.HttpRoute, match: api.HttpMatchRequest | None) -> str:
    return f"{spec.name}.{match.name}" if match is not None and match.name else spec.name


def _operation(route: rc.Route, virtual_service: str, port: int) -> str:
    """The route's name in traces: destination (the VirtualService, if there are several), port and path."""
    match = route.match
    path = match.path or match.safe_regex.regex or f"{match.prefix or '/'}*"
    target = parse_cluster(route.route.cluster)
    host = f"{target.host}:{target.port}" if target is not None else f"{virtual_service}:{port}"
    return host + path


def _encoded(route: rc.Route) -> EncodedRoute:
    match = route.match
    conditions = (match.headers, match.query_parameters, match.dynamic_metadata)
    every_path = match.prefix == "/" or match.safe_regex.regex == ANY_TEXT
    return EncodedRoute(encode(route), every_path and not any(conditions))


def route_match(match: api.HttpMatchRequest | None, *, whole_segments: bool = False) -> rc.RouteMatch:
    """The conditions that the proxy evaluates; without any, all requests match.

    ``whole_segments``: prefixes end at slashes: ``/a`` does not match ``/ab``.
    """
    if match is None:
        return rc.RouteMatch(prefix="/")
    result = _path(match.uri, whole_segments)
    result.case_sensitive.CopyFrom(boolean(not match.ignore_uri_case))
    result.headers.extend(_headers(match))
    result.dynamic_metadata.extend(_claims(match))
    result.query_parameters.extend(_query(name, value) for name, value in sorted(match.query_params.items()))
    return result


def _path(uri: api.StringMatch | None, whole_segments: bool) -> rc.RouteMatch:
    if uri is None or uri.regex == ANY_VALUE:
        return rc.RouteMatch(prefix="/")
    if uri.exact is not None:
        return rc.RouteMatch(path=uri.exact)
    if uri.regex is not None:
        return rc.RouteMatch(safe_regex=regex_pb2.RegexMatcher(regex=uri.regex))
    if whole_segments and uri.prefix is not None and uri.prefix != "/":
        return rc.RouteMatch(path_separated_prefix=uri.prefix.removesuffix("/"))
    return rc.RouteMatch(prefix=uri.prefix if uri.prefix is not None else "/")


def _headers(match: api.HttpMatchRequest) -> Iterator[rc.HeaderMatcher]:
    named = [header_match(name, value) for name, value in match.headers.items() if not claim_path(name)]
    named += [header_mismatch(name, value) for name, value in match.without_headers.items() if not claim_path(name)]
    yield from sorted(named, key=lambda matcher: str(matcher.name))
    for name, value in ((":method", match.method), (":authority", match.authority), (":scheme", match.scheme)):
        if value is not None:
            yield header_match(name, value)


def _claims(match: api.HttpMatchRequest) -> Iterator[metadata_pb2.MetadataMatcher]:
    """The claims of the token that the request must have, and those that it must not have."""
    for conditions, invert in ((match.headers, False), (match.without_headers, True)):
        for name, value in sorted(conditions.items()):
            if path := claim_path(name):
                yield token_claim(path, string_match(value), invert=invert)


def _query(name: str, value: api.StringMatch) -> rc.QueryParameterMatcher:
    compared = string_match(value)
    if compared is None:
        return rc.QueryParameterMatcher(name=name)
    return rc.QueryParameterMatcher(name=name, string_match=compared)
