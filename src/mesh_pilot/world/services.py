"""The indexes over services: merged from registries and ServiceEntries, by host, by visibility, by address.

Several registries that know the same host in the same namespace add up: ports are joined (the first to name a
number wins), endpoints are all used. Of several ServiceEntries of one host in one namespace the oldest declares the
service; younger ones of its kind add ports that it does not have, and all their endpoints serve it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.auto_addresses import allocate, wants_address
from mesh_pilot.world.buckets import bucket_of
from mesh_pilot.world.entries import endpoints_of, from_template, group_of, selects, services_of
from mesh_pilot.world.places import PlaceTable

if TYPE_CHECKING:
    from mesh_pilot.world.world import World

T = TypeVar("T")

PUBLIC = "*"
HIDDEN = "~"


class ServiceTable:
    """Takes services, endpoint sets and what declares them: ServiceEntries, WorkloadEntries, WorkloadGroups.

    ``flush`` writes the merged indexes.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._registered: dict[ServiceKey, list[Service]] = {}
        self._registered_endpoints: dict[ServiceKey, list[Endpoints]] = {}
        self._entries: dict[ConfigKey, Config] = {}
        self._declared: dict[ServiceKey, dict[ConfigKey, Service]] = defaultdict(dict)
        self._declared_endpoints: dict[ServiceKey, dict[ConfigKey, tuple[Endpoint, ...]]] = defaultdict(dict)
        self._selecting: dict[str, set[ConfigKey]] = defaultdict(set)
        """Namespace -> ServiceEntries with a workloadSelector."""
        self._workloads: dict[str, dict[ConfigKey, Config]] = defaultdict(dict)
        self._groups: dict[ConfigKey, Config] = {}
        self._members: dict[ConfigKey, dict[ConfigKey, Config]] = defaultdict(dict)
        """By WorkloadGroup, the WorkloadEntries that belong to it, as they were written."""
        self._group_of: dict[ConfigKey, ConfigKey] = {}
        self._stale_entries: dict[ConfigKey, None] = {}
        self._stale_services: dict[ServiceKey, None] = {}
        self._stale_endpoints: dict[ServiceKey, None] = {}
        self._named: dict[str, set[ServiceKey]] = defaultdict(set)
        self._exported: dict[tuple[str, int], dict[ServiceKey, Service]] = defaultdict(dict)
        """By whom they are exported to, and bucket."""
        self._stale_exports: dict[tuple[str, int], None] = {}
        self._listed: dict[ServiceKey, frozenset[str]] = {}
        """To whom a service is exported."""
        self._addressless: dict[str, set[ServiceKey]] = {}
        """By host, the services that are given an address."""
        self._auto: dict[str, str] = {}
        """The address that a host is given."""
        self._places = PlaceTable(world.endpoints_at, self._age)

    # -- what came in

    def put_services(self, key: ServiceKey, services: list[Service]) -> bool:
        """What the registries say of one service, in their order of precedence."""
        if self._registered.get(key, []) == services:
            return False
        _put(self._registered, key, services)
        self._stale_services[key] = None
        return True

    def put_endpoints(self, key: ServiceKey, endpoints: list[Endpoints]) -> bool:
        """The endpoint sets that the registries give one service."""
        if self._registered_endpoints.get(key, []) == endpoints:
            return False
        _put(self._registered_endpoints, key, endpoints)
        self._stale_endpoints[key] = None
        return True

    def put_entry(self, key: ConfigKey, entry: Config | None) -> None:
        """A ServiceEntry came, changed or (None) went."""
        before = self._entries.pop(key, None)
        if before is not None:
            for service in services_of(before):
                self._declared[service.key].pop(key, None)
                self._declared_endpoints[service.key].pop(key, None)
                self._stale_services[service.key] = self._stale_endpoints[service.key] = None
            self._selecting[key.namespace].discard(key)
        if entry is not None:
            entry = self._with_whole_hosts(entry)
            self._entries[key] = entry
            for service in services_of(entry):
                self._declared[service.key][key] = service
                self._stale_services[service.key] = None
            if entry.spec.workload_selector:
                self._selecting[key.namespace].add(key)
            self._stale_entries[key] = None

    def _with_whole_hosts(self, entry: Config) -> Config:
        """A ServiceEntry with its short hosts made whole, where those are of one registry."""
        hosts = [self._world.registry_host(host) for host in entry.spec.hosts]
        if hosts == entry.spec.hosts:
            return entry
        return attrs.evolve(entry, spec=dataclasses.replace(entry.spec, hosts=hosts))

    def put_workload(self, key: ConfigKey, workload: Config | None) -> None:
        """A WorkloadEntry came, changed or (None) went; it inherits from its WorkloadGroup."""
        before = self._group_of.pop(key, None)
        if before is not None:
            del self._members[before][key]
        group = group_of(workload) if workload is not None else None
        if workload is not None and group is not None:
            self._group_of[key] = group
            self._members[group][key] = workload
        self._take_workload(key, workload, self._groups.get(group) if group is not None else None)

    def put_group(self, key: ConfigKey, group: Config | None) -> None:
        """A WorkloadGroup came, changed or (None) went: it touches the WorkloadEntries that belong to it."""
        if group is None:
            self._groups.pop(key, None)
        else:
            self._groups[key] = group
        for member, workload in self._members.get(key, {}).items():
            self._take_workload(member, workload, group)

    def _take_workload(self, key: ConfigKey, workload: Config | None, group: Config | None) -> None:
        """Hold a WorkloadEntry as it is with its group: it touches the ServiceEntries that select it."""
        if workload is not None and group is not None:
            workload = from_template(workload, group)
        held = self._workloads[key.namespace]
        before = held.pop(key, None)
        if workload is not None:
            held[key] = workload
        for entry in self._selecting[key.namespace]:
            config = self._entries[entry]
            if any(selects(config, _labels(w)) for w in (before, workload) if w is not None):
                self._stale_entries[entry] = None

    def mesh_changed(self, before: MeshConfig, mesh: MeshConfig) -> None:
        """Identities carry the trust domain, visibility has a default: make again what that decides."""
        if before.trust_domain != mesh.trust_domain:
            self._stale_entries.update(dict.fromkeys(self._entries))
            registered = self._registered_endpoints.items()
            identified = (k for k, sets in registered if any(_is_bare(e) for held in sets for e in held.endpoints))
            self._stale_endpoints.update(dict.fromkeys(identified))
        if before.default_service_export_to != mesh.default_service_export_to:
            keys = (s.key for _, s in self._world.services.items() if s is not None)
            self._stale_services.update(dict.fromkeys(keys))

    def count(self) -> int:
        """How many services there are, about."""
        return len(self._registered) + len(self._declared)

    # -- what goes out

    def part_anew(self) -> None:
        """The World has another number of buckets."""
        self._stale_exports.update(dict.fromkeys(self._exported))
        self._exported.clear()
        for key, lists in self._listed.items():
            service = self._world.services.peek(key)
            if service is not None:
                self._list(service, lists)

    def _list(self, service: Service, lists: Iterable[str]) -> None:
        for at in self._listings(service.key, lists):
            self._exported[at][service.key] = service
            self._stale_exports[at] = None

    def _unlist(self, key: ServiceKey, lists: Iterable[str]) -> None:
        for at in self._listings(key, lists):
            self._exported[at].pop(key, None)
            self._stale_exports[at] = None

    def _listings(self, key: ServiceKey, lists: Iterable[str]) -> list[tuple[str, int]]:
        bucket = bucket_of(key.host, self._world.bits.peek(()))
        return [(namespace, bucket) for namespace in lists]

    def flush(self) -> None:
        for key in self._stale_entries:
            self._make_endpoints(key)
        self._stale_entries.clear()
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
        trust_domain = self._world.mesh.peek(()).trust_domain
        for service, endpoints in endpoints_of(entry, selected, trust_domain).items():
            if self._declared_endpoints[service].get(key) != endpoints:
                self._declared_endpoints[service][key] = endpoints
                self._stale_endpoints[service] = None

    def _flush_services(self) -> None:
        world = self._world
        for key, service in self._addressed({key: self._merged(key) for key in self._stale_services}).items():
            listed = self._listed.get(key, frozenset())
            lists = self._exports(service) if service else frozenset()
            if world.services.peek(key) == service and listed == lists:
                continue
            world.services[key] = service
            self._unlist(key, listed)
            self._listed.pop(key, None)
            if service is None:
                self._named[key.host].discard(key)
            else:
                self._named[key.host].add(key)
                self._listed[key] = lists
                self._list(service, lists)
            named = (world.services.peek(k) for k in self._named[key.host])
            world.services_named[key.host] = _sorted(s for s in named if s is not None)
            if not self._named[key.host]:
                del self._named[key.host]
        self._stale_services.clear()
        for at in self._stale_exports:
            world.services_exported[at] = _sorted(self._exported[at].values())
            if not self._exported[at]:
                del self._exported[at]
        self._stale_exports.clear()

    def _addressed(self, merged: dict[ServiceKey, Service | None]) -> dict[ServiceKey, Service | None]:
        """Services with the addresses that they are given; other services whose address that moves come along."""
        hosts = len(self._addressless)
        changed = False
        for key, service in merged.items():
            keys = self._addressless.get(key.host, set())
            wants = service is not None and wants_address(service)
            if wants:
                changed |= key.host not in self._addressless
                self._addressless.setdefault(key.host, keys).add(key)
            elif key in keys:
                keys.remove(key)
                if not keys:
                    del self._addressless[key.host]
        if changed or len(self._addressless) != hosts:
            before, self._auto = self._auto, allocate(self._addressless)
            moved = (host for host, address in self._auto.items() if before.get(host, address) != address)
            for key in sorted(key for host in moved for key in self._addressless[host]):
                merged.setdefault(key, self._merged(key))
        return {
            key: attrs.evolve(service, auto_address=self._auto.get(key.host, ""))
            if service is not None and key in self._addressless.get(key.host, ())
            else service
            for key, service in merged.items()
        }

    def _flush_endpoints(self) -> None:
        world = self._world
        for key in self._stale_endpoints:
            trust_domain = world.mesh.peek(()).trust_domain
            sets = [_identified(held.endpoints, trust_domain) for held in self._registered_endpoints.get(key, ())]
            if declared := self._declared_endpoints.get(key):
                sets += (declared[entry] for entry in sorted(declared, key=lambda k: self._entries[k].order))
            endpoints = sets[0] if len(sets) == 1 else tuple([endpoint for each in sets for endpoint in each])
            self._places.put(key, world.endpoints.peek(key), endpoints)
            world.endpoints[key] = endpoints
        self._stale_endpoints.clear()
        self._places.flush()

    def _age(self, key: ServiceKey) -> tuple[object, ...]:
        service = self._world.services.peek(key)
        return (service is None, service.order) if service else (True, key)

    def _merged(self, key: ServiceKey) -> Service | None:
        candidates = list(self._registered.get(key, ()))
        declared = self._declared.get(key)
        if declared:
            candidates.append(_declared(sorted(declared.values(), key=lambda s: (s.created, s.config))))
        if not candidates:
            self._declared.pop(key, None)
            return None
        first = candidates[0]
        if len(candidates) == 1:
            return first
        ports = {p.number: p for c in reversed(candidates) for p in c.ports}
        return attrs.evolve(
            first,
            ports=tuple(ports[n] for n in dict.fromkeys(p.number for c in candidates for p in c.ports)),
            addresses=tuple(dict.fromkeys(a for c in candidates for a in c.addresses)),
        )

    def _exports(self, service: Service) -> frozenset[str]:
        """Where a service is listed: ``*``, or the namespaces that may see it."""
        export = service.export_to or frozenset(self._world.mesh.peek(()).default_service_export_to or [PUBLIC])
        if HIDDEN in export:
            return frozenset()
        if PUBLIC in export:
            return frozenset((PUBLIC,))
        return frozenset(service.namespace if e == "." else e for e in export)


