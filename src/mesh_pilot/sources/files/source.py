"""The source of files: it scans, parses, waits for half-written files to settle, and sends the changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.model.events import Event, EventSender, Item, Synced
from mesh_pilot.sources.base.contract import IgnoredKind
from mesh_pilot.sources.files.content import (
    FileLocation,
    FileReading,
    Gone,
    Unreadable,
)
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.parsing import UnitParser
from mesh_pilot.sources.files.roots import Identity, Root
from mesh_pilot.sources.files.scan import Scan, identities_of, scan, scan_touched
from mesh_pilot.sources.files.waiting import FileTiming, PendingReadings
from mesh_pilot.sources.files.watch import Watched, Watcher
from mesh_pilot.sources.files.writers import Writers

log = structlog.get_logger(scope="sources")


@attrs.frozen
class FileSourceStatistics:
    """The statistics of a file source."""

    items: int
    """Objects in force."""
    rejected: int
    """Rejections in force."""
    synced: bool
    waiting_for: str
    """The reason why it has not synced; empty once it has."""
    files: int
    """Files known, readable or not."""
    pending: int
    """Files whose change rejects or removes an object, and waits for things to settle."""
    looks: int
    """The number of scans."""
    reads: int
    """The number of files that it has opened."""
    watching: str
    """The way it notices changes: ``events`` of the operating system, or ``polling`` with the reason if it has to."""
    being_written: int = 0
    """Files that are open for writing: their last content is kept."""
    listings: int = 0
    """The number of scans that were of all folders, not of touched files alone."""
    ignored: tuple[IgnoredKind, ...] = ()
    """Objects of kinds that are not Istio's."""


