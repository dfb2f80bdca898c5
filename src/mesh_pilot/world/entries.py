"""ServiceEntries: the services that they declare, and their endpoints at the WorkloadEntries that they select."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import attrs

from mesh_pilot.engine.failures import OBJECT
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.entry_visibility import seen_services
from mesh_pilot.world.indexes import Indexes, Isolated
from mesh_pilot.world.service_entries import endpoints_of, selects, services_of
from mesh_pilot.world.stale import Stale
from mesh_pilot.world.workloads import Labels, WorkloadTable


class EntryTable(Copied):
    """Takes ServiceEntries; ``flush`` makes the endpoints of those that are stale.

    State: `_entries`, with full host names; `_services` and `_endpoints`, by service those of each entry; `_selecting`,
    by namespace the entries with a workloadSelector.
    """

    def __init__(self, indexes: Indexes, isolated: Isolated, stale: Stale, workloads: WorkloadTable) -> None:
        self._indexes = indexes
        self._isolated = isolated
        self._stale = stale
        self._workloads = workloads
        self._entries: dict[ConfigKey, Config] = {}
        self._services: dict[ServiceKey, dict[ConfigKey, Service]] = defaultdict(dict)
        self._endpoints: dict[ServiceKey, dict[ConfigKey, tuple[Endpoint, ...]]] = defaultdict(dict)
        self._selecting: dict[str, set[ConfigKey]] = defaultdict(set)

    def put(self, key: ConfigKey, entry: Config | None) -> None:
        """Add, replace or (None) remove a ServiceEntry."""
        before = self._entries.pop(key, None)
        if before is not None:
            for service in services_of(before):
                self._services[service.key].pop(key, None)
                self._endpoints[service.key].pop(key, None)
                self._stale.services[service.key] = self._stale.endpoints[service.key] = None
            self._selecting[key.namespace].discard(key)
        if entry is not None:
            entry = self._with_full_hosts(entry)
            self._entries[key] = entry
            for service in seen_services(entry, self._indexes):
                self._services[service.key][key] = service
                self._stale.services[service.key] = None
            if entry.spec.workload_selector:
                self._selecting[key.namespace].add(key)
        self._stale.entries[key] = None

    def _with_full_hosts(self, entry: Config) -> Config:
        """A ServiceEntry with full names for hosts that are short names of a registry."""
        hosts = [self._indexes.registry_host(host) for host in entry.spec.hosts]
        if hosts == entry.spec.hosts:
            return entry
        return attrs.evolve(entry, spec=dataclasses.replace(entry.spec, hosts=hosts))

    def put_again(self, namespace: str = "") -> None:
        """Find out again who sees the ServiceEntries of a namespace, or all."""
        for key, entry in [*self._entries.items()]:
            if namespace in ("", key.namespace):
                self.put(key, entry)

    def workload_changed(self, namespace: str, labels: Sequence[Labels]) -> None:
        """A workload had, or has now, each of these labels."""
        for key in self._selecting[namespace]:
            if any(selects(self._entries[key], each) for each in labels):
                self._stale.entries[key] = None

    def trust_domain_changed(self) -> None:
        self._stale.entries.update(dict.fromkeys(self._entries))

    def __len__(self) -> int:
        """The number of services declared, about."""
        return len(self._services)

    def count_versions(self, key: ServiceKey) -> int:
        return len(self._services.get(key, ()))

    def versions(self, key: ServiceKey) -> list[Service]:
        """A service as each ServiceEntry declares it, the oldest first."""
        found = self._services.get(key)
        if not found:
            self._services.pop(key, None)
            return []
        return sorted(found.values(), key=lambda service: (service.created, service.config))

    def declared(self, host: str) -> Iterator[Service]:
        """The services that ServiceEntries declare for a host, each apart."""
        for service in self._indexes.services_named.peek(host):
            yield from self._services.get(service.key, {}).values()

    def contested(self) -> Iterator[str]:
        """The hosts that ServiceEntries of several namespaces declare."""
        for host, services in self._indexes.services_named.items():
            if len(services) > 1 and sum(bool(self._services.get(each.key)) for each in services) > 1:
                yield host

    def endpoints(self, key: ServiceKey) -> Iterable[tuple[tuple[Endpoint, ...], Sequence[Service]]]:
        """The endpoints of a service that each ServiceEntry has, with the service as that one declares it."""
        found = self._endpoints.get(key)
        if not found:
            return
        declared = self._services.get(key, {})
        for entry in sorted(found, key=lambda each: self._entries[each].order):
            yield found[entry], (declared[entry],) if entry in declared else ()

    def flush(self) -> None:
        for key in self._stale.entries:
            with self._isolated(("endpoints", key), OBJECT, str(key)):
                self._make_endpoints(key)
        self._stale.entries.clear()

    def _make_endpoints(self, key: ConfigKey) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        selector, selected = entry.spec.workload_selector, list[Config]()
        if selector is not None and selector.labels:  # an empty one selects nothing
            selected = self._workloads.selected(key.namespace, selector.labels)
        trust_domain = self._indexes.mesh.peek(()).trust_domain
        for service, endpoints in endpoints_of(entry, selected, trust_domain, self._indexes.cluster_id).items():
            if self._endpoints[service].get(key) != endpoints:
                self._endpoints[service][key] = endpoints
                self._stale.endpoints[service] = None
