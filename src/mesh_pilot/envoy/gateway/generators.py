"""Routers: listeners for the servers of the Gateways that select them, and their route tables."""

from __future__ import annotations

from mesh_pilot.envoy.gateway.listener import listener, listener_conflicts
from mesh_pilot.envoy.routes.tables import route_table, split_table
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.gateway_servers import (
    GatewayServer,
    Ports,
    ServerKind,
    SkippedServer,
    merged_servers,
    target_ports,
)
from mesh_pilot.mesh.names import listener_name
from mesh_pilot.mesh.policies import gateway_context
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, Workload
from mesh_pilot.mesh.virtual_hosts.gateway_tables import planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View

HTTP_KINDS = (ServerKind.HTTP, ServerKind.HTTPS)
"""Servers of which one alone has all connections that its hosts can have."""


@derived
def gateway_listeners(view: View, workload: Workload) -> Plan:
    """The listeners of a router. One that has nothing to pass connections to is planned, and comes out as None."""
    scope = workload.scope
    merged = merged_servers(view, scope, target_ports(view, workload))
    context = gateway_context(workload)
    return {listener_name(held.bind, held.port): listener.query(scope, context, held) for held in merged.listeners}


@derived
def gateway_conflicts(view: View, workload: Workload) -> tuple[Conflict, ...]:
    """The servers that a router can't have, and the routes that get no connections, because others have their place."""
    scope = workload.scope
    merged = merged_servers(view, scope, target_ports(view, workload))
    context = gateway_context(workload)
    several = [held for held in merged.listeners if len(held.servers) > 1 or held.servers[0].kind not in HTTP_KINDS]
    routes = (c for held in several for c in listener_conflicts(view, scope, context, held))
    return (*(_conflict(skipped) for skipped in merged.skipped), *routes)


@derived
def gateway_route(view: View, workload: Workload, name: str) -> Resource | None:
    """The route table of this name; None where no server has it."""
    return _table(view, workload.scope, target_ports(view, workload), name)


@derived
def gateway_table_hosts(view: View, workload: Workload, name: str) -> tuple[PlannedHost, ...]:
    """The virtual hosts of the route table of this name; none where no server has it."""
    servers = _servers_of(view, workload.scope, target_ports(view, workload), name)
    return planned_gateway_hosts(view, workload.scope, servers) if servers else ()


def _conflict(skipped: SkippedServer) -> Conflict:
    server = skipped.server
    name = f"server {server.index} of Gateway {server.gateway_name}"
    return Conflict(listener_name(server.bind, server.bound), "", name, skipped.reason, ConflictKind.GATEWAY)


@derived
def _table(view: View, scope: OutboundScope, ports: Ports, name: str) -> Resource | None:
    servers = _servers_of(view, scope, ports, name)
    if scope.split and servers:
        return split_table(view, name)
    return route_table(view, name, planned_gateway_hosts(view, scope, servers)) if servers else None


@derived
def _servers_of(view: View, scope: OutboundScope, ports: Ports, name: str) -> tuple[GatewayServer, ...]:
    return merged_servers(view, scope, ports).tables.get(name, ())
