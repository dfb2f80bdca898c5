"""A router's route tables: one for each HTTP server of its Gateways, or for several that share a name."""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.envoy.routes.tables import route_table, split_table
from mesh_pilot.mesh.gateway_servers import GatewayServer, TargetPorts, merged_servers, target_ports
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.virtual_hosts.gateway_tables import planned_gateway_hosts
from mesh_pilot.mesh.virtual_hosts.planned import PlannedHost
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import View


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
    return merged_servers(view, scope, ports).tables.get(name, ())
