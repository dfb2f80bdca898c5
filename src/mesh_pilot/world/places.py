"""The index over addresses, and over ids of registrations: which endpoints are there, and of which services."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mesh_pilot.incremental import Index
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.world.names import place_of_id
from mesh_pilot.world.view import Placed


class PlaceTable:
    """Takes the endpoints of services as they change; ``flush`` writes the addresses that this touches.

    State: `_changed`, by address, what services have there since the last flush. What they had before that is in the
    index alone, for there are as many addresses as endpoints.
    """

    def __init__(self, index: Index[str, tuple[Placed, ...]], age: Callable[[ServiceKey], tuple[object, ...]]) -> None:
        """``age`` orders the services at one address."""
        self._index = index
        self._age = age
        self._changed: dict[str, list[Placed]] = {}

    def put(self, key: ServiceKey, before: Sequence[Endpoint], after: Sequence[Endpoint]) -> None:
        """A service has other endpoints. Once for each service between two flushes."""
        now = _by_address(after) | _by_id(after)
        for address in {e.address for e in before}.union(_by_id(before)) - now.keys():
            self._changed.setdefault(address, []).append((key, ()))
        for address, endpoints in now.items():
            self._changed.setdefault(address, []).append((key, endpoints))

    def flush(self) -> None:
        for address, changed in self._changed.items():
            placed = changed
            if (held := self._index.peek(address)) or len(changed) > 1:
                merged = {**dict(held), **dict(changed)}
                placed = [(key, merged[key]) for key in sorted(merged, key=self._age)]
            self._index[address] = tuple([place for place in placed if place[1]])
        self._changed.clear()


def _by_id(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        if endpoint.registration is not None:
            grouped.setdefault(place_of_id(endpoint.registration.id), []).append(endpoint)
    return {place: tuple(there) for place, there in grouped.items()}


def _by_address(endpoints: Sequence[Endpoint]) -> dict[str, tuple[Endpoint, ...]]:
    alone = {endpoint.address: (endpoint,) for endpoint in endpoints}
    if len(alone) == len(endpoints):  # nearly always
        return dict(alone)
    grouped: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        grouped.setdefault(endpoint.address, []).append(endpoint)
    return {address: tuple(there) for address, there in grouped.items()}
