"""The Services of a Kubernetes that a Galley tells of, joined with their endpoints, pods and nodes.

A change is told of the services that it touches. Where a Galley also makes synthetic service entries of its Services,
those are used instead: they hold the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from mesh_pilot.model.events import Endpoints, Item, item_key
from mesh_pilot.model.service import NOWHERE, Endpoint, Locality, ServiceKey
from mesh_pilot.sources.mcp.here import Here
from mesh_pilot.sources.mcp.kubernetes import (
    LOCALITY,
    NETWORK,
    Address,
    KubernetesEndpoints,
    KubernetesService,
    KubernetesValue,
    Node,
    Pod,
)
from mesh_pilot.world.entries import TLS_MODE_LABEL

T = TypeVar("T")

Key = tuple[str, ...]


class Cluster:
    """State: the objects by name, who depends on which pod and node, and the items that were told."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._services: dict[str, KubernetesService] = {}
        self._endpoints: dict[str, KubernetesEndpoints] = {}
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._served_by: defaultdict[str, set[str]] = defaultdict(set)
        """By pod, the services that have an address of it."""
        self._runs_on: defaultdict[str, set[str]] = defaultdict(set)
        """By node, the services that have an address on it."""
        self._synthetic: set[str] = set()
        self._told: dict[str, tuple[Item, ...]] = {}

    def __repr__(self) -> str:
        return f"<Cluster {len(self._services)} services, {len(self._pods)} pods, {len(self._nodes)} nodes>"

    def __len__(self) -> int:
        """How many items are in force."""
        return sum(map(len, self._told.values()))

    @property
    def items(self) -> tuple[Item, ...]:
        """Everything in force."""
        return tuple(item for items in self._told.values() for item in items)

    def change(
        self, put: Mapping[str, KubernetesValue], dropped: Mapping[str, KubernetesValue]
    ) -> Iterator[Item | Key]:
        """Take in objects that came, changed and went, by name: items that are new, and keys of what is gone."""
        touched: dict[str, None] = {}
        for name, value in dropped.items():
            if name not in put:
                touched |= dict.fromkeys(self._take(name, value, there=False))
        for name, value in put.items():
            touched |= dict.fromkeys(self._take(name, value, there=True))
        for name in touched:
            yield from self._tell(name)

    def change_synthetic(self, came: Iterable[str], gone: Iterable[str]) -> Iterator[Item | Key]:
        """Take in which services have a synthetic service entry."""
        before = set(self._synthetic)
        self._synthetic.difference_update(gone)
        self._synthetic.update(came)
        for name in sorted(before ^ self._synthetic):
            yield from self._tell(name)

    def _take(self, name: str, value: KubernetesValue, *, there: bool) -> Iterable[str]:
        """Hold an object, or let go of it: which services it touches."""
        match value:
            case KubernetesService():
                _hold(self._services, name, value if there else None)
                return (name,)
            case KubernetesEndpoints():
                self._unlink(name)
                _hold(self._endpoints, name, value if there else None)
                self._link(name)
                return (name,)
            case Pod():
                if there and self._pods.get(name) == value:
                    return ()
                services = sorted(self._served_by.get(name, ()))
                for service in services:
                    self._unlink(service)
                _hold(self._pods, name, value if there else None)
                for service in services:
                    self._link(service)
                return services
            case Node():
                if there and self._nodes.get(name) == value:
                    return ()
                _hold(self._nodes, name, value if there else None)
                return sorted(self._runs_on.get(name, ()))

    def _unlink(self, service: str) -> None:
        for pod, node in self._places(service):
            for index, key in ((self._served_by, pod), (self._runs_on, node)):
                index[key].discard(service)
                if not index[key]:
                    del index[key]

    def _link(self, service: str) -> None:
        for pod, node in self._places(service):
            self._served_by[pod].add(service)
            self._runs_on[node].add(service)

    def _places(self, service: str) -> set[tuple[str, str]]:
        """The pods of a service's addresses, each with its node."""
        held = self._endpoints.get(service)
        return {(address.pod, self._node_of(address)) for address in held.addresses} if held else set()

    def _node_of(self, address: Address) -> str:
        pod = self._pods.get(address.pod)
        return address.node or (pod.node if pod else "")

    def _tell(self, name: str) -> Iterator[Item | Key]:
        before = {item_key(item): item for item in self._told.get(name, ())}
        now = {item_key(item): item for item in self._items(name)}
        if now:
            self._told[name] = tuple(now.values())
        else:
            self._told.pop(name, None)
        yield from (key for key in before if key not in now)
        yield from (item for key, item in now.items() if before.get(key) != item)

    def _items(self, name: str) -> tuple[Item, ...]:
        """What there is to say of a service."""
        held = self._services.get(name)
        if held is None or name in self._synthetic:
            return ()
        service = held.service
        if held.external_name:
            found = [Endpoint(held.external_name, port.target_port or port.number, port.name) for port in service.ports]
        else:
            known = {port.name for port in service.ports}
            at = self._endpoints.get(name, KubernetesEndpoints(()))
            served = (a for a in at.addresses if a.service_port in known and (a.ready or held.with_unready))
            found = [self._endpoint(address, service.key) for address in served]
        return (service, Endpoints(service.key, tuple(found)))

    def _endpoint(self, address: Address, service: ServiceKey) -> Endpoint:
        pod = self._pods.get(address.pod)
        node = self._nodes.get(self._node_of(address))
        if pod is None:
            where = node.locality if node else NOWHERE
            return Endpoint(address.ip, address.port, address.service_port, locality=where, namespace=service.namespace)
        said = pod.labels.get(LOCALITY, "").replace(".", "/")
        namespace = address.pod.partition("/")[0]
        account = f"spiffe://{self._here.trust_domain}/ns/{namespace}/sa/{pod.account}" if pod.account else ""
        return Endpoint(
            address=address.ip,
            port=address.port,
            service_port=address.service_port,
            labels=pod.labels,
            locality=Locality.parse(said) if said else node.locality if node else NOWHERE,
            network=pod.labels.get(NETWORK, ""),
            service_account=account,
            tls_mode="istio" if pod.labels.get(TLS_MODE_LABEL) == "istio" else "",
            namespace=namespace,
            workload=pod.workload,
        )


def _hold(held: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        held.pop(name, None)
    else:
        held[name] = value
