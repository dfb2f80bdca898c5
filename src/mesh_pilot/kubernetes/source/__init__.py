"""A Kubernetes, read from its API server: its services, and the configuration that it holds.

    registry = KubernetesRegistry(load_access(None))
    (source,) = registry.sources()
    await source.run(events)

- `registry`: its services with their endpoints, joined by `istio.kubernetes.services`.
- `source`: the objects of configuration that the server has, as events: what ``k8s://`` means as a config source;
  `discovery`: which kinds that are; `readers`: objects of these kinds, and credentials.
- `mesh_maps`: the ConfigMap ``istio``.
- `namespaces`: the namespaces that ``discoverySelectors`` choose.
- `troubles`: kinds that can't be read at present.
"""

from collections.abc import Sequence
from functools import partial

import attrs

from mesh_pilot.istio.kubernetes.cluster_sets import ClusterSetMode
from mesh_pilot.kubernetes.apiserver import Access
from mesh_pilot.kubernetes.source.kubeconfigs import (
    ClusterSettings,
    KubeconfigFeed,
    KubeconfigFolder,
    KubeconfigSecrets,
)
from mesh_pilot.kubernetes.source.registry import KubernetesRegistrySource
from mesh_pilot.kubernetes.source.remote_clusters import RemoteClusters
from mesh_pilot.kubernetes.source.selection import ConfigSelection
from mesh_pilot.kubernetes.source.source import KubernetesSource, kubernetes_source
from mesh_pilot.sources.base.contract import Source, SourceError

__all__ = [
    "ClusterSettings",
    "ConfigSelection",
    "KubernetesClusters",
    "KubernetesRegistry",
    "KubernetesRegistrySource",
    "KubernetesSource",
    "RemoteClusters",
    "kubernetes_source",
]


@attrs.frozen
class KubernetesRegistry:
    """A cluster; implements `sources.base.contract.Registry`."""

    access: Access
    cluster_id: str = "Kubernetes"
    domain: str = "cluster.local"
    """The domain of the cluster: its services are hosts below ``svc.`` of it."""
    system_namespace: str = "istio-system"
    """The namespace whose network is the cluster's."""
    has_services: bool = True
    """False if its services are not read."""
    clusters: ClusterSettings | None = None
    """Other clusters; None: there are none."""
    cluster_set: ClusterSetMode = ClusterSetMode.OFF
    """How far ServiceExports and ServiceImports count."""

    def check(self) -> None:
        """Check that a folder of clusters is there. Access was loaded, and a server that is away may come back."""
        _check_folder(self.clusters)

    def sources(self) -> Sequence[Source]:
        found: list[Source] = []
        if self.has_services:
            found.append(_source(self, self.access, self.cluster_id))
        if self.clusters is not None:
            found += _remote_clusters(self, self.clusters, self.access, self.cluster_id)
        return found

    def origins(self) -> Sequence[str]:
        return [f"Kubernetes at {self.access.server}"] if self.has_services else []

    def short_name_domain(self, *, is_alone: bool) -> str:
        """None: its short names are those of the namespace that uses them."""
        return ""


@attrs.frozen
class KubernetesClusters:
    """Clusters of which none is our own; implements `sources.base.contract.Registry`."""

    clusters: ClusterSettings
    domain: str = "cluster.local"
    system_namespace: str = "istio-system"
    cluster_set: ClusterSetMode = ClusterSetMode.OFF

    def check(self) -> None:
        _check_folder(self.clusters)

    def sources(self) -> Sequence[Source]:
        return _remote_clusters(self, self.clusters, None, "")

    def origins(self) -> Sequence[str]:
        return [f"Kubernetes by the kubeconfigs in {self.clusters.folder}"]

    def short_name_domain(self, *, is_alone: bool) -> str:
        """None: their short names are those of the namespace that uses them."""
        return ""


def _source(of: KubernetesRegistry | KubernetesClusters, access: Access, cluster_id: str) -> KubernetesRegistrySource:
    return KubernetesRegistrySource(
        access,
        cluster_id=cluster_id,
        domain=of.domain,
        system_namespace=of.system_namespace,
        cluster_set=of.cluster_set,
    )


def _remote_clusters(
    of: KubernetesRegistry | KubernetesClusters, settings: ClusterSettings, access: Access | None, own_id: str
) -> list[Source]:
    """The source of other clusters, if they may be found anywhere."""
    feed: KubeconfigFeed
    if settings.folder is not None:
        feed = KubeconfigFolder(settings.folder)
    elif settings.secrets and access is not None:
        feed = KubeconfigSecrets(access, of.system_namespace, allowed=settings.allowed)
    else:
        return []
    make = partial(_source, of)
    return [RemoteClusters(feed, make, own_id=own_id, sync_seconds=settings.sync_seconds)]


def _check_folder(settings: ClusterSettings | None) -> None:
    if settings is not None and settings.folder is not None:
        try:
            any(settings.folder.iterdir())
        except OSError as error:
            raise SourceError(f"--clusters-dir: cannot read {settings.folder}: {error.strerror}") from error
