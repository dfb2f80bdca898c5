"""Kubernetes' Services joined with their endpoints, pods, nodes and namespaces into services of the mesh.

The join is incremental: a changed object costs the services that it is part of, and what is used of an object decides
whether it has changed. A service for which a Galley also has a synthetic ServiceEntry is left out: the entry says the
same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import attrs

from mesh_pilot.istio.kubernetes.cluster_sets import (
    CLUSTER_SET_DOMAIN,
    ClusterSetMode,
    ServiceExportObject,
    ServiceImportObject,
)
from mesh_pilot.istio.kubernetes.objects import (
    NETWORK_LABEL,
    AddressGroup,
    EndpointAddress,
    EndpointsObject,
    KubernetesObject,
    NamespaceObject,
    NodeObject,
    PodObject,
    ServiceObject,
    service_host,
)
from mesh_pilot.model.events import Endpoints, Item
from mesh_pilot.model.service import (
    LOCALITY_LABEL,
    MESH_TLS_MODE,
    NOWHERE,
    TLS_MODE_LABEL,
    Endpoint,
    Health,
    Locality,
    ServiceKey,
    TrafficDistribution,
)

T = TypeVar("T")

JoinedObject = KubernetesObject | ServiceExportObject | ServiceImportObject
"""An object that a service may be made of."""

_Index = dict[str, tuple[str, ...]]
"""Names by key, in no order: nearly always one, for which a tuple is a fourth of a set."""


class KubernetesServices:
    """The services of one Kubernetes cluster. Names are ``namespace/name``, of nodes and namespaces ``name``.

    State: the objects by name; `_sets_of`, by service, its sets of endpoints; for each pod, and each address that names
    no pod, the sets that have it; `_pods_at` and `_pods_on`, pods by address and by node; `_built`, the endpoints of
    sets, and `_fresh`, the sets of which nothing has changed since; `_gateways`, the services at nodes; `_synthetic`,
    the services of synthetic ServiceEntries.
    """

    def __init__(
        self,
        *,
        cluster_id: str = "",
        system_namespace: str = "",
        needs_pods: bool = False,
        cluster_set: ClusterSetMode = ClusterSetMode.OFF,
    ) -> None:
        """``cluster_id``: that of its endpoints. ``system_namespace``: its network is that of pods that say none.

        ``needs_pods``: an address of a pod is not an endpoint before the pod is known, because without it clients would
        not know its identity.
        """
        self._cluster_id = cluster_id
        self._cluster_set = cluster_set
        self._exports: dict[str, ServiceExportObject] = {}
        self._imports: dict[str, ServiceImportObject] = {}
        self._system_namespace = system_namespace
        self._needs_pods = needs_pods
        self._services: dict[str, ServiceObject] = {}
        self._endpoints: dict[str, EndpointsObject] = {}
        self._pods: dict[str, PodObject] = {}
        self._nodes: dict[str, NodeObject] = {}
        self._namespaces: dict[str, NamespaceObject] = {}
        self._sets_of: _Index = {}
        self._sets_with_pod: _Index = {}
        self._sets_with_address: _Index = {}
        self._pods_at: _Index = {}
        self._pods_on: defaultdict[str, set[str]] = defaultdict(set)
        self._built: dict[str, tuple[Endpoint, ...]] = {}
        self._fresh: set[str] = set()
        self._gateways: set[str] = set()
        self._synthetic: set[str] = set()

    def __repr__(self) -> str:
        counts = f"{len(self._services)} services, {len(self._pods)} pods, {len(self._nodes)} nodes"
        return f"<KubernetesServices {counts}>"

    def names(self) -> Iterable[str]:
        """The names of all services."""
        return self._services.keys()

    def pending_pods(self) -> int:
        """The number of pods that addresses name and that are not known."""
        return len(self._sets_with_pod.keys() - self._pods.keys())

    def apply(self, upserted: Mapping[str, JoinedObject], removed: Mapping[str, JoinedObject]) -> Iterable[str]:
        """Apply changed objects. Returns the names of the services whose items may differ."""
        affected: dict[str, None] = {}
        for name, value in removed.items():
            if name not in upserted:
                affected |= dict.fromkeys(self.remove(type(value), name))
        for name, value in upserted.items():
            affected |= dict.fromkeys(self.put(name, value))
        return affected

    def put(self, name: str, value: JoinedObject) -> Iterable[str]:
        """Put one object. Returns the names of the services whose items may differ."""
        match value:
            case ServiceObject():
                return self._set_service(name, value)
            case EndpointsObject():
                return self._set_endpoints(name, value)
            case PodObject():
                return self._set_pod(name, value)
            case NodeObject():
                return self._set_node(name, value)
            case NamespaceObject():
                return self._set_namespace(name, value)
            case ServiceExportObject():
                return self._set_of_cluster_set(self._exports, name, value)
            case ServiceImportObject():
                return self._set_of_cluster_set(self._imports, name, value)

    def remove(self, kind: type[JoinedObject], name: str) -> Iterable[str]:
        """The same for an object that is gone."""
        if kind is ServiceExportObject:
            return self._set_of_cluster_set(self._exports, name, None)
        if kind is ServiceImportObject:
            return self._set_of_cluster_set(self._imports, name, None)
        if kind is ServiceObject:
            return self._set_service(name, None)
        if kind is EndpointsObject:
            return self._set_endpoints(name, None)
        if kind is PodObject:
            return self._set_pod(name, None)
        if kind is NodeObject:
            return self._set_node(name, None)
        return self._set_namespace(name, None)

    def apply_synthetic(self, upserted: Iterable[str], removed: Iterable[str]) -> Iterable[str]:
        """The same for synthetic ServiceEntries, by name: those services are left out."""
        before = set(self._synthetic)
        self._synthetic.difference_update(removed)
        self._synthetic.update(upserted)
        return sorted(before ^ self._synthetic)

    def items(self, name: str) -> tuple[Item, ...]:
        """A service and its endpoints, also by its host in the cluster set; empty if there is no such service."""
        found = self._services.get(name)
        if name in self._synthetic:
            return ()
        if not self._cluster_set.has_hosts:
            return self._own_items(name, found) if found is not None else ()
        imported = self._imports.get(name)
        items = self._own_items(name, found) if found is not None else ()
        if imported is not None:
            items = (*items, imported.of(found))
        if found is not None and (imported is not None or name in self._exports) and not found.external_name:
            namespace, _, short = name.partition("/")
            key = ServiceKey(service_host(short, namespace, CLUSTER_SET_DOMAIN), namespace)
            items = (*items, Endpoints(key, self._visible(name, self._endpoints_of(name, found), set_host=True)))
        return items

    def _own_items(self, name: str, found: ServiceObject) -> tuple[Item, ...]:
        service = found.service
        distribution = self._distribution(name, found)
        addresses = service.external_addresses
        if found.node_selector is not None:
            addresses = (*self._node_addresses(found.node_selector), *addresses)
        if distribution is not service.traffic_distribution or addresses != service.external_addresses:
            service = attrs.evolve(service, traffic_distribution=distribution, external_addresses=addresses)
        return (service, Endpoints(service.key, self._visible(name, self._endpoints_of(name, found))))

    def _visible(self, name: str, endpoints: tuple[Endpoint, ...], *, set_host: bool = False) -> tuple[Endpoint, ...]:
        """Endpoints of a service, marked as private where only clients of the same cluster may use them."""
        if not self._cluster_set.is_private(exported=name in self._exports, set_host=set_host):
            return endpoints
        return tuple([attrs.evolve(endpoint, is_private=True) for endpoint in endpoints])

    # -- endpoints

    def _endpoints_of(self, name: str, found: ServiceObject) -> tuple[Endpoint, ...]:
        service = found.service
        if found.external_name:
            external, labels = found.external_name, service.labels
            return tuple(Endpoint(external, port.number, port.name, labels=labels) for port in service.ports)
        sets = [self._endpoints_in(key) for key in sorted(self._sets_of.get(name, ()))]
        names = {port.name for port in service.ports}
        if len(sets) == 1:
            (only,) = sets
            return only if all(e.service_port in names for e in only) else tuple(_named(only, names))
        merged: dict[tuple[str, int, str], Endpoint] = {}
        for endpoint in (endpoint for each in sets for endpoint in _named(each, names)):
            # One that moves from one slice to another is in both for a while.
            key = (endpoint.address, endpoint.port, endpoint.service_port)
            if key not in merged or merged[key].health is not Health.HEALTHY:
                merged[key] = endpoint
        return tuple(merged.values())

    def _endpoints_in(self, key: str) -> tuple[Endpoint, ...]:
        """The endpoints of one set."""
        built = self._built.get(key, ())
        if key not in self._fresh:
            found = self._endpoints[key]
            service = self._services[found.service]
            namespace = found.service.partition("/")[0]
            states = _states(service, self._distribution(found.service, service))
            dual = len(service.service.addresses) > 1
            made = [endpoint for group in found.groups for endpoint in self._made(group, namespace, states, dual=dual)]
            # What stays the same stays the same object, so that whoever compares it is quick.
            before = {(endpoint.address, endpoint.service_port): endpoint for endpoint in built}
            kept = ((before.get((endpoint.address, endpoint.service_port)), endpoint) for endpoint in made)
            built = self._built[key] = tuple([old if old == new else new for old, new in kept])
            self._fresh.add(key)
        return built

    def _made(
        self, group: AddressGroup, namespace: str, states: Mapping[Health, Health], *, dual: bool
    ) -> Iterator[Endpoint]:
        """The endpoints of a group. ``dual``: its service has both IP versions, and so a slice for each."""
        network = self._network()
        for address in group.addresses:
            pod = self._pod_of(address, namespace)
            if pod is None:
                if address.pod and self._needs_pods:
                    continue
                for name, number in group.ports:
                    yield Endpoint(
                        address.ip,
                        number,
                        name,
                        network=network,
                        cluster_id=self._cluster_id,
                        namespace=namespace,
                        health=states[address.health],
                    )
                continue
            addresses: tuple[str, ...] = (address.ip,)
            if dual and address.pod and len(pod.addresses) > 1:
                if ":" in address.ip:
                    continue  # it is in the other slice, too
                addresses = pod.addresses
            locality = self._locality(pod)
            own_namespace = address.pod.partition("/")[0] or namespace
            for name, number in group.ports:
                yield Endpoint(
                    address=addresses[0],
                    additional_addresses=addresses[1:],
                    port=number,
                    service_port=name,
                    labels=pod.labels,
                    locality=locality,
                    network=pod.labels.get(NETWORK_LABEL) or network,
                    cluster_id=self._cluster_id,
                    service_account=pod.account,
                    tls_mode=MESH_TLS_MODE if pod.labels.get(TLS_MODE_LABEL) == MESH_TLS_MODE else "",
                    namespace=own_namespace,
                    workload=pod.workload,
                    node=pod.node,
                    host_name=pod.host_name,
                    health=states[address.health],
                )

    def _pod_of(self, address: EndpointAddress, namespace: str) -> PodObject | None:
        """The pod of an address: the one that it names, else the one that serves there in the namespace."""
        if address.pod:
            return self._pods.get(address.pod)
        for name in sorted(self._pods_at.get(address.ip, ())):
            if name.startswith(f"{namespace}/") and self._pods[name].serves:
                return self._pods[name]
        return None

    def _locality(self, pod: PodObject) -> Locality:
        if label := pod.labels.get(LOCALITY_LABEL):
            return Locality.of_labels({LOCALITY_LABEL: label})
        node = self._nodes.get(pod.node)
        return node.locality if node is not None else NOWHERE

    def _network(self) -> str:
        namespace = self._namespaces.get(self._system_namespace)
        return namespace.network if namespace is not None else ""

    def _distribution(self, name: str, found: ServiceObject) -> TrafficDistribution:
        if found.distribution is not None:
            return found.distribution
        namespace = self._namespaces.get(name.partition("/")[0])
        return (namespace.distribution if namespace is not None else None) or TrafficDistribution.ANY

    def _node_addresses(self, selector: Mapping[str, str]) -> Iterator[str]:
        for _, node in sorted(self._nodes.items()):
            if node.external_address and selector.items() <= node.labels.items():
                yield node.external_address

    # -- objects

    def _set_service(self, name: str, value: ServiceObject | None) -> Iterable[str]:
        if self._services.get(name) == value:
            return ()
        _set(self._services, name, value)
        self._gateways.discard(name)
        if value is not None and value.node_selector is not None:
            self._gateways.add(name)
        for key in self._sets_of.get(name, ()):
            self._fresh.discard(key)
        return (name,)

    def _set_endpoints(self, name: str, value: EndpointsObject | None) -> Iterable[str]:
        before = self._endpoints.get(name)
        if before == value:
            return ()
        affected = dict.fromkeys(each.service for each in (before, value) if each is not None)
        if before is not None:
            for index, key in self._references(before):
                _discard(index, key, name)
            _discard(self._sets_of, before.service, name)
        _set(self._endpoints, name, value)
        self._fresh.discard(name)
        if value is None:
            self._built.pop(name, None)
        else:
            for index, key in self._references(value):
                _add(index, key, name)
            _add(self._sets_of, value.service, name)
        return affected

    def _references(self, found: EndpointsObject) -> Iterator[tuple[_Index, str]]:
        """The pod of each address, or the address where it names none."""
        for group in found.groups:
            for address in group.addresses:
                yield (self._sets_with_pod, address.pod) if address.pod else (self._sets_with_address, address.ip)

    def _set_pod(self, name: str, value: PodObject | None) -> Iterable[str]:
        before = self._pods.get(name)
        if before == value:
            return ()
        sets = set(self._sets_with_pod.get(name, ()))
        same = before is not None and value is not None and attrs.evolve(before, serves=value.serves) == value
        if same:
            sets.clear()  # an address that names a pod has its own conditions
        for pod in (before, value):
            for address in pod.addresses if pod is not None else ():
                sets.update(self._sets_with_address.get(address, ()))
        if before is not None:
            for address in before.addresses:
                _discard(self._pods_at, address, name)
            self._pods_on[before.node].discard(name)
            if not self._pods_on[before.node]:
                del self._pods_on[before.node]
        _set(self._pods, name, value)
        if value is not None:
            for address in value.addresses:
                _add(self._pods_at, address, name)
            self._pods_on[value.node].add(name)
        return self._stale(sets)

    def _set_node(self, name: str, value: NodeObject | None) -> Iterable[str]:
        before = self._nodes.get(name)
        if before == value:
            return ()
        _set(self._nodes, name, value)
        affected: dict[str, None] = {}
        if (before.locality if before else NOWHERE) != (value.locality if value else NOWHERE):
            affected |= dict.fromkeys(self._stale(self._sets_with(self._pods_on.get(name, ()))))
        addresses = {node.external_address for node in (before, value) if node is not None}
        return affected | (dict.fromkeys(sorted(self._gateways)) if addresses != {""} else {})

    def _sets_with(self, pods: Iterable[str]) -> Iterator[str]:
        """The sets that have any of these pods."""
        for name in pods:
            yield from self._sets_with_pod.get(name, ())
            for address in self._pods[name].addresses:
                yield from self._sets_with_address.get(address, ())

    def _set_namespace(self, name: str, value: NamespaceObject | None) -> Iterable[str]:
        before = self._namespaces.get(name)
        if before == value:
            return ()
        _set(self._namespaces, name, value)
        empty = NamespaceObject()
        old, new = before or empty, value or empty
        if name == self._system_namespace and old.network != new.network:
            self._fresh.clear()
            return sorted(self._services)
        if old.distribution == new.distribution:
            return ()
        own = [service for service in self._services if service.startswith(f"{name}/")]
        for key in (key for service in own for key in self._sets_of.get(service, ())):
            self._fresh.discard(key)
        return sorted(own)

    def _set_of_cluster_set(self, objects: dict[str, T], name: str, value: T | None) -> Iterable[str]:
        if objects.get(name) == value:
            return ()
        _set(objects, name, value)
        return (name,)

    def _stale(self, sets: Iterable[str]) -> list[str]:
        """Sets are to be built again; returns their services."""
        services: dict[str, None] = {}
        for key in sets:
            self._fresh.discard(key)
            services[self._endpoints[key].service] = None
        return sorted(services)


def _states(service: ServiceObject, distribution: TrafficDistribution) -> Mapping[Health, Health]:
    """The health of endpoints by that of their addresses: clients are told only what they can use."""
    draining = Health.DRAINING if service.keeps_sessions else Health.UNLISTED
    # Who prefers some endpoints has to know how many of them are well.
    unready = Health.UNLISTED if distribution is TrafficDistribution.ANY else Health.UNHEALTHY
    return {
        Health.HEALTHY: Health.HEALTHY,
        Health.UNHEALTHY: unready,
        Health.DRAINING: draining,
        Health.UNLISTED: Health.UNLISTED,
    }


def _named(endpoints: Iterable[Endpoint], names: Iterable[str]) -> Iterator[Endpoint]:
    """The endpoints of these ports."""
    return (endpoint for endpoint in endpoints if endpoint.service_port in names)


def _set(objects: dict[str, T], name: str, value: T | None) -> None:
    if value is None:
        objects.pop(name, None)
    else:
        objects[name] = value


def _add(index: _Index, key: str, name: str) -> None:
    names = index.get(key, ())
    if name not in names:
        index[key] = (*names, name)


def _discard(index: _Index, key: str, name: str) -> None:
    if left := tuple(each for each in index.get(key, ()) if each != name):
        index[key] = left
    else:
        index.pop(key, None)
