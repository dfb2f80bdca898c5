"""Extension providers of the mesh config, by name, and the clusters of their services."""

from __future__ import annotations

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import outbound
from mesh_pilot.mesh.visibility import visible_service
from mesh_pilot.world.view import View

Provider = mesh_api.MeshConfigExtensionProvider

BUILT_IN = {
    "envoy": Provider(
        name="envoy",
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
