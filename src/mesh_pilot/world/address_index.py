"""Writes the index of endpoints by address, and by the id of their registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mesh_pilot.incremental import Index
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.world.indexes import ServiceEndpoints
from mesh_pilot.world.names import registration_key


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
        current = _by_address(after) | _by_id(after)
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


def _by_id(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.registration is not None:
            grouped.setdefault(registration_key(endpoint.registration.id), []).append(endpoint)
    return {key: tuple(group) for key, group in grouped.items()}


def _by_address(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    single = {endpoint.address: (endpoint,) for endpoint in endpoints if not endpoint.additional_addresses}
    if len(single) == len(endpoints):  # nearly always
        return dict(single)
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        for address in endpoint.addresses:
            grouped.setdefault(address, []).append(endpoint)
    return {address: tuple(group) for address, group in grouped.items()}
