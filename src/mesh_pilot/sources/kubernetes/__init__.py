"""A Kubernetes, read from its API server: its services, and the configuration that it holds.

    registry = KubernetesRegistry(load_access(None))
    (source,) = registry.sources()
    await source.run(events)

- `registry`: its services with their endpoints, joined by `kubernetes.services`.
- `source`: the objects of configuration that the server has, as events: what ``k8s://`` means as a config source;
  `discovery`: which kinds that are; `readers`: objects of these kinds, and credentials.
- `mesh_maps`: the ConfigMap ``istio``.
- `namespaces`: the namespaces that ``discoverySelectors`` choose.
- `troubles`: kinds that can't be read at present.
"""

from collections.abc import Sequence

import attrs

from mesh_pilot.apiserver import Access
from mesh_pilot.sources.kubernetes.registry import KubernetesRegistrySource
from mesh_pilot.sources.kubernetes.selection import ConfigSelection
from mesh_pilot.sources.kubernetes.source import KubernetesSource, kubernetes_source

__all__ = ["ConfigSelection", "KubernetesRegistry", "KubernetesRegistrySource", "KubernetesSource", "kubernetes_source"]


@attrs.frozen
class KubernetesRegistry:
    """A cluster; implements `sources.base.Registry`."""

    access: Access
    cluster_id: str = "Kubernetes"
    domain: str = "cluster.local"
    """Its services are hosts below ``svc.`` of it."""
    system_namespace: str = "istio-system"
    """The namespace whose network is the cluster's."""
    has_services: bool = True
    """False if its services are not read."""

    def check(self) -> None:
        """Its access was loaded, which is all that can be a mistake: a server that is away may come back."""

    def sources(self) -> Sequence[KubernetesRegistrySource]:
        if not self.has_services:
            return ()
        return [
            KubernetesRegistrySource(
                self.access, cluster_id=self.cluster_id, domain=self.domain, system_namespace=self.system_namespace
            )
        ]

    def origins(self) -> Sequence[str]:
        return [f"Kubernetes at {self.access.server}"] if self.has_services else []

    def short_name_domain(self, *, is_alone: bool) -> str:
        """None: its short names are those of the namespace that uses them."""
        return ""
