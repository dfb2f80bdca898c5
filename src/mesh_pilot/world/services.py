"""Writes the indexes of services: merged from registries and ServiceEntries, by host, visibility and address.

Registries with the same host in the same namespace are merged: the service has the ports of all (of two with one
number the first), and all endpoints. Of several ServiceEntries for one host in one namespace the oldest declares the
service. Younger ones with the same resolution and location add ports that it lacks; the endpoints of all are used, for
the ports whose numbers their own ServiceEntries give them (see ``service_versions``).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TypeVar

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.failures import OBJECT
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Endpoints, WorkloadHealth
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.service import Endpoint, Health, Resolution, Service, ServiceKey
from mesh_pilot.world.address_index import AddressIndex
from mesh_pilot.world.aliases import ServiceAliases
from mesh_pilot.world.auto_addresses import AutoAddresses, wants_address
from mesh_pilot.world.copying import copy_containers
from mesh_pilot.world.endpoint_identities import EndpointIdentities, lacks_trust_domain
from mesh_pilot.world.entry_visibility import seen_services
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.names import export_namespaces
from mesh_pilot.world.service_entries import (
    endpoints_of,
    from_template,
    group_of,
    is_auto_registered,
    may_join,
    selected_endpoints,
    selects,
    services_of,
    with_health,
)
from mesh_pilot.world.service_versions import declared_service, endpoints_by_number, merged_service
from mesh_pilot.world.shards import shard_of

T = TypeVar("T")

_HEALTHY, _UNLISTED = Health.HEALTHY, Health.UNLISTED

Isolated = Callable[[Hashable, str, str], AbstractContextManager[None]]
"""Given a key, the kind of a failure and the name of an object: an exception in the block costs that object only."""


class ServiceTable:
    """Takes services and endpoint sets of registries, ServiceEntries, WorkloadEntries and WorkloadGroups.

    ``flush`` writes the merged indexes.
    """

    def __init__(self, indexes: Indexes, isolated: Isolated, touched: Callable[[tuple[Hashable, ...]], None]) -> None:
        """``touched`` is told of each change: ``("service", host)``, ``("endpoints", key)``, ``("registry",)`` if
        there is a registry now, or none any more."""
        self._touched = touched
        self._indexes = indexes
        self._isolated = isolated
        self._registered: dict[ServiceKey, list[Service]] = {}
        self._registered_endpoints: dict[ServiceKey, list[Endpoints]] = {}
        self._external: dict[ServiceKey, list[Service]] = {}
        """Of the registries' versions of services those with external addresses."""
        self._has_stale_external = False
        self._of_several_clusters: set[ServiceKey] = set()
        self._bound_to_nodes: set[ServiceKey] = set()
        self._entries: dict[ConfigKey, Config] = {}
        self._declared: dict[ServiceKey, dict[ConfigKey, Service]] = defaultdict(dict)
        self._declared_endpoints: dict[ServiceKey, dict[ConfigKey, tuple[Endpoint, ...]]] = defaultdict(dict)
        self._selecting: dict[str, set[ConfigKey]] = defaultdict(set)
        """Namespace -> ServiceEntries with a workloadSelector."""
        self._selecting_services: dict[str, set[ServiceKey]] = defaultdict(set)
        """Namespace -> services of registries that select workloads by their labels."""
        self._workloads: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        self._written: dict[ConfigKey, Config] = {}
        """WorkloadEntries as their sources have them, without what comes from their groups and reports."""
        self._written_at: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        """The same by address, as it is usually written."""
        self._stale_addresses: dict[str, None] = {}
        self._health: dict[ConfigKey, WorkloadHealth] = {}
        self._groups: dict[ConfigKey, Config] = {}
        self._members: dict[ConfigKey, dict[ConfigKey, Config]] = defaultdict(dict)
        """By WorkloadGroup, its WorkloadEntries without the group's template."""
        self._group_of: dict[ConfigKey, ConfigKey] = {}
        self._stale_entries: dict[ConfigKey, None] = {}
        self._stale_services: dict[ServiceKey, None] = {}
        self._stale_endpoints: dict[ServiceKey, None] = {}
        self._named: dict[str, set[ServiceKey]] = defaultdict(set)
        self._exported: dict[tuple[str, int], dict[ServiceKey, Service]] = defaultdict(dict)
        """By namespace (or ``*``) and shard."""
        self._stale_exports: dict[tuple[str, int], None] = {}
        self._exported_to: dict[ServiceKey, frozenset[str]] = {}
        self._addressless: dict[str, dict[ServiceKey, datetime]] = {}
        """By host, the services that get an automatic address, and when they were created."""
        self.not_ready = 0
        """Endpoints that are not healthy."""
        self._unlisted: dict[ServiceKey, tuple[Endpoint, ...]] = {}
        """All endpoints of the services of which some are unlisted."""
        self._auto_addresses = AutoAddresses()
        self._aliases = ServiceAliases()
        self._identities = EndpointIdentities()
        self._addresses = AddressIndex(indexes.endpoints_at, self._age)

    def copy_to(self, other: ServiceTable) -> None:
        """Give another table, of a copy of the indexes, the state of this one."""
        copy_containers(self, other)
        other._auto_addresses = self._auto_addresses.copy()
        other._aliases = self._aliases.copy()

    # -- input

    def put_services(self, key: ServiceKey, services: list[Service]) -> bool:
        """Set the registries' versions of a service, in order of precedence. True if they changed."""
        if self._registered.get(key, []) == services:
            return False
        _put(self._registered, key, services)
        if any(map(_may_select, services)):
            self._selecting_services[key.namespace].add(key)
        else:
            self._selecting_services[key.namespace].discard(key)
        if self._workloads.get(key.namespace):
            self._stale_endpoints[key] = None
        self._stale_services[key] = None
        external = [service for service in services if service.external_addresses or service.network_gateways]
        if self._external.get(key, []) != external:
            _put(self._external, key, external)
            self._has_stale_external = True
        return True

    def put_endpoints(self, key: ServiceKey, endpoints: list[Endpoints]) -> bool:
        """Set the registries' endpoint sets of a service. True if they changed."""
        if self._registered_endpoints.get(key, []) == endpoints:
            return False
        _put(self._registered_endpoints, key, endpoints)
        self._stale_endpoints[key] = None
        return True

    def put_entry(self, key: ConfigKey, entry: Config | None) -> None:
        """Add, replace or (None) remove a ServiceEntry."""
        before = self._entries.pop(key, None)
        if before is not None:
            for service in services_of(before):
                self._declared[service.key].pop(key, None)
                self._declared_endpoints[service.key].pop(key, None)
                self._stale_services[service.key] = self._stale_endpoints[service.key] = None
            self._selecting[key.namespace].discard(key)
        if entry is not None:
            entry = self._with_full_hosts(entry)
            self._entries[key] = entry
            for service in seen_services(entry, self._indexes):
                self._declared[service.key][key] = service
                self._stale_services[service.key] = None
            if entry.spec.workload_selector:
                self._selecting[key.namespace].add(key)
        self._stale_entries[key] = None

    def _with_full_hosts(self, entry: Config) -> Config:
        """A ServiceEntry with full names for hosts that are short names of a registry."""
        hosts = [self._indexes.registry_host(host) for host in entry.spec.hosts]
        if hosts == entry.spec.hosts:
            return entry
        return attrs.evolve(entry, spec=dataclasses.replace(entry.spec, hosts=hosts))

    def put_workload(self, key: ConfigKey, workload: Config | None) -> None:
        """Add, replace or (None) remove a WorkloadEntry. It inherits from its WorkloadGroup."""
        written = self._written.pop(key, None)
        if written is not None:
            address = plain_address(written.spec.address)
            self._stale_addresses[address] = None
            del self._written_at[address][key]
            if not self._written_at[address]:
                del self._written_at[address]
        before = self._group_of.pop(key, None)
        if before is not None:
            del self._members[before][key]
        group = group_of(workload) if workload is not None else None
        if workload is not None:
            self._written[key] = workload
            self._written_at[plain_address(workload.spec.address)][key] = workload
            if group is not None:
                self._group_of[key] = group
                self._members[group][key] = workload
        self._put_merged_workload(key)

    def put_health(self, key: ConfigKey, health: WorkloadHealth | None) -> bool:
        """Set what was reported of a WorkloadEntry, which touches the ServiceEntries that select it. True if it is
        another state."""
        before = self._health.pop(key, None)
        if health is not None:
            self._health[key] = health
        if before == health:
            return False
        self._put_merged_workload(key)
        return True

    def workloads(self, namespace: str, address: str) -> Iterable[Config]:
        """The WorkloadEntries of a namespace at an address, merged with their groups."""
        merged = self._workloads.get(namespace, {})
        return [merged[key] for key in self._written_at.get(address, ()) if key in merged]

    def auto_registered(self, address: str) -> Iterable[Config]:
        """The auto-registered WorkloadEntries at an address."""
        return [config for config in self._written_at.get(address, {}).values() if is_auto_registered(config)]

    def put_group(self, key: ConfigKey, group: Config | None) -> None:
        """Add, replace or (None) remove a WorkloadGroup, which touches its WorkloadEntries."""
        if group is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = group
        for member in self._members.get(key, {}):
            self._put_merged_workload(member)

    def _put_merged_workload(self, key: ConfigKey) -> None:
        """Put a WorkloadEntry merged with its group and its health, which touches the ServiceEntries that select it."""
        workload = self._written.get(key)
        named = self._group_of.get(key)
        group = self._groups.get(named) if named is not None else None
        if workload is not None and group is not None:
            workload = from_template(workload, group)
        if workload is not None and is_auto_registered(workload) and not may_join(self._written[key], group):
            workload = None
        health = self._health.get(key)
        if workload is not None and health is not None:
            workload = with_health(workload, health.is_healthy)
        workloads = self._workloads[key.namespace]
        before = workloads.pop(key, None)
        if workload is not None:
            workloads[key] = workload
        if key in self._written:
            self._stale_addresses[plain_address(self._written[key].spec.address)] = None
        for entry in self._selecting[key.namespace]:
            config = self._entries[entry]
            if any(selects(config, _labels(w)) for w in (before, workload) if w is not None):
                self._stale_entries[entry] = None
        found = [_labels(w) for w in (before, workload) if w is not None]
        for service in self._selecting_services.get(key.namespace, ()):
            if any(self._selected_by(service, labels) for labels in found):
                self._stale_endpoints[service] = None

    def _selected_by(self, key: ServiceKey, labels: Mapping[str, str]) -> bool:
        """True if a service of a registry selects a workload with these labels."""
        services = self._registered[key]
        return any(_may_select(service) and service.selector.items() <= labels.items() for service in services)

    def mesh_changed(self, before: MeshConfig, mesh: MeshConfig) -> None:
        """Recompute identities if the trust domain changed, and visibility if its default changed."""
        if before.trust_domain != mesh.trust_domain:
            self._stale_entries.update(dict.fromkeys(self._entries))
            registered = self._registered_endpoints.items()
            identified = (k for k, sets in registered if any(lacks_trust_domain(e) for s in sets for e in s.endpoints))
            self._stale_endpoints.update(dict.fromkeys(identified))
            for namespace, workloads in self._workloads.items():
                if workloads:
                    self._stale_endpoints.update(dict.fromkeys(self._selecting_services.get(namespace, ())))
        if before.service_entry_visibility != mesh.service_entry_visibility:
            self._put_again(self._entries)
        if before.default_service_export_to != mesh.default_service_export_to:
            keys = (s.key for _, s in self._indexes.services.items() if s is not None)
            self._stale_services.update(dict.fromkeys(keys))

    def namespace_changed(self, namespace: str) -> None:
        """Recompute which ServiceEntries of a namespace can be seen, which may depend on its labels."""
        if self._indexes.mesh.peek(()).service_entry_visibility is not None:
            self._put_again(key for key in self._entries if key.namespace == namespace)

    def _put_again(self, keys: Iterable[ConfigKey]) -> None:
        for key in list(keys):
            self.put_entry(key, self._entries[key])

    def declared(self, host: str) -> Iterator[Service]:
        """The services that ServiceEntries declare for a host, each apart."""
        for key in self._named.get(host, ()):
            yield from self._declared.get(key, {}).values()

    def contested(self) -> Iterator[str]:
        """The hosts that ServiceEntries of several namespaces declare."""
        for host, keys in self._named.items():
            if len(keys) > 1 and sum(bool(self._declared.get(key)) for key in keys) > 1:
                yield host

    def count(self) -> int:
        """The approximate number of services."""
        return len(self._registered) + len(self._declared)

    # -- output

    def reshard(self) -> None:
        """Distribute services over a new number of shards."""
        self._stale_exports.update(dict.fromkeys(self._exported))
        self._exported.clear()
        for key, namespaces in self._exported_to.items():
            service = self._indexes.services.peek(key)
            if service is not None:
                self._list(service, namespaces)

    def _list(self, service: Service, namespaces: Iterable[str]) -> None:
        for slot in self._export_slots(service.key, namespaces):
            self._exported[slot][service.key] = service
            self._stale_exports[slot] = None

    def _unlist(self, key: ServiceKey, namespaces: Iterable[str]) -> None:
        for slot in self._export_slots(key, namespaces):
            self._exported[slot].pop(key, None)
            self._stale_exports[slot] = None

    def _export_slots(self, key: ServiceKey, namespaces: Iterable[str]) -> list[tuple[str, int]]:
        shard = shard_of(key.host, self._indexes.shard_bits.peek(()))
        return [(namespace, shard) for namespace in namespaces]

    def flush(self) -> None:
        for entry in self._stale_entries:
            with self._isolated(("endpoints", entry), OBJECT, str(entry)):
                self._make_endpoints(entry)
        self._stale_entries.clear()
        for address in self._stale_addresses:
            found = (self._workloads[k.namespace].get(k) for k in self._written_at.get(address, ()))
            merged = sorted((each for each in found if each is not None), key=lambda w: w.order)
            self._indexes.workload_entries_at[address] = tuple(merged)
        self._stale_addresses.clear()
        self._flush_services()
        self._flush_endpoints()

    def _make_endpoints(self, key: ConfigKey) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        selected: list[Config] = []
        if key in self._selecting[key.namespace]:
            workloads = self._workloads[key.namespace].values()
            selected = sorted((w for w in workloads if selects(entry, _labels(w))), key=lambda w: w.order)
        trust_domain = self._indexes.mesh.peek(()).trust_domain
        for service, endpoints in endpoints_of(entry, selected, trust_domain, self._indexes.cluster_id).items():
            if self._declared_endpoints[service].get(key) != endpoints:
                self._declared_endpoints[service][key] = endpoints
                self._stale_endpoints[service] = None

    def _flush_services(self) -> None:
        indexes = self._indexes
        merged: dict[ServiceKey, Service | None] = {}
        for key in self._stale_services:
            with self._isolated(("merged service", key), OBJECT, f"service {key.namespace}/{key.host}"):
                merged[key] = self._merged(key)
        self._apply_aliases(merged)
        for key, service in self._with_auto_addresses(merged).items():
            before = self._exported_to.get(key, frozenset())
            namespaces = self._export_namespaces(service) if service else frozenset()
            if service is not None and (service.cluster_addresses or self._is_headless_in_several(key)):
                self._of_several_clusters.add(key)
            else:
                self._of_several_clusters.discard(key)
            if indexes.services.peek(key) == service and before == namespaces:
                continue
            age, ports = self._age(key), self._port_names(key)
            indexes.services[key] = service
            if self._port_names(key) != ports:
                self._stale_endpoints[key] = None  # they are joined to ports by name
            if self._age(key) != age and (indexes.endpoints.peek(key) or key in self._unlisted):
                self._stale_endpoints[key] = None  # the order of the services at an address
            if service is not None and service.depends_on_node:
                self._bound_to_nodes.add(key)
            else:
                self._bound_to_nodes.discard(key)
            self._unlist(key, before)
            self._exported_to.pop(key, None)
            if service is None:
                self._named[key.host].discard(key)
            else:
                self._named[key.host].add(key)
                self._exported_to[key] = namespaces
                self._list(service, namespaces)
            named = (indexes.services.peek(k) for k in self._named[key.host])
            indexes.services_named[key.host] = _sorted(s for s in named if s is not None)
            self._touched(("service", key.host))
            if not self._named[key.host]:
                del self._named[key.host]
        self._stale_services.clear()
        indexes.has_cluster_addresses[()] = bool(self._of_several_clusters)
        indexes.has_node_services[()] = bool(self._bound_to_nodes)
        if indexes.has_registry.peek(()) != bool(self._registered):
            indexes.has_registry[()] = bool(self._registered)
            self._touched(("registry",))
        if self._has_stale_external:
            self._has_stale_external = False
            indexes.external_services[()] = tuple(s for _, found in sorted(self._external.items()) for s in found)
        for slot in self._stale_exports:
            indexes.services_exported[slot] = _sorted(self._exported[slot].values())
            if not self._exported[slot]:
                del self._exported[slot]
        self._stale_exports.clear()

    def _apply_aliases(self, merged: dict[ServiceKey, Service | None]) -> None:
        """Make services aliases of others, and add services that are stale because of them."""
        there = {key.host.lower() for key, service in merged.items() if service is not None}

        def exists(host: str) -> bool:
            return host in there or any(key not in merged for key in self._named.get(host, ()))

        for host in self._aliases.put(merged, exists):
            for key in self._named.get(host, ()):
                if key not in merged:
                    merged[key] = self._merged(key)
        for key, service in merged.items():
            if service is not None:
                merged[key] = self._aliases.apply(service)

    def _with_auto_addresses(self, merged: dict[ServiceKey, Service | None]) -> dict[ServiceKey, Service | None]:
        """The services with automatic addresses, and other services whose address moves because of them."""
        moved: set[str] = set()
        for key, service in merged.items():
            created = self._addressless.get(key.host, {})
            if service is not None and wants_address(service):
                created[key] = service.created
                self._addressless[key.host] = created
            elif created.pop(key, None) is None:
                continue
            before = self._auto_addresses[key.host]
            if created:
                moved |= self._auto_addresses.put(key.host, min(created.values()))
            else:
                del self._addressless[key.host]
                moved |= self._auto_addresses.remove(key.host)
            if before and self._auto_addresses[key.host] != before:
                moved.add(key.host)
        for key in sorted(key for host in moved for key in self._addressless.get(host, ())):
            if key not in merged and (service := self._merged(key)) is not None:
                merged[key] = self._aliases.apply(service)
        return {
            key: attrs.evolve(service, auto_address=self._auto_addresses[key.host])
            if service is not None and key in self._addressless.get(key.host, ())
            else service
            for key, service in merged.items()
        }

    def _flush_endpoints(self) -> None:
        indexes = self._indexes
        for key in self._stale_endpoints:
            with self._isolated(("merged endpoints", key), OBJECT, f"endpoints {key.namespace}/{key.host}"):
                endpoints = self._merged_endpoints(key)
                before = self._unlisted.pop(key, None) or indexes.endpoints.peek(key)
                self._addresses.put(key, before, endpoints)
                self.not_ready += _not_ready(endpoints) - _not_ready(before)
                listed = tuple([e for e in endpoints if e.health is not _UNLISTED])
                if len(listed) != len(endpoints):
                    self._unlisted[key] = endpoints
                    endpoints = listed
                indexes.endpoints[key] = endpoints
                self._touched(("endpoints", key))
        self._stale_endpoints.clear()
        self._addresses.flush()

    def _merged_endpoints(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        trust_domain = self._indexes.mesh.peek(()).trust_domain
        registered, declared = self._registered.get(key, ()), self._declared.get(key, {})
        given = [each.endpoints for each in self._registered_endpoints.get(key, ())]
        sets: list[tuple[tuple[Endpoint, ...], Sequence[Service]]]
        sets = [(each, registered) for each in self._identities.full(key, given, trust_domain)]
        sets += ((each, (service,)) for service, each in self._selected_endpoints(key, trust_domain))
        if of_entries := self._declared_endpoints.get(key):
            for entry in sorted(of_entries, key=lambda k: self._entries[k].order):
                sets.append((of_entries[entry], (declared[entry],) if entry in declared else ()))
        merged = self._indexes.services.peek(key)
        if merged is not None and len(registered) + len(declared) > 1:
            sets = [(endpoints_by_number(each, versions, merged), ()) for each, versions in sets]
        return sets[0][0] if len(sets) == 1 else tuple([endpoint for each, _ in sets for endpoint in each])

    def _selected_endpoints(self, key: ServiceKey, trust_domain: str) -> Iterable[tuple[Service, tuple[Endpoint, ...]]]:
        """The endpoints at the WorkloadEntries that services of registries select, with these."""
        workloads = self._workloads.get(key.namespace)
        if not workloads or key not in self._selecting_services.get(key.namespace, ()):
            return
        for service in self._registered[key]:
            if _may_select(service):
                selected = (w for w in workloads.values() if service.selector.items() <= _labels(w).items())
                if found := selected_endpoints(service, sorted(selected, key=lambda w: w.order), trust_domain):
                    yield service, found

    def _age(self, key: ServiceKey) -> tuple[object, ...]:
        service = self._indexes.services.peek(key)
        return (service is None, service.order) if service else (True, key)

    def _port_names(self, key: ServiceKey) -> tuple[tuple[int, str], ...]:
        service = self._indexes.services.peek(key)
        return tuple((port.number, port.name) for port in service.ports) if service is not None else ()

    def _merged(self, key: ServiceKey) -> Service | None:
        versions = list(self._registered.get(key, ()))
        declared = self._declared.get(key)
        if declared:
            versions.append(declared_service(sorted(declared.values(), key=lambda s: (s.created, s.config))))
        if not versions:
            self._declared.pop(key, None)
            return None
        return merged_service(versions)

    def _is_headless_in_several(self, key: ServiceKey) -> bool:
        """True for a headless service of several clusters: names of its workloads may be at home in each."""
        registered = self._registered.get(key, ())
        return len(registered) > 1 and registered[0].headless and len({each.cluster_id for each in registered}) > 1

    def _export_namespaces(self, service: Service) -> frozenset[str]:
        default = self._indexes.mesh.peek(()).default_service_export_to
        return export_namespaces(service.export_to, default, service.namespace)


def _may_select(service: Service) -> bool:
    """True for a service of a registry that may have endpoints at WorkloadEntries."""
    return bool(service.selector) and service.resolution is Resolution.CLIENT_SIDE


def _labels(workload: Config) -> Mapping[str, str]:
    labels: Mapping[str, str] = workload.spec.labels
    return labels


def _not_ready(endpoints: Iterable[Endpoint]) -> int:
    return sum(1 for endpoint in endpoints if endpoint.health is not _HEALTHY)


def _put(table: dict[ServiceKey, list[T]], key: ServiceKey, value: list[T]) -> None:
    if value:
        table[key] = value
    else:
        table.pop(key, None)


def _sorted(services: Iterable[Service]) -> tuple[Service, ...]:
    return tuple(sorted(services, key=lambda s: s.order))
