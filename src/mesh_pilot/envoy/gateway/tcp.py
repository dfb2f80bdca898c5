"""Filter chains of TCP and TLS servers: by ``tcp`` and ``tls`` rules of VirtualServices, or by server name."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.core.v3 import base_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.filters.tcp import tcp_filters
from mesh_pilot.envoy.listeners.filter_chains import (
    MESH_ALPNS,
    ChainMatch,
    EncodedChain,
    filter_chain,
    sni_match,
)
from mesh_pilot.istio.gateway_api.values import route_semantics
from mesh_pilot.mesh.destination_rules import destination_rule_ref, subset_names
from mesh_pilot.mesh.gateway_servers import GatewayServer
from mesh_pilot.mesh.names import outbound_sni
from mesh_pilot.mesh.ownership import for_host
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.sidecar_scope import all_services, visible_virtual_services
from mesh_pilot.mesh.virtual_hosts.gateway_tables import common_hosts
from mesh_pilot.mesh.virtual_services.l4 import (
    L4Route,
    MatchContext,
    TcpTarget,
    route_target,
    tcp_routes,
    tls_routes,
    to_cluster,
)
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol, Service
from mesh_pilot.world import View
from mesh_pilot.world.indexes import VirtualServiceMeta

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
