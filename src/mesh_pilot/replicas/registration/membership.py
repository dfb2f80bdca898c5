"""The holder of each record, and its end: a pure state machine for one replica among several.

    membership = Membership("replica-1", grace_seconds=10.0)
    membership.connected(7, workload)                        # stream 7
    membership.reported(key, is_healthy=False, reason="503")
    membership.disconnected(7)
    for change in membership.changes(now, view): ...         # to be written, with check-and-set
    membership.stored(key, kept)                             # what the store has now
    membership.deadline(now, view)                           # when to ask again

A record is its controller's: of the replica that the workload connected to last. Each that takes it over counts its
turn up, so that no clocks are compared: a replica whose stream of the workload has not ended yet, because the
connection died in silence, does not take it back from a later one. The controller notes that the workload has left, and
deletes the record after the grace period. The leader does so for a controller that is gone, after a longer one, in
which the workload may come to another replica. Time is counted by the clock of the replica that waits. Every write is
conditional on what was read, so a workload that comes back first wins.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping

import attrs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload

ORPHANED_SECONDS = 60.0
"""The time in which a workload of a replica that is gone comes to another, or to this one after its restart: twice the
longest pause of an Envoy between attempts."""


@attrs.frozen
class Kept:
    """A record as the store has it."""

    record: Record
    index: int
    """Changes with each write."""


@attrs.frozen
class Change:
    """A write: it must not take place if the store has another version by then."""

    key: ConfigKey
    record: Record | None
    """None: deleted."""
    index: int
    """The index of the version that it follows; 0: there is no version."""


@attrs.frozen
class Replicas:
    """The other replicas, as far as this one knows."""

    leads: bool = False
    """True if this one cleans up for replicas that are gone."""
    present: frozenset[str] | None = None
    """The replicas that are there; None: unknown."""

    def is_gone(self, replica: str) -> bool:
        return self.present is not None and replica not in self.present


@attrs.define
class _Local:
    """A workload with streams here. Mutable: its streams, and the turn that is ours."""

    workload: RegisteredWorkload
    since: float
    """Unix time."""
    streams: dict[Hashable, None] = attrs.field(factory=dict)
    turn: int = 0
    """The last turn that we took; 0: none."""
    is_new: bool = True
    """True if a stream has begun since: the record is to be ours."""

    def has(self, record: Record, replica: str) -> bool:
        """True if a record is ours in our last turn."""
        return record.controller == replica and record.turn == self.turn


@attrs.define
class _Report:
    is_healthy: bool
    reason: str


class Membership:
    """State: what the store has, the workloads with streams here and their reports, since when records wait, and which
    keys are to be looked at again."""

    def __init__(self, replica: str, *, grace_seconds: float, orphaned_seconds: float = ORPHANED_SECONDS) -> None:
        self._replica = replica
        self._grace = grace_seconds
        self._orphaned = max(orphaned_seconds, grace_seconds)
        self._kept: dict[ConfigKey, Kept] = {}
        self._local: dict[ConfigKey, _Local] = {}
        self._key_of: dict[Hashable, ConfigKey] = {}
        self._reports: dict[ConfigKey, _Report] = {}
        self._waiting: dict[ConfigKey, tuple[int, bool, float]] = {}
        """Records without a stream, by key: the record's turn, whether it says that it is connected, and since when."""
        self._deleted: dict[ConfigKey, int] = {}
        """The indexes of versions that we have deleted, until the store's pictures are without them."""
        self._dirty: dict[ConfigKey, None] = {}
        """Keys for which something may be due."""
        self._touched: dict[ConfigKey, None] = {}
        """Keys whose record in force may have changed since ``take_touched``."""
        self._failures: dict[ConfigKey, int] = {}
        """Attempts to write what is due, by key, that failed."""
        self._replicas = Replicas()

    def __repr__(self) -> str:
        return f"<Membership of {self._replica}: {len(self._kept)} kept, {len(self._local)} connected here>"

    # -- what happens

    def connected(self, stream: Hashable, workload: RegisteredWorkload, unix_time: float = 0.0) -> None:
        """A workload has a stream here."""
        self.disconnected(stream)
        local = self._local.get(workload.key)
        if local is None:
            local = self._local[workload.key] = _Local(workload, unix_time)
        local.workload, local.is_new = workload, True
        local.streams[stream] = None
        self._key_of[stream] = workload.key
        self._touch(workload.key)

    def disconnected(self, stream: Hashable) -> None:
        """A stream is over; it may be none of a workload."""
        key = self._key_of.pop(stream, None)
        local = self._local.get(key) if key is not None else None
        if key is None or local is None:
            return
        local.streams.pop(stream, None)
        if not local.streams:
            del self._local[key]
        self._touch(key)

    def reported(self, key: ConfigKey, *, is_healthy: bool, reason: str = "") -> None:
        """The application is well, or not; it counts while the workload is connected here."""
        self._reports[key] = _Report(is_healthy, reason)
        self._touch(key)

    def forget_report(self, key: ConfigKey) -> None:
        """No stream stands by a report any more; what was reported last stays in the record."""
        self._reports.pop(key, None)

    def replace(self, kept: Mapping[ConfigKey, Kept], index: int | None = None) -> None:
        """The store had this and nothing else at this index. None: whatever we know of it is over."""
        for key, known in [*self._kept.items()]:
            if key not in kept and (index is None or known.index <= index):
                self._stored(key, None)
        for key, found in kept.items():
            before = self._kept.get(key)
            is_old = index is not None and (
                self._deleted.get(key) == found.index or (before is not None and found.index < before.index)
            )
            if not is_old and (before is None or before != found):
                self._stored(key, found)
        self._deleted = {key: at for key, at in self._deleted.items() if key in kept}

    def _stored(self, key: ConfigKey, kept: Kept | None) -> None:
        if kept is None:
            self._kept.pop(key, None)
            self._waiting.pop(key, None)
        else:
            self._kept[key] = kept
        self._touch(key)

    def _touch(self, key: ConfigKey) -> None:
        self._dirty[key] = self._touched[key] = None

    # -- what follows

    def take_touched(self) -> list[ConfigKey]:
        """The keys whose record in force may have changed since the last call."""
        touched, self._touched = [*self._touched], {}
        return touched

    def known(self) -> Iterator[ConfigKey]:
        """The keys of all records in force."""
        yield from {**self._kept, **self._local}

    def in_force(self, key: ConfigKey) -> Record | None:
        """The record of the mesh: that of the store, or of a workload that is connected here and not written yet."""
        local, kept = self._local.get(key), self._kept.get(key)
        if local is None:
            return kept.record if kept is not None else None
        if kept is not None and (_is_taken(kept.record, local.workload) or self._has_moved(local, kept.record)):
            return kept.record
        return self._wanted(local, kept)

    def is_taken(self, workload: RegisteredWorkload) -> bool:
        """True if its record is another identity's."""
        kept = self._kept.get(workload.key)
        return kept is not None and _is_taken(kept.record, workload)

    def changes(self, now: float, replicas: Replicas) -> list[Change]:
        """The writes that are due; last those that could not be written before."""
        if replicas != self._replicas:
            self._replicas = replicas
            self._dirty.update(dict.fromkeys(self.known()))
        found = []
        for key in {**self._dirty, **self._waiting}:
            change = self._change(key, now, replicas)
            if change is None:
                self._dirty.pop(key, None)
                self._failures.pop(key, None)
            else:
                found.append(change)
        return sorted(found, key=lambda change: self._failures.get(change.key, 0))

    def deadline(self, replicas: Replicas) -> float:
        """When more becomes due by time alone."""
        return min((self._ends(key, replicas) for key in self._waiting), default=math.inf)

    def is_due(self, change: Change, now: float, replicas: Replicas) -> bool:
        """True if a change is still what is to be written; its workload may have come or gone since."""
        return self._change(change.key, now, replicas) == change

    def failed(self, change: Change) -> None:
        """A change could not be written: others have their turn before it is tried again."""
        self._failures[change.key] = self._failures.get(change.key, 0) + 1

    def wrote(self, change: Change, index: int) -> None:
        """A change has taken place."""
        self._failures.pop(change.key, None)
        if change.record is None:
            self._deleted[change.key] = change.index
        self._stored(change.key, None if change.record is None else Kept(change.record, index))
        local = self._local.get(change.key)
        if local is not None and change.record is not None and change.record.is_connected:
            local.turn, local.is_new = change.record.turn, False

    def _change(self, key: ConfigKey, now: float, replicas: Replicas) -> Change | None:
        local, kept = self._local.get(key), self._kept.get(key)
        if local is not None:
            self._waiting.pop(key, None)
            return self._of_connected(key, local, kept, replicas)
        if kept is None:
            return None
        record = kept.record
        if record.is_connected and record.controller == self._replica:
            return Change(key, attrs.evolve(record, is_connected=False), kept.index)
        waiting = self._waiting.get(key)
        is_gone = record.is_connected and replicas.is_gone(record.controller)
        if record.is_connected and not is_gone:
            self._waiting.pop(key, None)
            return None
        if waiting is None or waiting[:2] != (record.turn, record.is_connected):
            self._waiting[key] = (record.turn, record.is_connected, now)
        return Change(key, None, kept.index) if self._ends(key, replicas) <= now else None

    def _of_connected(self, key: ConfigKey, local: _Local, kept: Kept | None, replicas: Replicas) -> Change | None:
        wanted = self._wanted(local, kept)
        if kept is None:
            return Change(key, wanted, 0)
        record = kept.record
        if _is_taken(record, local.workload):
            return None
        if self._has_moved(local, record) and not replicas.is_gone(record.controller):
            return None
        if wanted == record:
            local.is_new = False
            return None
        return Change(key, wanted, kept.index)

    def _has_moved(self, local: _Local, record: Record) -> bool:
        """True if a workload has connected elsewhere since, so that our stream of it is about to end."""
        return not local.is_new and record.is_connected and not local.has(record, self._replica)

    def _wanted(self, local: _Local, kept: Kept | None) -> Record:
        record = kept.record if kept is not None else None
        report = self._reports.get(local.workload.key)
        if record is None:
            found = Record(workload=local.workload, controller=self._replica, created=local.since)
        else:
            turn = record.turn if local.has(record, self._replica) else record.turn + 1
            found = attrs.evolve(
                record, workload=local.workload, controller=self._replica, turn=turn, is_connected=True
            )
        return attrs.evolve(found, is_healthy=report.is_healthy, reason=report.reason) if report else found

    def _ends(self, key: ConfigKey, replicas: Replicas) -> float:
        """When a record that waits is to be deleted by us."""
        _, was_connected, since = self._waiting[key]
        kept = self._kept.get(key)
        if kept is None or not (replicas.leads or kept.record.controller == self._replica):
            return math.inf
        return since + (self._orphaned if was_connected else self._grace)


def _is_taken(record: Record, workload: RegisteredWorkload) -> bool:
    return record.workload.identity != workload.identity and bool(workload.group or record.workload.group)
