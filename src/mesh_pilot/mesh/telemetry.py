"""Telemetry objects that apply to a side of a proxy's connections, and the extension providers that they name.

Rules: Istio's Telemetry reference. Of several objects of one level the oldest counts.
"""

from __future__ import annotations

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import outbound
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection import Labels, oldest_general, oldest_selecting
from mesh_pilot.mesh.visibility import visible_service
from mesh_pilot.world.view import View

Provider = mesh_api.MeshConfigExtensionProvider

ENVOY = "envoy"
"""The provider of access logs on standard output, in the format of the mesh's own log file."""

BUILT_IN = {
    ENVOY: Provider(
        name=ENVOY,
        envoy_file_access_log=mesh_api.MeshConfigExtensionProviderEnvoyFileAccessLogProvider(path="/dev/stdout"),
    )
}
"""Providers that exist without a declaration."""


@derived
def extension_provider(view: View, name: str) -> Provider | None:
    """A provider by its name; None if the mesh config lacks it."""
    declared = (p for p in view.mesh().extension_providers if p.name == name)
    return next(declared, BUILT_IN.get(name))


def provider_cluster(view: View, namespace: str, service: str, port: int) -> tuple[str, str] | None:
    """The cluster and host of a provider's service (``host`` or ``namespace/host``), as seen from a namespace.

    None if there is no such service or port: Envoy rejects resources that name an unknown cluster.
    """
    host = service.rpartition("/")[2]
    found = visible_service(view, namespace, host)
    if found is None or found.port(port) is None:
        return None
    return outbound(found.host, port), found.host


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
