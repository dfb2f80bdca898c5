"""Datagrams at routers: the routes of UDP servers, which are listeners of the Gateway API, and where they lead.

Rules: the Gateway API's UDPRoute; Envoy's UDP proxy. A UDP server is the only one of its Gateway, and a UDPRoute is a
VirtualService with ``tcp`` rules: what differs is what Envoy makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.istio.gateway_api.values import route_semantics
from mesh_pilot.mesh.names.resources import BLACK_HOLE
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import visible_virtual_services
from mesh_pilot.mesh.routing.l4 import L4Route, MatchContext, TcpTarget, datagram_target
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class DatagramRoute:
    """A rule of a UDPRoute at a server."""

    virtual_service: ConfigKey
    target: TcpTarget


@derived
def datagram_routes(view: View, scope: OutboundScope, gateway: ConfigKey, port: int) -> tuple[DatagramRoute, ...]:
    """The rules for the datagrams of a UDP server in order of precedence: the first has them all."""
    name = f"{gateway.namespace}/{gateway.name}"
    conditions = MatchContext(frozenset((name,)), port, scope.namespace, scope.labels)
    found: list[DatagramRoute] = []
    for head in visible_virtual_services(view, scope.namespace, name):
        config = view.config(head.key)
        # Which UDPRoutes may attach is decided where they are converted; a VirtualService of users may not.
        if config is not None and route_semantics(config):
            for route in _routes(view, config, conditions):
                found.append(DatagramRoute(head.key, datagram_target(view, scope, route, port)))
    return tuple(found)


def _routes(view: View, config: Config, conditions: MatchContext) -> Iterator[L4Route]:
    for rule in config.spec.tcp:
        if rule.route:
            yield L4Route(config, (), (), (), conditions.destinations(view, config, rule.route))


@derived
def datagram_clusters(view: View, scope: OutboundScope) -> tuple[str, ...]:
    """The names of the clusters to which a scope's UDP servers send datagrams, sorted."""
    routes = (
        route
        for gateway, port in _udp_servers(view, scope.gateways)
        for route in datagram_routes(view, scope, gateway, port)[:1]
    )
    return tuple(sorted({name for route in routes for name, _ in route.target.clusters} - {BLACK_HOLE}))


@derived
def _udp_servers(view: View, gateways: tuple[ConfigKey, ...]) -> tuple[tuple[ConfigKey, int], ...]:
    """The Gateways with a UDP server, and its port."""
    configs = (view.config(key) for key in gateways)
    return tuple(
        (config.key, server.port.number)
        for config in configs
        if config is not None and config.made_from
        for server in config.spec.servers
        if server.port is not None and Protocol.parse(server.port.protocol) is Protocol.UDP
    )
