"""Clusters of the mesh: which services are reached within the client's own cluster only.

Rules: Istio's MeshConfig ``serviceSettings``, and the services that are of each cluster by default.
"""

from __future__ import annotations

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.world.view import View

_NAMESPACES = ("kube-system",)
_SERVICES = ("kubernetes.default.svc",)


@attrs.frozen
class ClusterLocalHosts:
    """Hosts and wildcards with what was said of them, the most specific first."""

    specific: dict[str, bool]
    wildcards: tuple[tuple[str, bool], ...]
    """Without the star: ``.kube-system.svc.cluster.local``."""

    def has(self, host: str) -> bool:
        """True if a host is reached within the client's cluster only."""
        said = self.specific.get(host)
        if said is not None:
            return said
        return next((local for suffix, local in self.wildcards if host.endswith(suffix)), False)


def is_cluster_local(view: View, host: str) -> bool:
    """True if a host is reached within the client's cluster only."""
    return _cluster_local_hosts(view).has(host)


@derived
def _cluster_local_hosts(view: View) -> ClusterLocalHosts:
    mesh = view.mesh()
    defaults = [f"*.{namespace}.svc.{view.domain}" for namespace in _NAMESPACES]
    defaults += (f"{service}.{view.domain}" for service in _SERVICES)
    if mesh.default_config is not None:
        discovery = mesh.default_config.discovery_address.rpartition(":")[0]
        if discovery:
            defaults.append(discovery if discovery.endswith(view.domain) else f"{discovery}.{view.domain}")
    found: dict[str, bool] = {}
    for settings in mesh.service_settings:
        local = settings.settings is not None and settings.settings.cluster_local
        if not local:  # a default is off where its host, or one below its wildcard, is
            defaults = [each for each in defaults if not any(_is_within(host, each) for host in settings.hosts)]
        found.update(dict.fromkeys(settings.hosts, local))
    found |= dict.fromkeys(defaults, True)
    wildcards = sorted((host[1:] for host in found if host.startswith("*")), key=lambda suffix: (-len(suffix), suffix))
    return ClusterLocalHosts(
        {host: local for host, local in found.items() if not host.startswith("*")},
        tuple((suffix, found[f"*{suffix}"]) for suffix in wildcards),
    )


def _is_within(host: str, pattern: str) -> bool:
    return host == pattern or (pattern.startswith("*") and host.endswith(pattern[1:]))
