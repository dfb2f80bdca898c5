"""The place of records: this process, unless all replicas share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import trio

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.registration.membership import Change, Kept
from mesh_pilot.replicas.registration.records import Record

Take = Callable[[Mapping[ConfigKey, Kept], int | None], None]
"""Takes all that the store has at an index; see ``Membership.replace``."""


class RecordStore(Protocol):
    """Records with check-and-set."""

    place: str
    is_shared: bool

    async def follow(self, take: Take) -> None:
        """Tell what there is, and each change, until cancelled."""

    async def write(self, change: Change) -> int | None:
        """Carry a change out; the new index, None if another write was first. Raises LockError if that is unknown."""


class MemoryStore:
    """Records of this process. State: the last index of all."""

    place = "this process"
    is_shared = False

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._index = 0
        self._indexes: dict[ConfigKey, int] = {}
        self._first = tuple(records)

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._indexes)}>"

    async def follow(self, take: Take) -> None:
        first, self._first = self._first, ()
        if first:
            take({record.key: Kept(record, self._next(record.key)) for record in first}, None)
        await trio.sleep_forever()

    async def write(self, change: Change) -> int | None:
        await trio.lowlevel.checkpoint()
        if self._indexes.get(change.key, 0) != change.index:
            return None
        if change.record is None:
            self._indexes.pop(change.key, None)
            return 0
        return self._next(change.key)

    def _next(self, key: ConfigKey) -> int:
        self._index += 1
        self._indexes[key] = self._index
        return self._index
