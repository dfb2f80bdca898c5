"""The services and endpoint sets of registries, as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

import attrs

from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.service import Endpoint, Resolution, Service, ServiceKey
from mesh_pilot.model.spiffe import qualified
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.service_entries import selected_endpoints
from mesh_pilot.world.stale import Stale
from mesh_pilot.world.workloads import Labels, WorkloadTable

T = TypeVar("T")


class RegistryTable(Copied):
    """Takes the services and endpoint sets of registries; ``flush`` writes the indexes of registries as such.

    State: `_services` and `_endpoints`, each registry's, in order of precedence; `_selecting`, by namespace the
    services that select workloads by their labels; `_external`, the services with addresses outside their cluster.
    """

    def __init__(self, indexes: Indexes, stale: Stale, workloads: WorkloadTable) -> None:
        self._indexes = indexes
        self._stale = stale
        self._workloads = workloads
        self._identities = EndpointIdentities()
        self._services: dict[ServiceKey, list[Service]] = {}
        self._endpoints: dict[ServiceKey, list[Endpoints]] = {}
        self._selecting: dict[str, set[ServiceKey]] = defaultdict(set)
        self._external: dict[ServiceKey, list[Service]] = {}

    def put_services(self, key: ServiceKey, services: list[Service]) -> bool:
        """Set the registries' versions of a service, in order of precedence. True if they changed."""
        if not _put(self._services, key, services):
            return False
        if any(map(_may_select, services)):
            self._selecting[key.namespace].add(key)
        else:
            self._selecting[key.namespace].discard(key)
        if self._workloads.has_any(key.namespace):
            self._stale.endpoints[key] = None
        self._stale.services[key] = None
        external = [service for service in services if service.external_addresses or service.network_gateways]
        if _put(self._external, key, external):
            self._stale.external = True
        return True

    def put_endpoints(self, key: ServiceKey, endpoints: list[Endpoints]) -> bool:
        """Set the registries' endpoint sets of a service. True if they changed."""
        changed = _put(self._endpoints, key, endpoints)
        if changed:
            self._stale.endpoints[key] = None
        return changed

    def workload_changed(self, namespace: str, labels: Sequence[Labels]) -> None:
        """A workload had, or has now, each of these labels."""
        for key in self._selecting.get(namespace, ()):
            selecting = filter(_may_select, self._services[key])
            if any(service.selector.items() <= each.items() for service in selecting for each in labels):
                self._stale.endpoints[key] = None

    def trust_domain_changed(self) -> None:
        for key, sets in self._endpoints.items():
            if any(_lacks_trust_domain(endpoint) for each in sets for endpoint in each.endpoints):
                self._stale.endpoints[key] = None
        for namespace, services in self._selecting.items():
            if self._workloads.has_any(namespace):
                self._stale.endpoints.update(dict.fromkeys(services))

    def __len__(self) -> int:
        return len(self._services)

    def versions(self, key: ServiceKey) -> Sequence[Service]:
        """The registries' versions of a service."""
        return self._services.get(key, ())

    def endpoints(self, key: ServiceKey) -> Iterable[tuple[tuple[Endpoint, ...], Sequence[Service]]]:
        """The endpoint sets of a service, each with the versions that its endpoints can be of: those of registries, and
        those at the WorkloadEntries that a version selects."""
        trust_domain, versions = self._indexes.mesh.peek(()).trust_domain, self.versions(key)
        given = [each.endpoints for each in self._endpoints.get(key, ())]
        for each in self._identities.full(key, given, trust_domain):
            yield each, versions
        if not self._workloads.has_any(key.namespace) or key not in self._selecting.get(key.namespace, ()):
            return
        for service in filter(_may_select, versions):
            selected = self._workloads.selected(key.namespace, service.selector)
            if found := selected_endpoints(service, selected, trust_domain):
                yield found, (service,)

    def flush(self) -> None:
        self._indexes.has_registry[()] = bool(self._services)
        if self._stale.external:
            self._stale.external = False
            found = (service for _, services in sorted(self._external.items()) for service in services)
            self._indexes.external_services[()] = tuple(found)


class EndpointIdentities:
    """Gives endpoints full SPIFFE ids, and the same object for the same again: one that flaps does not cost the others.

    State: by service, the trust domain, the endpoints as registries have them, and the same with full ids.
    """

    def __init__(self) -> None:
        self._given: dict[ServiceKey, tuple[str, tuple[Endpoint, ...], tuple[Endpoint, ...]]] = {}

    def __repr__(self) -> str:
        return f"<EndpointIdentities of {len(self._given)} services>"

    def full(
        self, key: ServiceKey, sets: Sequence[tuple[Endpoint, ...]], trust_domain: str
    ) -> list[tuple[Endpoint, ...]]:
        """The endpoint sets of a service, with full ids."""
        if not any(_lacks_trust_domain(endpoint) for each in sets for endpoint in each):
            self._given.pop(key, None)
            return list(sets)
        domain, before, after = self._given.get(key, ("", (), ()))
        known = dict(zip(map(id, before), after, strict=True)) if domain == trust_domain else {}
        full = [tuple([known.get(id(e)) or _with_trust_domain(e, trust_domain) for e in each]) for each in sets]
        self._given[key] = (trust_domain, _joined(sets), _joined(full))
        return full


def _lacks_trust_domain(endpoint: Endpoint) -> bool:
    """True if the endpoint's identity is a path in the mesh's trust domain, ``ns/shop/sa/web``."""
    return endpoint.service_account.startswith("ns/")


def _with_trust_domain(endpoint: Endpoint, trust_domain: str) -> Endpoint:
    if not _lacks_trust_domain(endpoint):
        return endpoint
    return attrs.evolve(endpoint, service_account=qualified(endpoint.service_account, trust_domain))


def _joined(sets: Iterable[tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
    return tuple(chain.from_iterable(sets))


def _may_select(service: Service) -> bool:
    """True for a service of a registry that may have endpoints at WorkloadEntries."""
    return bool(service.selector) and service.resolution is Resolution.CLIENT_SIDE


def _put(table: dict[ServiceKey, list[T]], key: ServiceKey, value: list[T]) -> bool:
    """Set or (empty) remove a value. True if it is another one."""
    if table.get(key, []) == value:
        return False
    if value:
        table[key] = value
    else:
        del table[key]
    return True
