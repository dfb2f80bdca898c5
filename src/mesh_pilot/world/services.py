"""Writes the indexes of services: merged from registries and ServiceEntries, by host, visibility and address.

Registries with the same host in the same namespace are merged: the service has the ports of all (of two with one
number the first), and all endpoints. Of several ServiceEntries for one host in one namespace the oldest declares the
service. Younger ones with the same resolution and location add ports that it lacks; the endpoints of all are used, for
the ports whose numbers their own ServiceEntries give them (see ``service_versions``).

Why tables that note what is stale, and not derived values: a service has facets that follow from all others (aliases
that lead to it, an address that no other has, its place among those of its host), and a flap of one endpoint must cost
that service alone. The memo table would have to remember a read for each pair; a table knows what a write concerns.
So each kind of input has its table, which says in ``Stale`` what it touched, and ``flush`` goes the way that
data goes: WorkloadEntries to ServiceEntries' endpoints, versions to services, then endpoints, which need both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.engine.failures import OBJECT
from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.aliases import ServiceAliases
from mesh_pilot.world.auto_addresses import ServiceAddresses
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.endpoints import EndpointTable
from mesh_pilot.world.entries import EntryTable
from mesh_pilot.world.exports import NOWHERE, ExportTable
from mesh_pilot.world.indexes import Indexes, Isolated
from mesh_pilot.world.names import export_namespaces
from mesh_pilot.world.registries import RegistryTable
from mesh_pilot.world.service_versions import declared_service, merged_service
from mesh_pilot.world.stale import Stale
from mesh_pilot.world.workloads import Labels, WorkloadTable

Merged = dict[ServiceKey, Service | None]
"""Services that are about to be written; None: to be removed."""


class ServiceTable(Copied):
    """Merges services. ``flush`` writes the indexes.

    State: the tables of what goes in (`workloads`, `registries`, `entries`) and what `_stale` they made; the facets of
    services that follow from all of them (`_aliases`, `_auto_addresses`, `_exports`), `endpoints`; and the services of
    which the index says only whether there are any, `_of_several_clusters` and `_bound_to_nodes`.
    """

    def __init__(self, indexes: Indexes, isolated: Isolated, touched: Callable[[tuple[Hashable, ...]], None]) -> None:
        """``touched`` is told of each change: ``("service", host)``, ``("endpoints", key)``, ``("registry",)`` if
        there is a registry now, or none any more."""
        self._touched = touched
        self._indexes = indexes
        self._isolated = isolated
        self._stale = Stale()
        self.workloads = WorkloadTable(indexes.workload_entries_at, self._workload_changed)
        self.registries = RegistryTable(indexes, self._stale, self.workloads)
        self.entries = EntryTable(indexes, isolated, self._stale, self.workloads)
        self.endpoints = EndpointTable(indexes, isolated, self.registries, self.entries, self._age)
        self._aliases = ServiceAliases()
        self._auto_addresses = ServiceAddresses()
        self._exports = ExportTable(indexes)
        self._of_several_clusters: set[ServiceKey] = set()
        self._bound_to_nodes: set[ServiceKey] = set()

    def _workload_changed(self, namespace: str, labels: Sequence[Labels]) -> None:
        self.entries.workload_changed(namespace, labels)
        self.registries.workload_changed(namespace, labels)

    def mesh_changed(self, before: MeshConfig, mesh: MeshConfig) -> None:
        """Recompute identities if the trust domain changed, and visibility if its default changed."""
        if before.trust_domain != mesh.trust_domain:
            self.entries.trust_domain_changed()
            self.registries.trust_domain_changed()
        if before.service_entry_visibility != mesh.service_entry_visibility:
            self.entries.put_again()
        if before.default_service_export_to != mesh.default_service_export_to:
            keys = (s.key for _, s in self._indexes.services.items() if s is not None)
            self._stale.services.update(dict.fromkeys(keys))

    def namespace_changed(self, namespace: str) -> None:
        """Recompute which ServiceEntries of a namespace can be seen, which may depend on its labels."""
        if self._indexes.mesh.peek(()).service_entry_visibility is not None:
            self.entries.put_again(namespace)

    def count(self) -> int:
        """The approximate number of services."""
        return len(self.registries) + len(self.entries)

    def reshard(self) -> None:
        """Distribute services over a new number of shards."""
        self._exports.reshard()

    def flush(self) -> None:
        indexes, stale = self._indexes, self._stale
        self.entries.flush()
        self.workloads.flush()
        if stale.services:  # endpoints flap, services do not
            for key, service in self._merge_stale().items():
                self._write(key, service)
            stale.services.clear()
            indexes.has_cluster_addresses[()] = bool(self._of_several_clusters)
            indexes.has_node_services[()] = bool(self._bound_to_nodes)
        had_registry = indexes.has_registry.peek(())
        self.registries.flush()
        if indexes.has_registry.peek(()) != had_registry:
            self._touched(("registry",))
        self._exports.flush()
        written = self.endpoints.write(stale.endpoints)
        stale.endpoints.clear()
        for key in written:
            self._touched(("endpoints", key))

    def _merge_stale(self) -> Merged:
        """The stale services, and others that are stale because of them."""
        merged: Merged = {}
        for key in self._stale.services:
            with self._isolated(("merged service", key), OBJECT, f"service {key.namespace}/{key.host}"):
                merged[key] = self._merged(key)
        there = {key.host.lower() for key, service in merged.items() if service is not None}
        named = self._indexes.services_named

        def exists(host: str) -> bool:
            return host in there or any(each.key not in merged for each in named.peek(host))

        for host in self._aliases.put(merged, exists):
            for each in named.peek(host):
                if each.key not in merged:
                    merged[each.key] = self._merged(each.key)
        self._make_aliases(merged)
        moved = {key: self._merged(key) for key in self._auto_addresses.put(merged) if key not in merged}
        self._make_aliases(moved)
        merged |= {key: service for key, service in moved.items() if service is not None}
        return {key: self._auto_addresses.apply(service) if service else None for key, service in merged.items()}

    def _make_aliases(self, merged: Merged) -> None:
        for key, service in merged.items():
            if service is not None:
                merged[key] = self._aliases.apply(service)

    def _merged(self, key: ServiceKey) -> Service | None:
        versions = list(self.registries.versions(key))
        if declared := self.entries.versions(key):
            versions.append(declared_service(declared))
        return merged_service(versions) if versions else None

    def _write(self, key: ServiceKey, service: Service | None) -> None:
        indexes = self._indexes
        default = indexes.mesh.peek(()).default_service_export_to
        namespaces = export_namespaces(service.export_to, default, service.namespace) if service else NOWHERE
        _set(self._of_several_clusters, key, service is not None and self._is_of_several_clusters(service))
        if indexes.services.peek(key) == service and self._exports.namespaces(key) == namespaces:
            return
        age, ports = self._age(key), self._port_names(key)
        indexes.services[key] = service
        if self._port_names(key) != ports:
            self._stale.endpoints[key] = None  # they are joined to ports by name
        if self._age(key) != age and self.endpoints.has_any(key):
            self._stale.endpoints[key] = None  # the order of the services at an address
        _set(self._bound_to_nodes, key, service is not None and service.depends_on_node)
        self._exports.put(key, service, namespaces)
        named = [each for each in indexes.services_named.peek(key.host) if each.key != key]
        named += (service,) if service is not None else ()
        indexes.services_named[key.host] = tuple(sorted(named, key=lambda each: each.order))
        self._touched(("service", key.host))

    def _age(self, key: ServiceKey) -> tuple[object, ...]:
        service = self._indexes.services.peek(key)
        return (service is None, service.order) if service else (True, key)

    def _port_names(self, key: ServiceKey) -> tuple[tuple[int, str], ...]:
        service = self._indexes.services.peek(key)
        return tuple((port.number, port.name) for port in service.ports) if service is not None else ()

    def _is_of_several_clusters(self, service: Service) -> bool:
        """True for one with other addresses in another cluster, and for a headless one that several have: names of its
        workloads may be at home in each."""
        if service.cluster_addresses:
            return True
        versions = self.registries.versions(service.key)
        return len(versions) > 1 and versions[0].headless and len({each.cluster_id for each in versions}) > 1


def _set(table: set[ServiceKey], key: ServiceKey, is_in: bool) -> None:
    if is_in:
        table.add(key)
    else:
        table.discard(key)
