"""Istio's objects in a Kubernetes, read from its API server: what ``k8s://`` means as a config source.

    source = kubernetes_source(load_access(None))
    await source.run(events)

``access`` finds the server and who we are to it, as kubectl does; ``reflector`` lists and watches one kind; ``source``
makes events of all of them. Only kinds of Istio are read: no Services, no Secrets.
"""

from mesh_pilot.sources.kubernetes.access import Access, KubernetesError, load_access
from mesh_pilot.sources.kubernetes.source import KubernetesSource, kubernetes_source

__all__ = ["Access", "KubernetesError", "KubernetesSource", "kubernetes_source", "load_access"]
