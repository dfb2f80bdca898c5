"""Telemetry configs: which of them are for a proxy, and for which side of its connections.

Rules: Istio's Telemetry reference. One of the root namespace is for the mesh, one of another for its namespace; one
with a selector or targets is for the workloads of its namespace that it names. Of several of a kind the oldest counts.
"""

from __future__ import annotations

from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.mesh.selection import is_general, selects
from mesh_pilot.world.view import View

Mode = api.WorkloadMode


@derived
def telemetry_for(view: View, namespace: str, labels: Labels) -> tuple[api.Telemetry, ...]:
    """The Telemetry configs for a proxy, the widest first: mesh, namespace, workload."""
    root = view.root_namespace
    own = view.configs("Telemetry", namespace)
    mesh = next((c for c in view.configs("Telemetry", root) if is_general(c.spec)), None)
    general = next((c for c in own if is_general(c.spec)), None) if namespace != root else None
    workload = next((c for c in own if not is_general(c.spec) and selects(c, namespace, labels)), None)
    return tuple(c.spec for c in (mesh, general, workload) if c is not None)


def is_for_side(
    match: api.AccessLoggingLogSelector | api.TracingTracingSelector | None, context: PolicyContext
) -> bool:
    """Whether an entry with this match is for a context's side; a gateway counts as a client."""
    mode = match.mode if match else Mode.CLIENT_AND_SERVER
    if mode == Mode.CLIENT_AND_SERVER:
        return True
    return mode == (Mode.SERVER if context.side is TrafficSide.INBOUND else Mode.CLIENT)


def provider_names(providers: list[api.ProviderRef]) -> tuple[str, ...]:
    return tuple(p.name for p in providers)
