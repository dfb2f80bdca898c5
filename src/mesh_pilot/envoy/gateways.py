"""Routers: listeners for the servers of the Gateways that select them, and their route tables."""

from __future__ import annotations

from mesh_pilot.envoy.chains import Conflict, ConflictKind, listener_name
from mesh_pilot.envoy.gateway.listener import listener, listener_conflicts
from mesh_pilot.envoy.gateway.servers import Kind, Ports, Server, Skipped, merged_servers, target_ports
from mesh_pilot.envoy.gateway.tables import planned_hosts
from mesh_pilot.envoy.owner import gateway_owner
from mesh_pilot.envoy.route.split import split_table
from mesh_pilot.envoy.route.table import PlannedHost, route_table
from mesh_pilot.envoy.scope import Plan, Scope, Workload
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View

HTTP_KINDS = (Kind.HTTP, Kind.HTTPS)
"""Servers of which one alone has all connections that its hosts can have."""


def gateway_listeners(view: View, workload: Workload) -> Plan:
    """The listeners of a router. One that has nothing to pass connections to is planned, and comes out as None."""
    scope = workload.scope
    merged = view.get(merged_servers, scope, view.get(target_ports, workload))
    owner = gateway_owner(workload)
    return {listener_name(held.bind, held.port): (listener, (scope, owner, held)) for held in merged.listeners}


def gateway_conflicts(view: View, workload: Workload) -> tuple[Conflict, ...]:
    """The servers that a router can't have, and the routes that get no connections, because others have their place."""
    scope = workload.scope
    merged = view.get(merged_servers, scope, view.get(target_ports, workload))
    owner = gateway_owner(workload)
    several = [held for held in merged.listeners if len(held.servers) > 1 or held.servers[0].kind not in HTTP_KINDS]
    routes = (c for held in several for c in view.get(listener_conflicts, scope, owner, held))
    return (*(_conflict(skipped) for skipped in merged.skipped), *routes)


def gateway_route(view: View, workload: Workload, name: str) -> Resource | None:
    """The route table of this name; None where no server has it."""
    return view.get(_table, workload.scope, view.get(target_ports, workload), name)


def gateway_table_hosts(view: View, workload: Workload, name: str) -> tuple[PlannedHost, ...]:
    """The virtual hosts of the route table of this name; none where no server has it."""
    servers = view.get(_servers_of, workload.scope, view.get(target_ports, workload), name)
    return view.get(planned_hosts, workload.scope, servers) if servers else ()


def _conflict(skipped: Skipped) -> Conflict:
    server = skipped.server
    name = f"server {server.index} of Gateway {server.gateway_name}"
    return Conflict(listener_name(server.bind, server.bound), "", name, skipped.reason, ConflictKind.GATEWAY)


def _table(view: View, scope: Scope, ports: Ports, name: str) -> Resource | None:
    servers = view.get(_servers_of, scope, ports, name)
    if scope.split and servers:
        return view.get(split_table, name)
    return route_table(view, name, view.get(planned_hosts, scope, servers)) if servers else None


def _servers_of(view: View, scope: Scope, ports: Ports, name: str) -> tuple[Server, ...]:
    return view.get(merged_servers, scope, ports).tables.get(name, ())
