"""Sessions: whether any request that a listener routes may be bound to an endpoint. A listener of others has no filter
for it, and a session in one Gateway makes no listener of another one."""

from __future__ import annotations

from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.view import View


def keeps_sessions(view: View, scope: OutboundScope) -> bool:
    """True if a rule of the scope's Gateways, or of sidecars, or a policy of services, keeps sessions."""
    if scope.type is NodeType.SIDECAR:
        return policies_keep_sessions(view) or view.keeps_sessions(MESH_GATEWAY)
    gateways = [f"{key.namespace}/{key.name}" for key in scope.gateways]
    return bool(gateways) and (policies_keep_sessions(view) or any(map(view.keeps_sessions, gateways)))


@derived
def policies_keep_sessions(view: View) -> bool:
    """True if a policy of services keeps sessions."""
    return any(config.spec.session_persistence is not None for config in view.all_configs("XBackendTrafficPolicy"))
