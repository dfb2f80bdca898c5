"""Writes the index of services by the namespaces that they are exported to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world.copying import Copied
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.shards import shard_of

NOWHERE: frozenset[str] = frozenset()


class ExportTable(Copied):
    """Takes merged services; ``flush`` writes the slots of the index that these made stale.

    State: `_exported`, by service the namespaces (or ``*``); `_slots`, by namespace and shard the services; `_stale`.
    """

    def __init__(self, indexes: Indexes) -> None:
        self._indexes = indexes
        self._exported: dict[ServiceKey, frozenset[str]] = {}
        self._slots: dict[tuple[str, int], dict[ServiceKey, Service]] = defaultdict(dict)
        self._stale: dict[tuple[str, int], None] = {}

    def namespaces(self, key: ServiceKey) -> frozenset[str]:
        """The namespaces that a service is exported to as yet."""
        return self._exported.get(key, NOWHERE)

    def put(self, key: ServiceKey, service: Service | None, namespaces: frozenset[str]) -> None:
        """Add, replace or (None) remove a service."""
        for slot in self._slots_of(key, self._exported.pop(key, NOWHERE)):
            self._slots[slot].pop(key, None)
        if service is not None:
            self._exported[key] = namespaces
            for slot in self._slots_of(key, namespaces):
                self._slots[slot][key] = service

    def _slots_of(self, key: ServiceKey, namespaces: Iterable[str]) -> list[tuple[str, int]]:
        """The slots of a service, which are about to change."""
        shard = shard_of(key.host, self._indexes.shard_bits.peek(()))
        slots = [(namespace, shard) for namespace in namespaces]
        self._stale.update(dict.fromkeys(slots))
        return slots

    def reshard(self) -> None:
        """Distribute services over a new number of shards."""
        self._stale.update(dict.fromkeys(self._slots))
        self._slots.clear()
        for key, namespaces in self._exported.items():
            service = self._indexes.services.peek(key)
            if service is not None:
                for slot in self._slots_of(key, namespaces):
                    self._slots[slot][key] = service

    def flush(self) -> None:
        for slot in self._stale:
            services = self._slots[slot]
            self._indexes.services_exported[slot] = tuple(sorted(services.values(), key=lambda each: each.order))
            if not services:
                del self._slots[slot]
        self._stale.clear()
