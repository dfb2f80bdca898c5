"""The policies that shape the listeners of a context: what to look at where Envoy refuses one."""

from __future__ import annotations

from mesh_pilot.envoy.filters.jwt_authn import REQUEST_AUTHENTICATION
from mesh_pilot.envoy.filters.rbac.policies import AUTHORIZATION_POLICY
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection import selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View


def guards(view: View, context: PolicyContext) -> tuple[ConfigKey, ...]:
    """Who may call, and whose tokens are taken: what comes from an application is not looked at."""
    if context.side is TrafficSide.OUTBOUND:
        return ()
    kinds = (AUTHORIZATION_POLICY, REQUEST_AUTHENTICATION)
    return tuple(key for kind in kinds for key in selected(view, kind, context.namespace, context.labels))