class FileSource:
    """Sends the objects in files and folders, and their changes. Implements ``Source``, ``Placed`` and ``Seeded``.

    What adds or changes objects is sent at once; what refuses or takes back some waits (`waiting` says for what). What
    is being written, can't be read, or has vanished, keeps what it said.

    State: `_last` and `_index`, what is known, survive a restart; `_listed_at`, when all folders were looked through;
    `_waiting`, changes that do not count yet; `_recent`, units that changed since all was quiet; `_writers`, paths that
    are being written, and `_written`, which files those are.
    """

    def __init__(
        self, name: str, roots: Sequence[Root], *, timing: FileTiming | None = None, poll: bool = False
    ) -> None:
        """`poll`: scan every `poll_seconds` instead of waiting for events of the operating system."""
        self.name = name
        self._roots = tuple(roots)
        self.place = "; ".join(root.place for root in roots)
        self._timing = timing or FileTiming()
        self._always_poll = poll
        self._failure = ""
        self._index = FileIndex(name)
        self._last = Scan()
        self._waiting = PendingReadings(self._timing)
        self._writers = Writers(self._timing.open_seconds)
        self._written: frozenset[Identity] = frozenset()
        self._recent: set[FileLocation] = set()
        self._changed_at = -math.inf
        self._parser = UnitParser(self._roots)
        self._synced = False
        self._looks = 0
        self._reads = 0
        self._listings = 0
        self._listed_at = -math.inf
        self._wake = trio.Event()

    def __repr__(self) -> str:
        state = self.statistics()
        return f"<FileSource {self.name}: {state.files} files, {state.items} items, {state.rejected} rejected>"

    def statistics(self) -> FileSourceStatistics:
        index = self._index.statistics()
        return FileSourceStatistics(
            items=index.items,
            rejected=index.rejected,
            synced=self._synced,
            waiting_for=self._waiting_for(),
            files=len(self._last.seen),
            pending=len(self._waiting),
            being_written=len(self._writers.open),
            looks=self._looks,
            listings=self._listings,
            reads=self._reads,
            watching=self._watching(),
            ignored=self._parser.ignored_kinds(),
        )

    def seed(self, items: Sequence[Item]) -> None:
        """Parts of files that are as they were in an earlier run are not read again: their objects are known."""
        self._parser.seed(items)

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send everything, then every change, until cancelled. What is known is kept for the next run."""
        self._index.state.restart()
        self._synced = False
        self._writers.forget()
        async with trio.open_nursery() as nursery:
            watcher = Watcher(nursery, self._wake_up, self._timing.rescan_seconds, self._writers)
            task_status.started()
            while True:
                self._wake = trio.Event()
                await self._scan(watcher)
                for event in self._take():
                    await events.send(event)
                if not await self._watch(watcher):
                    with trio.move_on_at(self._next_scan()):
                        await self._wake.wait()

    def _watching(self) -> str:
        if self._always_poll:
            return "polling"
        return f"polling ({self._failure})" if self._failure else "events"

    def _wake_up(self) -> None:
        self._wake.set()

    async def _scan(self, watcher: Watcher) -> None:
        """Scan, and parse what has changed. If cancelled half-way, nothing has happened."""
        is_quiet = trio.current_time() >= self._changed_at + self._timing.quiet_seconds
        # A file may change twice within what its times can tell: what changed is read once more before it counts.
        again = frozenset(self._recent) if is_quiet else frozenset()
        found = await self._find(watcher, again)
        now = trio.current_time()
        readings: dict[FileLocation, FileReading] = {}
        for location, what in found.changed.items():
            readings[location] = (
                what if isinstance(what, Unreadable | Gone) else await self._parser.parse(location, what)
            )
            if isinstance(what, Gone):
                self._parser.forget(location)
        self._last = attrs.evolve(found, changed={})
        self._looks += 1
        self._reads += found.reads
        if found.is_complete:
            self._listings += 1
            self._listed_at = now
        if readings:
            self._changed_at = now
            self._recent |= readings.keys()
            for location, reading in readings.items():
                self._waiting.add(location, reading, now, in_place=location in found.in_place)
        elif is_quiet:
            self._recent.clear()

    async def _find(self, watcher: Watcher, again: Collection[FileLocation]) -> Scan:
        """A scan that skips files that are being written, or were while it ran."""
        watcher.catch_up()
        self._writers.mark()
        touched = watcher.take_touched()
        if trio.current_time() >= self._listed_at + self._timing.rescan_seconds:
            touched = None
        find = partial(_scan_roots, self._roots, self._last, touched, again, self._writers.open)
        found, self._written = await trio.to_thread.run_sync(find, abandon_on_cancel=True)
        watcher.catch_up()
        if half_read := identities_of(self._writers.modified):
            found = found.without(half_read, self._last)
            self._written = identities_of(self._writers.open)
        return found

    def _take(self) -> Sequence[Event]:
        """The events to send now."""
        events = self._index.update(self._due())
        if not self._index.state.is_announced:
            if self._waiting.unreported:
                return []
            events = self._index.state.announce()
        return [*events, *self._sync()]

    def _due(self) -> Mapping[FileLocation, FileReading]:
        """The changes that are due."""
        now, at_rest = trio.current_time(), not self._recent
        return self._waiting.due(now, self._index, at_rest=at_rest, written=self._locations_written())

    def _locations_written(self) -> Collection[FileLocation]:
        """The changed units that are being written."""
        if not self._written:
            return ()
        return {location for location in self._waiting.locations if self._last.is_of(location, self._written)}

    def _sync(self) -> Sequence[Event]:
        """Synced, if it has just become so."""
        if self._synced or self._waiting_for():
            return ()
        self._synced = True
        self._parser.end_restoring()
        state = self._index.statistics()
        log.info(
            "initial sync complete", source=self.name, files=state.files, objects=state.items, rejected=state.rejected
        )
        return (Synced(self.name),)

    def _waiting_for(self) -> str:
        if self._synced:
            return ""
        if not self._index.state.is_announced:
            return "files being read"
        unread = (root.path for rank, root in enumerate(self._roots) if rank not in self._last.identities)
        return "; ".join(f"{path} can't be read" for path in unread)

    async def _watch(self, watcher: Watcher) -> bool:
        """Watch the folders that there are now; True: scan again before waiting for events."""
        if self._always_poll:
            return False
        if await watcher.over(Watched.over(self._last.folders, [root.path for root in self._roots])):
            return True
        if watcher.failure and watcher.failure != self._failure:
            log.warning("file watching unavailable; polling instead", source=self.name, why=watcher.failure)
        self._failure = watcher.failure
        return False

    def _next_scan(self) -> float:
        """The time of the next scan if there is no event."""
        timing = self._timing
        is_polling = self._always_poll or self._failure
        at = trio.current_time() + timing.poll_seconds if is_polling else self._listed_at + timing.rescan_seconds
        at = min(at, self._waiting.next_at(at_rest=not self._recent, written=self._locations_written()))
        return min(at, self._changed_at + timing.quiet_seconds) if self._recent else at


def _scan_roots(
    roots: Sequence[Root],
    before: Scan,
    touched: Collection[str] | None,
    again: Collection[FileLocation],
    open_files: Collection[str],
) -> tuple[Scan, frozenset[Identity]]:
    """One scan, and the identities of the files that are open for writing. Blocking. `touched`: None for all."""
    written = identities_of(open_files)
    found = None if touched is None else scan_touched(roots, before, touched, again, written)
    return scan(roots, before, again, written) if found is None else found, written
