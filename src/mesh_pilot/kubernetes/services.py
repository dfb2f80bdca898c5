"""Kubernetes' Services joined with their Endpoints, pods and nodes into services of the mesh, incrementally.

A changed object costs the services that it is part of. A service for which a Galley also has a synthetic ServiceEntry
is left out: the entry says the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from mesh_pilot.kubernetes.objects import (
    LOCALITY_LABEL,
    NETWORK_LABEL,
    AddressPort,
    EndpointsObject,
    KubernetesObject,
    NodeObject,
    PodObject,
    ServiceObject,
)
from mesh_pilot.model.events import Endpoints, Item
from mesh_pilot.model.service import MESH_TLS_MODE, NOWHERE, TLS_MODE_LABEL, Endpoint, Locality, ServiceKey
from mesh_pilot.model.spiffe import qualified, workload_path

T = TypeVar("T")


class KubernetesServices:
    """The services of one Kubernetes cluster. Names are ``namespace/name``, of nodes ``name``.

    State: the objects by name; for each pod and node, the services that depend on it; synthetic ServiceEntries.
    """

    def __init__(self, trust_domain: str = "cluster.local") -> None:
        self._trust_domain = trust_domain
        self._services: dict[str, ServiceObject] = {}
        self._endpoints: dict[str, EndpointsObject] = {}
        self._pods: dict[str, PodObject] = {}
        self._nodes: dict[str, NodeObject] = {}
        self._services_of_pod: defaultdict[str, set[str]] = defaultdict(set)
        self._services_of_node: defaultdict[str, set[str]] = defaultdict(set)
        self._synthetic: set[str] = set()

    def __repr__(self) -> str:
        counts = f"{len(self._services)} services, {len(self._pods)} pods, {len(self._nodes)} nodes"
        return f"<KubernetesServices {counts}>"

    def apply(self, upserted: Mapping[str, KubernetesObject], removed: Mapping[str, KubernetesObject]) -> Iterable[str]:
        """Apply changed objects. Returns the names of the services whose items may differ."""
        affected: dict[str, None] = {}
        for name, value in removed.items():
            if name not in upserted:
                affected |= dict.fromkeys(self._store(name, value, present=False))
        for name, value in upserted.items():
            affected |= dict.fromkeys(self._store(name, value, present=True))
        return affected

    def apply_synthetic(self, upserted: Iterable[str], removed: Iterable[str]) -> Iterable[str]:
        """The same for synthetic ServiceEntries, by name: those services are left out."""
        before = set(self._synthetic)
        self._synthetic.difference_update(removed)
        self._synthetic.update(upserted)
        return sorted(before ^ self._synthetic)

    def items(self, name: str) -> tuple[Item, ...]:
        """A service and its endpoints; empty if there is no such service."""
        found = self._services.get(name)
        if found is None or name in self._synthetic:
            return ()
        service = found.service
        if found.external_name:
            ports = service.ports
            endpoints = [Endpoint(found.external_name, port.target_port or port.number, port.name) for port in ports]
        else:
            names = {port.name for port in service.ports}
            addresses = self._endpoints.get(name, EndpointsObject(())).addresses
            serving = (a for a in addresses if a.service_port in names and (a.ready or found.with_unready))
            endpoints = [self._endpoint(address, service.key) for address in serving]
        return (service, Endpoints(service.key, tuple(endpoints)))

    def _store(self, name: str, value: KubernetesObject, *, present: bool) -> Iterable[str]:
        """Store or remove an object; returns the services that it affects."""
        match value:
            case ServiceObject():
                _set(self._services, name, value if present else None)
                return (name,)
            case EndpointsObject():
                self._unlink(name)
                _set(self._endpoints, name, value if present else None)
                self._link(name)
                return (name,)
            case PodObject():
                if present and self._pods.get(name) == value:
                    return ()
                # A pod names the node of its addresses: its services depend on another node if it has moved.
                services = sorted(self._services_of_pod.get(name, ()))
                for service in services:
                    self._unlink(service)
                _set(self._pods, name, value if present else None)
                for service in services:
                    self._link(service)
                return services
            case NodeObject():
                if present and self._nodes.get(name) == value:
                    return ()
                _set(self._nodes, name, value if present else None)
                return sorted(self._services_of_node.get(name, ()))

    def _unlink(self, service: str) -> None:
        for pod, node in self._dependencies(service):
            for index, key in ((self._services_of_pod, pod), (self._services_of_node, node)):
                index[key].discard(service)
                if not index[key]:
                    del index[key]

    def _link(self, service: str) -> None:
        for pod, node in self._dependencies(service):
            self._services_of_pod[pod].add(service)
            self._services_of_node[node].add(service)

    def _dependencies(self, service: str) -> set[tuple[str, str]]:
        """The pod and node of each address of a service."""
        endpoints = self._endpoints.get(service)
        return {(address.pod, self._node_of(address)) for address in endpoints.addresses} if endpoints else set()

    def _node_of(self, address: AddressPort) -> str:
        pod = self._pods.get(address.pod)
        return address.node or (pod.node if pod else "")

    def _endpoint(self, address: AddressPort, service: ServiceKey) -> Endpoint:
        pod = self._pods.get(address.pod)
        node = self._nodes.get(self._node_of(address))
        locality = node.locality if node else NOWHERE
        if pod is None:
            return Endpoint(
                address.ip, address.port, address.service_port, locality=locality, namespace=service.namespace
            )
        if label := pod.labels.get(LOCALITY_LABEL, "").replace(".", "/"):
            locality = Locality.parse(label)
        namespace = address.pod.partition("/")[0]
        account = qualified(workload_path(namespace, pod.account), self._trust_domain) if pod.account else ""
        return Endpoint(
            address=address.ip,
            port=address.port,
            service_port=address.service_port,
            labels=pod.labels,
            locality=locality,
            network=pod.labels.get(NETWORK_LABEL, ""),
            service_account=account,
            tls_mode=MESH_TLS_MODE if pod.labels.get(TLS_MODE_LABEL) == MESH_TLS_MODE else "",
            namespace=namespace,
            workload=pod.workload,
        )


def _set(objects: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        objects.pop(name, None)
    else:
        objects[name] = value
