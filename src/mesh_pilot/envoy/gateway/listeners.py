"""A router's listeners: one for each port of the servers of its Gateways, with the chains of all servers on it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import resource_of
from mesh_pilot.envoy.filters.tcp import tcp_filters
from mesh_pilot.envoy.filters.udp import udp_proxy
from mesh_pilot.envoy.listeners.filter_chains import (
    MATCH_ALL,
    MESH_ALPNS,
    ChainMatch,
    EncodedChain,
    bound_listener,
    context_listener,
    filter_chain,
    merge_chains,
    sni_match,
)
from mesh_pilot.envoy.listeners.hcm import HcmSettings, http_chain
from mesh_pilot.envoy.listeners.inspectors import proxy_protocol, tls_inspector
from mesh_pilot.envoy.routes.tables import route_table, split_table
from mesh_pilot.envoy.tls.downstream import downstream_tls
from mesh_pilot.istio.gateway_api.values import route_semantics
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref, subset_names
from mesh_pilot.mesh.legacy.ports import legacy_policies
from mesh_pilot.mesh.listeners.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.listeners.datagrams import datagram_routes
from mesh_pilot.mesh.listeners.gateway_servers import (
    GatewayListener,
    GatewayServer,
    ServerKind,
    SkippedServer,
    TargetPorts,
    merged_servers,
    target_ports,
)
from mesh_pilot.mesh.listeners.inbound import served_ports
from mesh_pilot.mesh.names.resources import listener_name, outbound_sni
from mesh_pilot.mesh.policies.context import PolicyContext, gateway_context, limited_at
from mesh_pilot.mesh.proxy.plans import Plan
from mesh_pilot.mesh.proxy.proxy_config import takes_proxy_protocol
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.mesh.reach.sidecar_scope import all_services, visible_virtual_services
from mesh_pilot.mesh.routing.l4 import (
    L4Route,
    MatchContext,
    TcpTarget,
    route_target,
    tcp_routes,
    tls_routes,
    to_cluster,
)
from mesh_pilot.mesh.virtual_hosts.authorizers import table_authorizers, table_name
from mesh_pilot.mesh.virtual_hosts.gateway_tables import common_hosts, planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import Resource, plain_table_name
from mesh_pilot.model.service import Protocol, Service
from mesh_pilot.world import View
from mesh_pilot.world.indexes import VirtualServiceMeta

_CONFLICT_FREE = (ServerKind.HTTP, ServerKind.HTTPS)
"""Kinds of servers whose chains cannot overlap if the server is alone on its port."""


# -- A router's route tables: one for each HTTP server of its Gateways, or for several that share a name


@derived
def gateway_listeners(view: View, workload: Workload) -> Plan:
    """The listeners of a router, by name. One without a destination for connections is planned, too, as None."""
    scope, context = workload.scope, gateway_context(view, workload)
    merged = merged_servers(view, scope, target_ports(view, workload))
    return {
        planned.name: gateway_listener.query(scope, _at_port(view, workload, context, planned.port), planned)
        for planned in merged.listeners
    }


def _at_port(view: View, workload: Workload, context: PolicyContext, port: int) -> PolicyContext:
    """The context of a router's port. ServiceRoles are for sidecars, as in Istio 1.1."""
    served = tuple(served for served in served_ports(view, workload) if served.at == port)
    found = legacy_policies(view, context.namespace, served)
    return attrs.evolve(limited_at(view, context, port), legacy=attrs.evolve(found, controlled=()))


@derived
def gateway_conflicts(view: View, workload: Workload) -> tuple[Conflict, ...]:
    """The servers that a router cannot have, and the routes without connections, because others take precedence."""
    scope, context = workload.scope, gateway_context(view, workload)
    merged = merged_servers(view, scope, target_ports(view, workload))
    overlaps = (
        conflict
        for planned in merged.listeners
        if len(planned.servers) > 1 or planned.servers[0].kind not in _CONFLICT_FREE
        for conflict in overlapping_routes(view, scope, context, planned)
    )
    return (*(_conflict(skipped) for skipped in merged.skipped), *overlaps)


@derived
def gateway_listener(
    view: View, scope: OutboundScope, context: PolicyContext, planned: GatewayListener
) -> Resource | None:
    """One listener; None if no server has a destination for connections."""
    if planned.is_udp:
        return _datagram_listener(view, scope, context, planned)
    name = planned.name
    chains, _ = merge_chains(name, _chains(view, scope, context, planned))
    if not chains:
        return None
    header = bound_listener(name, (planned.bind, *planned.also), planned.port, base_pb2.OUTBOUND)
    if takes_proxy_protocol(view, context.settings):
        # The first listener filter: the PROXY header precedes the TLS that the inspector reads.
        header.listener_filters.append(proxy_protocol())
    if not planned.servers[0].kind.is_plain:
        header.listener_filters.append(tls_inspector())
    return context_listener(view, context, header, chains)


