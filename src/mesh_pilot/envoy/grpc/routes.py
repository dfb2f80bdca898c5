"""Route tables of proxyless gRPC: those of a sidecar's port, in the form that gRPC's xDS client supports.

A table is named after the cluster of its service, ``outbound|9080||reviews.shop.svc.cluster.local``, and contains the
virtual hosts of all services on the port. gRPC rejects a whole table for a filter that it does not know, and ignores
other fields that it does not support; routes are translated to equivalent ones without these where there are any.

Rules: the gRFCs A28 (matches and splits), A31 (timeouts), A33 (faults), A42 (hashing), A44 (retries).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.type.matcher.v3 import string_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import encode
from mesh_pilot.envoy.filters import grpc_client_supports
from mesh_pilot.envoy.grpc.clusters import outbound_name
from mesh_pilot.envoy.routes.build import EncodedRoute
from mesh_pilot.envoy.routes.retry import STATUS_CODES
from mesh_pilot.envoy.routes.tables import route_table
from mesh_pilot.envoy.routes.virtual_host import encode_host, routes_of
from mesh_pilot.istio.rules.regex import compiled, quoted
from mesh_pilot.mesh.destination_rules import destination_rule_ref
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.virtual_hosts.planned import (
    PlannedHost,
    RouteSource,
    ServiceRoutes,
    host_port,
    service_names,
)
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, planned_hosts
from mesh_pilot.mesh.visibility import scope_service
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Service
from mesh_pilot.world.view import View

METHOD = ":method"
GRPC_METHOD = "POST"
"""The method of every gRPC call. The client sets it only after it has chosen the route."""

CHANNEL_ID = "io.grpc.channel_id"
"""Key by which gRPC's hash policies hash the channel; used instead of the source address."""

UNAVAILABLE = "unavailable"
CONDITIONS_OF_UNAVAILABLE = frozenset(
    ("5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "refused-stream")
)
"""Envoy's retry conditions for failures that a gRPC client reports as UNAVAILABLE."""
CODES_OF_UNAVAILABLE = frozenset((429, 502, 503, 504))
"""HTTP statuses that gRPC maps to UNAVAILABLE ("HTTP to gRPC Status Code Mapping")."""


@derived
def grpc_route_table(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The route table of this name for gRPC clients of a scope; None if they have no such service or port."""
    target = outbound_name(name)
    if target is None or target.subset:
        return None
    service = scope_service(view, scope, target.host)
    if service is None or service.port(target.port) is None:
        return None
    hosts = planned_hosts(view, scope, TableName(target.port))
    if not any(host.name == host_port(target.host, target.port) for host in hosts):
        hosts = (*hosts, _undeclared(view, scope, service, target.port))
    hosts = tuple(attrs.evolve(host, domains=_with_port(host.domains, target.port)) for host in hosts)
    return route_table(view, name, hosts, render=grpc_virtual_host, grpc=True)


@derived
def grpc_virtual_host(view: View, planned: PlannedHost) -> bytes:
    """A VirtualHost for gRPC clients, encoded."""
    return encode_host(view, planned, [grpc_routes(view, source) for source in planned.routes])


@derived
def grpc_routes(view: View, source: RouteSource) -> tuple[EncodedRoute, ...]:
    """The routes of a source as gRPC supports them, without those that no gRPC call can match."""
    return tuple(
        EncodedRoute(encode(translated), route.matches_all)
        for route in routes_of(view, source)
        for translated in _translated(rc.Route.FromString(route.data))
    )


@derived
def _undeclared(view: View, scope: OutboundScope, service: Service, port: int) -> PlannedHost:
    """The virtual host of a service whose port is not declared as HTTP: a gRPC client that requests it knows better."""
    names, _ = service_names(service, scope.dns_domain)
    rule = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    routes = ServiceRoutes(service.host, port, rule)
    return PlannedHost(host_port(service.host, port), names, (routes,), configs=(*service.configs, *rule))


def _with_port(domains: Iterable[str], port: int) -> tuple[str, ...]:
    """gRPC compares the whole authority, with the port."""
    return tuple(form for domain in domains for form in (domain, f"{domain}:{port}"))


def _translated(route: rc.Route) -> Iterator[rc.Route]:
    """The routes for gRPC that together match what a route matches: one, several, or none. It knows no tokens."""
    if any(not claim.invert for claim in route.match.dynamic_metadata):
        return
    del route.match.dynamic_metadata[:]
    for name in [name for name in route.typed_per_filter_config if not grpc_client_supports(name)]:
        del route.typed_per_filter_config[name]
    if route.HasField("route"):
        _add_unavailable(route.route.retry_policy)
        for hashed in route.route.hash_policy:
            if hashed.connection_properties.source_ip:
                hashed.filter_state.key = CHANNEL_ID
    if prefix := route.match.path_separated_prefix:  # which gRPC refuses
        route.match.safe_regex.regex = f"{quoted(prefix)}(/.*)?"
    for headers in itertools.product(*map(_alternatives, route.match.headers)):
        result = rc.Route()
        result.CopyFrom(route)
        del result.match.headers[:]
        result.match.headers.extend(header for header in headers if header is not None)
        yield result


def _alternatives(matcher: rc.HeaderMatcher) -> Iterator[rc.HeaderMatcher | None]:
    """Matchers of which a call has to pass one; None: all calls pass.

    In gRPC a missing header fails every matcher except an inverted one for presence, and a call has no method yet when
    its route is chosen.
    """
    if matcher.name == METHOD:
        if matcher.present_match or _matches(matcher.string_match, GRPC_METHOD) != matcher.invert_match:
            yield None
        return
    if matcher.invert_match and matcher.treat_missing_header_as_empty and not _matches(matcher.string_match, ""):
        yield rc.HeaderMatcher(name=matcher.name, present_match=True, invert_match=True)
    yield matcher


def _matches(matcher: string_pb2.StringMatcher, text: str) -> bool:
    match matcher.WhichOneof("match_pattern"):
        case "exact":
            return bool(matcher.exact == text)
        case "prefix":
            return text.startswith(matcher.prefix)
        case "safe_regex":
            regex = compiled(matcher.safe_regex.regex)
            return regex is not None and regex.fullmatch(text) is not None
        case _:
            return False


def _add_unavailable(policy: rc.RetryPolicy) -> None:
    """Retry on UNAVAILABLE, too, if gRPC reports the failures of one of Envoy's conditions as that."""
    conditions = policy.retry_on.split(",")
    codes = policy.retriable_status_codes if STATUS_CODES in conditions else ()
    equivalent = CONDITIONS_OF_UNAVAILABLE.intersection(conditions) or CODES_OF_UNAVAILABLE.intersection(codes)
    if equivalent and UNAVAILABLE not in conditions:
        policy.retry_on += f",{UNAVAILABLE}"
