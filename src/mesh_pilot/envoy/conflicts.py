"""Listener conflicts of one proxy: services that it can't reach, or serve, as they are declared."""

from __future__ import annotations

from mesh_pilot.envoy.chains import Conflict
from mesh_pilot.envoy.inbound_ports import inbound_plan
from mesh_pilot.envoy.listeners import outbound_conflicts
from mesh_pilot.envoy.scope import Target
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.world.view import View


def listener_conflicts(view: View, target: Target) -> tuple[Conflict, ...]:
    """Every conflict on a sidecar's listeners, outbound then inbound; those of routers are not among them."""
    if target.scope.type is NodeType.ROUTER:
        return ()
    outbound = view.get(outbound_conflicts, target.scope)
    return (*outbound, *view.get(inbound_plan, target.workload).conflicts)
