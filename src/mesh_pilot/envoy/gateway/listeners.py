"""A router's listeners: one for each port of the servers of its Gateways, with the chains of all servers on it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter

from mesh_pilot.engine import derived
from mesh_pilot.envoy.gateway.tcp import auto_passthrough_chains, tcp_chains, tls_chains
from mesh_pilot.envoy.listeners.filter_chains import (
    MATCH_ALL,
    EncodedChain,
    bound_listener,
    context_listener,
    filter_chain,
    merge_chains,
    sni_match,
)
from mesh_pilot.envoy.listeners.hcm import HcmSettings, http_chain
from mesh_pilot.envoy.listeners.inspectors import proxy_protocol, tls_inspector
from mesh_pilot.envoy.tls.downstream import downstream_tls
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.gateway_servers import (
    GatewayListener,
    GatewayServer,
    ServerKind,
    SkippedServer,
    merged_servers,
    target_ports,
)
from mesh_pilot.mesh.inbound import served_ports
from mesh_pilot.mesh.legacy.ports import legacy_policies
from mesh_pilot.mesh.names import listener_name
from mesh_pilot.mesh.policies import PolicyContext, gateway_context, limited_at
from mesh_pilot.mesh.proxy.proxy_config import takes_proxy_protocol
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, Workload
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View

_CONFLICT_FREE = (ServerKind.HTTP, ServerKind.HTTPS)
"""Kinds of servers whose chains cannot overlap if the server is alone on its port."""


@derived
def gateway_listeners(view: View, workload: Workload) -> Plan:
    """The listeners of a router, by name. One without a destination for connections is planned, too, but is None."""
    scope, context = workload.scope, gateway_context(view, workload)
    merged = merged_servers(view, scope, target_ports(view, workload))
    return {
        listener_name(planned.bind, planned.port): gateway_listener.query(
            scope, _at_port(view, workload, context, planned.port), planned
        )
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
    name = listener_name(planned.bind, planned.port)
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
    name = listener_name(planned.bind, planned.port)
    _, conflicts = merge_chains(name, _chains(view, scope, context, planned))
    return tuple(attrs.evolve(conflict, kind=ConflictKind.GATEWAY) for conflict in conflicts)


def _chains(
    view: View, scope: OutboundScope, context: PolicyContext, planned: GatewayListener
) -> Iterator[EncodedChain]:
    first = planned.servers[0]
    if first.kind is ServerKind.HTTP:
        gateways = tuple(server.gateway for server in planned.servers)
        yield filter_chain(MATCH_ALL, _hcm(view, context, first), configs=gateways)
        return
    for server in planned.servers:
        match server.kind:
            case ServerKind.HTTPS:
                yield filter_chain(
                    sni_match(server.server_names, ()),
                    _hcm(view, context, server),
                    transport_socket=_server_tls(view, scope, server),
                    configs=(server.gateway,),
                )
            case ServerKind.PASSTHROUGH:
                yield from tls_chains(view, scope, context, server)
            case ServerKind.AUTO_PASSTHROUGH:
                yield from auto_passthrough_chains(view, scope, context, server)
            case _:
                yield from tcp_chains(view, scope, context, server, _server_tls(view, scope, server))


def _hcm(view: View, context: PolicyContext, server: GatewayServer) -> list[Filter]:
    prefix = server.stat_prefix or f"outbound_{listener_name(server.bind, server.bound)}"
    settings = HcmSettings(context, prefix, server.route_name, protocol=server.protocol, port=server.bound)
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