@derived
def overlapping_routes(
    view: View, scope: OutboundScope, context: PolicyContext, planned: GatewayListener
) -> tuple[Conflict, ...]:
    """The routes of a listener that get no connections, because others match the same."""
    name = planned.name
    if planned.is_udp:
        return tuple(_unused_datagram_routes(view, scope, planned))
    _, conflicts = merge_chains(name, _chains(view, scope, context, planned))
    return tuple(attrs.evolve(conflict, kind=ConflictKind.GATEWAY) for conflict in conflicts)


def _datagram_listener(
    view: View, scope: OutboundScope, context: PolicyContext, planned: GatewayListener
) -> Resource | None:
    """A UDP listener, with the datagrams of all clients for one route; None without any: nothing is taken then."""
    server = planned.servers[0]
    routes = datagram_routes(view, scope, server.gateway, server.port)
    if not routes:
        return None
    header = bound_listener(planned.name, (planned.bind, *planned.also), planned.port, base_pb2.OUTBOUND, udp=True)
    header.listener_filters.append(udp_proxy(view, context, routes[0].target))
    return resource_of(planned.name, header, (server.gateway, routes[0].virtual_service))


def _unused_datagram_routes(view: View, scope: OutboundScope, planned: GatewayListener) -> Iterator[Conflict]:
    server = planned.servers[0]
    routes = datagram_routes(view, scope, server.gateway, server.port)
    for other in routes[1:]:
        kept, dropped = str(routes[0].virtual_service), str(other.virtual_service)
        yield Conflict(planned.name, kept, dropped, "both claim every datagram", ConflictKind.GATEWAY)


def _chains(
    view: View, scope: OutboundScope, context: PolicyContext, planned: GatewayListener
) -> Iterator[EncodedChain]:
    first = planned.servers[0]
    if first.kind is ServerKind.HTTP:
        gateways = tuple(server.gateway for server in planned.servers)
        sharing = tuple(server for server in planned.servers if server.route_name == first.route_name)
        yield filter_chain(MATCH_ALL, _hcm(view, scope, context, sharing), configs=gateways)
        return
    for server in planned.servers:
        match server.kind:
            case ServerKind.HTTPS:
                yield filter_chain(
                    sni_match(server.server_names, ()),
                    _hcm(view, scope, context, (server,)),
                    transport_socket=_server_tls(view, scope, server),
                    configs=(server.gateway,),
                )
            case ServerKind.PASSTHROUGH:
                yield from tls_chains(view, scope, context, server)
            case ServerKind.AUTO_PASSTHROUGH:
                yield from auto_passthrough_chains(view, scope, context, server)
            case _:
                yield from tcp_chains(view, scope, context, server, _server_tls(view, scope, server))


def _hcm(view: View, scope: OutboundScope, context: PolicyContext, servers: tuple[GatewayServer, ...]) -> list[Filter]:
    """The filters of the connections of servers that share a route table."""
    server = servers[0]
    prefix = server.stat_prefix or f"outbound_{listener_name(server.bind, server.bound)}"
    asked = table_authorizers(view, scope, servers)
    table = table_name(server.route_name, asked)
    settings = HcmSettings(context, prefix, table, protocol=server.protocol, port=server.bound, authorizers=asked)
    return http_chain(view, settings)


def _server_tls(view: View, scope: OutboundScope, server: GatewayServer) -> base_pb2.TransportSocket | None:
    """The transport socket of a server that terminates TLS; None for others."""
    config = view.config(server.gateway)
    settings = config.spec.servers[server.index].tls if config is not None else None
    if settings is None or server.kind.is_plain:
        return None
    return downstream_tls(view, settings, by_agent=scope.agent_secrets)


def _conflict(skipped: SkippedServer) -> Conflict:
    server = skipped.server
    name = f"server {server.index} of Gateway {server.gateway_name}"
    return Conflict(listener_name(server.bind, server.bound), "", name, skipped.reason, ConflictKind.GATEWAY)


# -- filter chains of TCP and TLS servers: by ``tcp`` and ``tls`` rules of VirtualServices, or by server name


_Targets = tuple[tuple[ChainMatch, TcpTarget], ...]
"""(match of connections, their destinations)."""


def tcp_chains(
    view: View,
    scope: OutboundScope,
    context: PolicyContext,
    server: GatewayServer,
    socket: base_pb2.TransportSocket | None,
) -> Iterator[EncodedChain]:
    """The chains of a server by ``tcp`` rules, up to the first that matches all of the server's connections."""
    names = sni_match(() if server.kind.is_plain else server.server_names, ()).server_names
    for key in _virtual_services(view, scope, server):
        for match, target in _tcp_targets(view, scope, server, key):
            filters = tcp_filters(view, context, target, server.protocol, port=server.bound)
            yield filter_chain(
                attrs.evolve(match, server_names=match.server_names or names),
                filters,
                transport_socket=socket,
                host=str(key),
                configs=(server.gateway, key),
            )
            if match.is_any:
                return


def tls_chains(
    view: View, scope: OutboundScope, context: PolicyContext, server: GatewayServer
) -> Iterator[EncodedChain]:
    """The chains of a server by ``tls`` rules, which match server names."""
    for key in _virtual_services(view, scope, server):
        for match, target in _tls_targets(view, scope, server, key):
            filters = tcp_filters(view, context, target, server.protocol, port=server.bound)
            yield filter_chain(match, filters, host=str(key), configs=(server.gateway, key))


