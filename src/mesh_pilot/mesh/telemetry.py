"""Telemetry objects: which of them apply to a proxy, and to which side of its connections.

Rules: Istio's Telemetry reference. Of several objects of one level the oldest counts.
"""

from __future__ import annotations

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection import Labels, oldest_general, oldest_selecting
from mesh_pilot.world.view import View

Mode = api.WorkloadMode


@derived
def telemetry_for(view: View, namespace: str, labels: Labels) -> tuple[api.Telemetry, ...]:
    """The Telemetry objects that apply to a proxy, the widest first: mesh, namespace, workload."""
    root = view.root_namespace
    general = (oldest_general(view, "Telemetry", level) for level in dict.fromkeys((root, namespace)))
    levels = (*general, oldest_selecting(view, "Telemetry", namespace, labels))
    return tuple(config.spec for config in levels if config is not None)


def is_for_side(
    match: api.AccessLoggingLogSelector | api.TracingTracingSelector | None, context: PolicyContext
) -> bool:
    """True if an entry with this match applies to a context's side; a gateway is a client."""
    mode = match.mode if match else Mode.CLIENT_AND_SERVER
    if mode == Mode.CLIENT_AND_SERVER:
        return True
    return mode == (Mode.SERVER if context.side is TrafficSide.INBOUND else Mode.CLIENT)


def provider_names(providers: list[api.ProviderRef]) -> tuple[str, ...]:
    return tuple(p.name for p in providers)
