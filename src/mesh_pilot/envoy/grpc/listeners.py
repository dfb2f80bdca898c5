"""Listeners of proxyless gRPC, by the name that a client or server requests.

A channel for ``xds:///reviews.shop:9080`` requests a listener of exactly that name, short or full; it names the
channel's route table. A server requests one named after its address, by the template in its bootstrap (Istio's:
``xds.istio.io/grpc/lds/inbound/%s``); it says whether the server uses mTLS.

Rules: the gRFCs A27 (clients), A36 (servers), A29 (mTLS), A39 (HTTP filters), A41 (RBAC).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs
from envoy.config.listener.v3.listener_components_pb2 import FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.type.matcher.v3 import string_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import address, any_of, encode, resource_of
from mesh_pilot.envoy.filters import grpc_client_filters, grpc_client_supports, grpc_server_filters
from mesh_pilot.envoy.grpc.clusters import outbound_name, server_socket
from mesh_pilot.envoy.routes.action import STATUS_CODES
from mesh_pilot.envoy.routes.build import EncodedRoute
from mesh_pilot.envoy.routes.tables import route_table
from mesh_pilot.envoy.routes.virtual_host import encode_host, routes_of
from mesh_pilot.istio.rules.regex import compiled, quoted
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref
from mesh_pilot.mesh.legacy.ports import LegacyPolicies, legacy_policies
from mesh_pilot.mesh.listeners.inbound import served_ports
from mesh_pilot.mesh.names.hosts import host_port, service_names
from mesh_pilot.mesh.names.resources import outbound
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.peer_authentication import PeerMode, peer_mode
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost, RouteSource, ServiceRoutes, service_addresses
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, planned_hosts
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import MESH_TLS_MODE, TLS_MODE_LABEL, UNSPECIFIED, Service
from mesh_pilot.world.view import View

INBOUND_PREFIX = "xds.istio.io/grpc/lds/inbound/"
"""Prefix of the names that servers request, before the address."""


@attrs.frozen(cache_hash=True)
class TargetAuthority:
    """The target of a channel, or the address of a server."""

    host: str
    port: int
    """0: not given."""


@derived
def client_listener(view: View, scope: OutboundScope, name: str) -> Resource | None:
    """The listener for a channel to ``host:port``, or to ``host`` of a service with just one port.

    None if the scope cannot reach a service of this host, or it has no such port.
    """
    if name.startswith(INBOUND_PREFIX):
        return None
    target = parse_authority(name)
    service = _service(view, scope, target.host)
    if service is None:
        return None
    port = target.port or (service.ports[0].number if len(service.ports) == 1 else 0)
    if service.port(port) is None:
        return None
    vip = next(iter(service_addresses(service, scope)), UNSPECIFIED)
    return _api_listener(view, name, outbound(service.host, port), vip, port)


@derived
def server_listener(view: View, workload: Workload, name: str) -> Resource | None:
    """The listener for a server on ``address:port`` of a workload; None for other names.

    Every server gets one, even if no service has the port: a registry may learn of a server only once it serves.
    PERMISSIVE means mTLS to a workload whose label says that it has TLS, as Envoys then use it with its endpoints.
    """
    if not name.startswith(INBOUND_PREFIX):
        return None
    authority = parse_authority(name.removeprefix(INBOUND_PREFIX))
    if not authority.port or not is_ip(authority.host):
        return None
    namespace, labels = workload.scope.namespace, workload.labels
    served = tuple(port for port in served_ports(view, workload) if port.at == authority.port)
    mode = peer_mode(view, namespace, labels, authority.port, served)
    strict = mode is PeerMode.STRICT or (mode is PeerMode.PERMISSIVE and (TLS_MODE_LABEL, MESH_TLS_MODE) in labels)
    filters = _encoded_filters(view, namespace, labels, legacy_policies(view, namespace, served))
    return _inbound_listener(view, name, authority, strict, filters)


def parse_authority(text: str) -> TargetAuthority:
    """``host:port``, ``[ipv6]:port`` or ``host``."""
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        return TargetAuthority(host.removeprefix("[").removesuffix("]"), int(port))
    return TargetAuthority(text, 0)


def _service(view: View, scope: OutboundScope, host: str) -> Service | None:
    """The service that a host names, by its full name or one of its short forms."""
    for full in _full_names(host, scope.dns_domain):
        service = scope_service(view, scope, full)
        if service is not None and host.lower() in service_names(service, scope.dns_domain)[0]:
            return scope_service(view, scope, service.alias_of) if service.alias_of else service
    return None


def _full_names(host: str, dns_domain: str) -> Iterator[str]:
    """The full names that a host can stand for: itself, then with each suffix of the client's domain, longest first."""
    host = host.lower()
    yield host
    while dns_domain:
        yield f"{host}.{dns_domain}"
        dns_domain = dns_domain.partition(".")[2]


@derived
def _api_listener(view: View, name: str, table: str, vip: str, port: int) -> Resource:
    """An API listener: it has no socket, but names the route table of a channel."""
    manager = hcm_pb2.HttpConnectionManager(stat_prefix=table, http_filters=grpc_client_filters())
    manager.rds.route_config_name = table
    manager.rds.config_source.ads.SetInParent()
    listener = Listener(name=name, address=address(vip, port))
    listener.api_listener.api_listener.CopyFrom(any_of(manager))
    return resource_of(name, listener)


@derived
def _encoded_filters(view: View, namespace: str, labels: Labels, legacy: LegacyPolicies) -> tuple[bytes, ...]:
    """The HTTP filters of a server, encoded."""
    context = PolicyContext(TrafficSide.INBOUND, namespace, labels, legacy=legacy)
    return tuple(encode(filter_) for filter_ in grpc_server_filters(view, context))


@derived
def _inbound_listener(
    view: View, name: str, authority: TargetAuthority, strict: bool, filters: tuple[bytes, ...]
) -> Resource:
    """A listener with one chain, of mTLS or of plaintext: gRPC cannot serve both on one port."""
    manager = hcm_pb2.HttpConnectionManager(
        stat_prefix=f"inbound_{authority.host}_{authority.port}",
        http_filters=map(hcm_pb2.HttpFilter.FromString, filters),
    )
    manager.route_config.name = f"inbound|{authority.port}||"
    host = manager.route_config.virtual_hosts.add(name=f"inbound|{authority.port}", domains=["*"])
    host.routes.add(match=rc.RouteMatch(prefix="/")).non_forwarding_action.SetInParent()
    chain = FilterChain(name="mtls" if strict else "plaintext")
    chain.filters.add(name="inbound").typed_config.CopyFrom(any_of(manager))
    if strict:
        chain.transport_socket.CopyFrom(server_socket())
    listener = Listener(name=name, address=address(authority.host, authority.port), filter_chains=[chain])
    return resource_of(name, listener)


# -- route tables of proxyless gRPC: those of a sidecar's port, in the form that gRPC's xDS client supports


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
