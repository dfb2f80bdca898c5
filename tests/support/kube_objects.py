"""Kubernetes objects as YAML, into a World: mapped by the code that reads those of an API server."""

from __future__ import annotations

import yaml

from mesh_pilot.istio.kubernetes.objects import KubernetesObject, object_name, read_object
from mesh_pilot.istio.kubernetes.services import KubernetesServices
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.world import World

SOURCE = "kubernetes"
LOADER = yaml.CSafeLoader


def add_kubernetes(world: World, text: str, domain: str = "cluster.local") -> None:
    """Put the Services, their endpoints, Pods, Nodes and Namespaces of a YAML text into the World, as one revision."""
    values: dict[str, dict[str, KubernetesObject]] = {}
    for document in yaml.load_all(text, LOADER):
        value = read_object(document["kind"], document, domain)
        if value is not None:
            values.setdefault(document["kind"], {})[object_name(document)] = value
    services = KubernetesServices(system_namespace="istio-system", needs_pods=True)
    for of_kind in values.values():
        services.apply(of_kind, {})
    items = (item for name in services.names() for item in services.items(name))
    world.expect(SOURCE)
    world.apply([*(Upsert(SOURCE, item) for item in items), Synced(SOURCE)])
