"""A router's listener: the chains of all servers on its port."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3 import listener_pb2

from mesh_pilot.envoy.core.protobuf import address
from mesh_pilot.envoy.gateway.tcp import auto_passthrough_chains, passthrough_chains, tcp_chains
from mesh_pilot.envoy.listeners.filter_chains import (
    MATCH_ALL,
    EncodedChain,
    context_listener,
    filter_chain,
    merge_chains,
    sni_match,
)
from mesh_pilot.envoy.listeners.hcm import HcmSettings, hcm_filter
from mesh_pilot.envoy.listeners.inspectors import proxy_protocol, tls_inspector
from mesh_pilot.envoy.tls.downstream import downstream_tls
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.gateway_servers import GatewayListener, GatewayServer, ServerKind
from mesh_pilot.mesh.names import listener_name
from mesh_pilot.mesh.policies import PolicyContext
from mesh_pilot.mesh.proxy.proxy_config import takes_proxy_protocol
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View


@derived
def listener(view: View, scope: OutboundScope, context: PolicyContext, held: GatewayListener) -> Resource | None:
    """The listener; None where no server has anywhere to pass connections to."""
    name = listener_name(held.bind, held.port)
    chains, _ = merge_chains(name, _chains(view, scope, context, held))
    if not chains:
        return None
    header = listener_pb2.Listener(
        name=name, address=address(held.bind, held.port), traffic_direction=base_pb2.OUTBOUND
    )
    if takes_proxy_protocol(view, context.settings):
        # First of all: its header comes before the TLS that the inspector looks for.
        header.listener_filters.append(proxy_protocol())
    if not held.servers[0].kind.is_plain:
        header.listener_filters.append(tls_inspector())
    return context_listener(view, context, header, chains)


@derived
def listener_conflicts(
    view: View, scope: OutboundScope, context: PolicyContext, held: GatewayListener
) -> tuple[Conflict, ...]:
    """The routes that get no connections on a listener, because others have them."""
    _, conflicts = merge_chains(listener_name(held.bind, held.port), _chains(view, scope, context, held))
    return tuple(attrs.evolve(conflict, kind=ConflictKind.GATEWAY) for conflict in conflicts)


def _chains(view: View, scope: OutboundScope, context: PolicyContext, held: GatewayListener) -> Iterator[EncodedChain]:
    first = held.servers[0]
    if first.kind is ServerKind.HTTP:
        yield filter_chain(MATCH_ALL, [_manager(view, context, first)], configs=tuple(s.gateway for s in held.servers))
        return
    for server in held.servers:
        match server.kind:
            case ServerKind.HTTPS:
                match = sni_match(server.server_names, ())
                socket = _socket(view, server)
                yield filter_chain(
                    match, [_manager(view, context, server)], transport_socket=socket, configs=(server.gateway,)
                )
            case ServerKind.PASSTHROUGH:
                yield from passthrough_chains(view, scope, context, server)
            case ServerKind.AUTO_PASSTHROUGH:
                yield from auto_passthrough_chains(view, scope, context, server)
            case _:
                yield from tcp_chains(view, scope, context, server, _socket(view, server))


def _manager(view: View, context: PolicyContext, server: GatewayServer) -> base_pb2.TypedExtensionConfig:
    prefix = server.stat_prefix or f"outbound_{listener_name(server.bind, server.bound)}"
    return hcm_filter(view, HcmSettings(context, prefix, server.route_name, protocol=server.protocol))


def _socket(view: View, server: GatewayServer) -> base_pb2.TransportSocket | None:
    """The TLS of a server that ends it."""
    config = view.config(server.gateway)
    settings = config.spec.servers[server.index].tls if config is not None else None
    if settings is None or server.kind.is_plain:
        return None
    return downstream_tls(view, settings)