def _declared(services: Sequence[Service]) -> Service:
    """What several ServiceEntries, oldest first, declare one host to be.

    Endpoints are told apart by the names of ports, so a port whose name is taken can't be added.
    """
    first = services[0]
    ports = list(first.ports)
    for other in services[1:]:
        if (other.resolution, other.external) == (first.resolution, first.external):
            numbers, names = {p.number for p in ports}, {p.name for p in ports}
            ports += (p for p in other.ports if p.number not in numbers and p.name not in names)
    return first if len(ports) == len(first.ports) else attrs.evolve(first, ports=tuple(ports))


def _labels(workload: Config) -> Mapping[str, str]:
    labels: Mapping[str, str] = workload.spec.labels
    return labels


def _is_bare(endpoint: Endpoint) -> bool:
    """Whether its identity is of the mesh's own trust domain, and does not say it."""
    return endpoint.service_account.startswith("ns/")


def _identified(endpoints: tuple[Endpoint, ...], trust_domain: str) -> tuple[Endpoint, ...]:
    """Endpoints of a registry with whole identities."""
    if not any(map(_is_bare, endpoints)):
        return endpoints
    prefix = f"spiffe://{trust_domain}/"
    return tuple(attrs.evolve(e, service_account=prefix + e.service_account) if _is_bare(e) else e for e in endpoints)


def _put(table: dict[ServiceKey, list[T]], key: ServiceKey, value: list[T]) -> None:
    if value:
        table[key] = value
    else:
        table.pop(key, None)


def _sorted(services: Iterable[Service]) -> tuple[Service, ...]:
    return tuple(sorted(services, key=lambda s: s.order))
