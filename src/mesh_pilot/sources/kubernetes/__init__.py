"""Configuration in a Kubernetes, read from its API server: what ``k8s://`` means as a config source, and more.

    source = kubernetes_source(load_access(None))
    await source.run(events)

- `source`: the objects that the server has, as events; `discovery`: which kinds that are.
- `readers`: objects of Istio's kinds, and credentials.
- `mesh_maps`: the ConfigMap ``istio``.
- `namespaces`: the namespaces that ``discoverySelectors`` choose.
"""

from mesh_pilot.sources.kubernetes.selection import ConfigSelection
from mesh_pilot.sources.kubernetes.source import KubernetesSource, kubernetes_source

__all__ = ["ConfigSelection", "KubernetesSource", "kubernetes_source"]
