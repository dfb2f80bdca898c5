"""Writes the indexes of endpoints: by service, and by address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from mesh_pilot.engine import Index
from mesh_pilot.engine.failures import OBJECT
from mesh_pilot.model.service import Endpoint, Health, ServiceKey
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.entries import EntryTable
from mesh_pilot.world.indexes import Indexes, Isolated, ServiceEndpoints
from mesh_pilot.world.names import registration_key
from mesh_pilot.world.registries import RegistryTable
from mesh_pilot.world.service_versions import endpoints_by_number

_HEALTHY, _UNLISTED = Health.HEALTHY, Health.UNLISTED


class AddressIndex:
    """Takes the endpoints of services as they change; ``flush`` writes the addresses that this touches.

    State: `_changed`, by address, the endpoints that services have there since the last flush. Earlier endpoints are in
    the index alone, because there are as many addresses as endpoints.
    """

    def __init__(
        self, index: Index[str, tuple[ServiceEndpoints, ...]], age: Callable[[ServiceKey], tuple[object, ...]]
    ) -> None:
        """``age`` orders the services at one address."""
        self._index = index
        self._age = age
        self._changed: dict[str, list[ServiceEndpoints]] = {}

    def put(self, key: ServiceKey, before: Sequence[Endpoint], after: Sequence[Endpoint]) -> None:
        """Replace the endpoints of a service. At most once for each service between two flushes."""
        current = _by_address(after)
        current.update(_by_id(after))
        if before:
            for address in {a for e in before for a in e.addresses}.union(_by_id(before)) - current.keys():
                self._changed.setdefault(address, []).append((key, ()))
        for address, endpoints in current.items():
            self._changed.setdefault(address, []).append((key, endpoints))

    def flush(self) -> None:
        for address, changed in self._changed.items():
            services = changed
            if (before := self._index.peek(address)) or len(changed) > 1:
                merged = {**dict(before), **dict(changed)}
                services = [(key, merged[key]) for key in sorted(merged, key=self._age)]
            self._index[address] = tuple([service for service in services if service[1]])
        self._changed.clear()


class EndpointTable(Copied):
    """Merges the endpoints of services.

    State: `_unlisted`, all endpoints of the services of which some are unlisted; `_addresses`; `not_ready`.
    """

    def __init__(
        self,
        indexes: Indexes,
        isolated: Isolated,
        registries: RegistryTable,
        entries: EntryTable,
        age: Callable[[ServiceKey], tuple[object, ...]],
    ) -> None:
        """``age`` orders the services at one address."""
        self._indexes = indexes
        self._isolated = isolated
        self._registries = registries
        self._entries = entries
        self._unlisted: dict[ServiceKey, tuple[Endpoint, ...]] = {}
        self._addresses = AddressIndex(indexes.endpoints_at, age)
        self.not_ready = 0
        """Endpoints that are not healthy."""

    def has_any(self, key: ServiceKey) -> bool:
        """True if a service has endpoints, listed or not."""
        return bool(self._indexes.endpoints.peek(key)) or key in self._unlisted

    def unlisted(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """The endpoints of a service that clients are not told of."""
        return tuple(each for each in self._unlisted.get(key, ()) if each.health is _UNLISTED)

    def write(self, keys: Iterable[ServiceKey]) -> list[ServiceKey]:
        """Merge the endpoints of services, of which the indexes have the present version. Those that succeeded."""
        indexes, written = self._indexes, list[ServiceKey]()
        for key in keys:
            with self._isolated(("merged endpoints", key), OBJECT, f"endpoints {key.namespace}/{key.host}"):
                endpoints = self._merged(key)
                before = self._unlisted.pop(key, None) or indexes.endpoints.peek(key)
                self._addresses.put(key, before, endpoints)
                self.not_ready += _not_ready(endpoints) - _not_ready(before)
                listed = tuple([e for e in endpoints if e.health is not _UNLISTED])
                if len(listed) != len(endpoints):
                    self._unlisted[key] = endpoints
                    endpoints = listed
                indexes.endpoints[key] = endpoints
                written.append(key)
        self._addresses.flush()
        return written

    def _merged(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        sets = [*self._registries.endpoints(key), *self._entries.endpoints(key)]
        versions = len(self._registries.versions(key)) + self._entries.count_versions(key)
        merged = self._indexes.services.peek(key) if versions > 1 else None
        if merged is not None:
            sets = [(endpoints_by_number(each, versions, merged), ()) for each, versions in sets]
        return sets[0][0] if len(sets) == 1 else tuple(chain.from_iterable(each for each, _ in sets))


def _not_ready(endpoints: Iterable[Endpoint]) -> int:
    return sum(1 for endpoint in endpoints if endpoint.health is not _HEALTHY)


def _by_id(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.registration is not None:
            grouped.setdefault(registration_key(endpoint.registration.id), []).append(endpoint)
    return {key: tuple(group) for key, group in grouped.items()}


def _by_address(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    single: dict[str, tuple[Endpoint, ...]] = {e.address: (e,) for e in endpoints if not e.additional_addresses}
    if len(single) == len(endpoints):  # nearly always
        return single
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        for address in endpoint.addresses:
            grouped.setdefault(address, []).append(endpoint)
    return {address: tuple(group) for address, group in grouped.items()}
