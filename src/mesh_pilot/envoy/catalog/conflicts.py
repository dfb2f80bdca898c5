"""Listener conflicts of one proxy: services and Gateways that it can't reach, or serve, as they are declared."""

from __future__ import annotations

from mesh_pilot.envoy.gateway.generators import gateway_conflicts
from mesh_pilot.envoy.listeners.outbound import outbound_conflicts
from mesh_pilot.mesh.conflicts import Conflict
from mesh_pilot.mesh.inbound import inbound_plan
from mesh_pilot.mesh.proxy.scope import ProxyKeys
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.world.view import View


def listener_conflicts(view: View, target: ProxyKeys) -> tuple[Conflict, ...]:
    """Every conflict on a proxy's listeners; of a sidecar outbound, then inbound. A proxyless client has none."""
    if target.scope.grpc:
        return ()
    if target.scope.type is NodeType.ROUTER:
        return gateway_conflicts(view, target.workload)
    outbound = outbound_conflicts(view, target.scope)
    return (*outbound, *inbound_plan(view, target.workload).conflicts)
