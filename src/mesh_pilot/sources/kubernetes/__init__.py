"""Istio's objects in a Kubernetes, read from its API server: what ``k8s://`` means as a config source.

    source = kubernetes_source(load_access(None))
    await source.run(events)

``source`` has each kind reflected, and makes events of them. Only kinds of Istio are read: no Services, no Secrets.
"""

from mesh_pilot.sources.kubernetes.source import KubernetesSource, kubernetes_source

__all__ = ["KubernetesSource", "kubernetes_source"]