def auto_passthrough_chains(
    view: View, scope: OutboundScope, context: PolicyContext, server: GatewayServer
) -> Iterator[EncodedChain]:
    """A chain for each cluster that mesh mTLS can name in its SNI: a wildcard host it can't."""
    for service in all_services(view, scope):
        if (
            service.external
            or service.host.startswith("*")
            or not any(common_hosts(server.server_names, (service.host,)))
        ):
            continue
        for sni in _sni_names(view, scope, service):
            yield _sni_chain(view, context, sni, service.host, server)


def _virtual_services(view: View, scope: OutboundScope, server: GatewayServer) -> list[ConfigKey]:
    """The VirtualServices bound to the server's Gateway that share a host with it, in order of precedence. Connections
    are not told apart by these hosts: one that is behind another namespace's for any of them is behind all."""
    heads: list[VirtualServiceMeta] = []
    by_host: dict[str, list[int]] = {}
    for head in visible_virtual_services(view, scope.namespace, server.gateway_name):
        hosts = tuple(common_hosts(server.hosts_for(head.key.namespace), head.hosts))
        for host in hosts:
            by_host.setdefault(host, []).append(len(heads))
        if hosts:
            heads.append(head)
    behind: set[int] = set()
    for host, numbers in by_host.items():
        of_host = [heads[number] for number in numbers]
        first = of_host[for_host(view, server.gateway_name, scope.namespace, host, of_host)[0]]
        behind.update(number for number in numbers if heads[number].key.namespace != first.key.namespace)
    return [heads[number].key for number in sorted(range(len(heads)), key=behind.__contains__)]


@derived
def _tcp_targets(view: View, scope: OutboundScope, server: GatewayServer, key: ConfigKey) -> _Targets:
    """The destinations of a server by the ``tcp`` rules of a VirtualService. A TLSRoute has ``tls`` rules, also where
    the server terminates TLS."""
    config = view.config(key)
    if config is not None and config.spec.tls and route_semantics(config):
        return _tls_targets(view, scope, server, key)
    routes = tcp_routes(view, (config,), _conditions(scope, server)) if config is not None else ()
    return tuple((_match(route), route_target(view, scope, route, server.port)) for route in routes)


@derived
def _tls_targets(view: View, scope: OutboundScope, server: GatewayServer, key: ConfigKey) -> _Targets:
    """The destinations of a server by the ``tls`` rules of a VirtualService."""
    config = view.config(key)
    routes = tls_routes(view, (config,), _conditions(scope, server)) if config is not None else ()
    return tuple((_match(route), route_target(view, scope, route, server.port)) for route in routes)


def _conditions(scope: OutboundScope, server: GatewayServer) -> MatchContext:
    return MatchContext(frozenset((server.gateway_name,)), server.port, scope.namespace, scope.labels)


def _match(route: L4Route) -> ChainMatch:
    return sni_match(route.server_names, route.cidrs, route.source_cidrs)


@derived
def _sni_chain(view: View, context: PolicyContext, sni: str, host: str, server: GatewayServer) -> EncodedChain:
    match = ChainMatch(server_names=(sni,), protocols=MESH_ALPNS)
    filters = tcp_filters(view, context, to_cluster(sni), port=server.bound)
    return filter_chain(match, filters, host=host, configs=(server.gateway,))


def _sni_names(view: View, scope: OutboundScope, service: Service) -> Iterator[str]:
    """The names of a service's clusters for TLS that is passed through, as SNI."""
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    subsets = ("", *subset_names(view, ref)) if ref else ("",)
    for port in service.ports:
        if port.protocol is not Protocol.UDP:
            yield from (outbound_sni(service.host, port.number, subset) for subset in subsets)


@derived
def gateway_route(view: View, workload: Workload, name: str) -> Resource | None:
    """The route table of this name; None if no server has one."""
    return _table(view, workload.scope, target_ports(view, workload), name)


@derived
def gateway_table_hosts(view: View, workload: Workload, name: str) -> tuple[PlannedHost, ...]:
    """The virtual hosts of the route table of this name; none if no server has one."""
    servers = _servers_of(view, workload.scope, target_ports(view, workload), name)
    return planned_gateway_hosts(view, workload.scope, servers) if servers else ()


@derived
def _table(view: View, scope: OutboundScope, ports: TargetPorts, name: str) -> Resource | None:
    servers = _servers_of(view, scope, ports, name)
    if scope.split and servers:
        return split_table(view, name)
    return route_table(view, name, planned_gateway_hosts(view, scope, servers)) if servers else None


@derived
def _servers_of(view: View, scope: OutboundScope, ports: TargetPorts, name: str) -> tuple[GatewayServer, ...]:
    servers = merged_servers(view, scope, ports).tables.get(plain_table_name(name), ())
    if not servers or table_name(servers[0].route_name, table_authorizers(view, scope, servers)) != name:
        return ()  # one of a listener that is replaced: connections that are left from it keep the table that they have
    return servers
