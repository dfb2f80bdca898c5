"""Workloads that are known, from wherever, and which of them labels select."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, as_objects
from mesh_pilot.explain.analysis.input import AnalysisInput
from mesh_pilot.model.config import Config
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.service import Locality

REGION, ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
SUBZONE, HOSTNAME = "topology.istio.io/subzone", "kubernetes.io/hostname"
AMBIENT = "ambient.istio.io/redirection"
INJECT = "sidecar.istio.io/inject"
PROXY_CONTAINER = "istio-proxy"

Data = Mapping[str, Any]


@attrs.frozen
class KnownWorkload:
    """A Pod, a WorkloadEntry, a WorkloadGroup, an endpoint or a connected proxy."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    is_pod: bool = False
    is_in_mesh: bool = True
    is_ambient: bool = False
    type: NodeType | None = None
    """The type of a connected proxy."""


class Workloads:
    """Workloads by label. A selector looks at those with its rarest label only."""

    def __init__(self, workloads: Iterable[KnownWorkload]) -> None:
        self.all: Sequence[KnownWorkload] = tuple(workloads)
        self._in: dict[str, list[KnownWorkload]] = {}
        self._with: dict[tuple[str, str, str], list[KnownWorkload]] = {}
        for workload in self.all:
            for namespace in (workload.namespace, ""):
                self._in.setdefault(namespace, []).append(workload)
                for key, value in workload.labels.items():
                    self._with.setdefault((namespace, key, value), []).append(workload)

    @property
    def count(self) -> int:
        return len(self.all)

    def count_in(self, namespace: str) -> int:
        return len(self._in.get(namespace, ()))

    def matching(self, namespace: str, labels: Mapping[str, str]) -> tuple[KnownWorkload, ...]:
        """The workloads of a namespace, or of all (empty), that have all of these labels."""
        if not labels:
            return tuple(self._in.get(namespace, ()))
        lists = [self._with.get((namespace, key, value), []) for key, value in labels.items()]
        wanted = labels.items()
        return tuple(w for w in min(lists, key=len) if wanted <= w.labels.items())


def workloads_of(picture: AnalysisInput) -> Iterator[KnownWorkload]:
    """Every workload that a picture knows of; one that is known in several ways comes several times."""
    nodes = {node.name: node.labels for node in picture.of_kubernetes("Node")}
    namespaces = {namespace.name: namespace.labels for namespace in picture.of_kubernetes("Namespace")}
    for pod in picture.of_kubernetes("Pod"):
        yield _of_pod(pod, nodes, namespaces)
    for proxy in picture.proxies or ():
        yield KnownWorkload(proxy.name, proxy.namespace, proxy.labels, type=proxy.type)
    for entry in picture.of("WorkloadEntry"):
        yield KnownWorkload(entry.name, entry.namespace, {**entry.labels, **entry.spec.labels})
    for group in picture.of("WorkloadGroup"):
        metadata, template = group.spec.metadata, group.spec.template
        of_group = {**(template.labels if template else {}), **(metadata.labels if metadata else {})}
        yield KnownWorkload(group.name, group.namespace, of_group)
    # Pods say more than the Deployments that they are of: with Pods in the picture these are left out.
    for deployment in picture.of_kubernetes("Deployment", "apps") if not picture.of_kubernetes("Pod") else ():
        of_pods = as_object(deployment.spec, "spec", "template", "metadata", "labels")
        yield KnownWorkload(deployment.name, deployment.namespace, of_pods)
    for key, endpoints in picture.endpoints.items():
        seen = set()
        for endpoint in endpoints:
            labels = endpoint.labels
            identity = frozenset(labels.items())
            if labels and identity not in seen:
                seen.add(identity)
                name = endpoint.workload or endpoint.address
                all_labels = {**of_locality(endpoint.locality), **labels}
                yield KnownWorkload(name, endpoint.namespace or key.namespace, all_labels)


def of_locality(locality: Locality) -> dict[str, str]:
    """The labels by which subsets can select a locality."""
    found = {REGION: locality.region, ZONE: locality.zone, SUBZONE: locality.subzone}
    return {key: value for key, value in found.items() if value}


def _of_pod(
    pod: Config, nodes: Mapping[str, Mapping[str, str]], namespaces: Mapping[str, Mapping[str, str]]
) -> KnownWorkload:
    spec = as_object(pod.spec, "spec")
    node = dict(nodes.get(str(spec.get("nodeName", "")), {}))
    topology: dict[str, str] = {key: node[key] for key in (REGION, ZONE, SUBZONE) if node.get(key)}
    if name := spec.get("nodeName"):
        topology[HOSTNAME] = str(name)
    is_ambient = pod.annotations.get(AMBIENT) == "enabled"
    in_mesh = in_mesh_of(pod.annotations, pod.labels, pod.namespace, spec, namespaces)
    return KnownWorkload(pod.name, pod.namespace, {**topology, **pod.labels}, True, in_mesh or is_ambient, is_ambient)


def in_mesh_of(
    annotations: Data, labels: Data, namespace: str, spec: Data, namespaces: Mapping[str, Mapping[str, str]]
) -> bool:
    """True if a Pod, or those of a template, have Istio's proxy: by container, label, annotation or namespace."""
    containers = (*as_objects(spec, "containers"), *as_objects(spec, "initContainers"))
    if any(c.get("name") == PROXY_CONTAINER and c.get("image") for c in containers):
        return True
    for values in (labels, annotations):
        if INJECT in values:
            return bool(values[INJECT] == "true")
    return namespaces.get(namespace, {}).get("istio-injection") == "enabled"
