"""The source that reads files: looks, parses, waits for half-written files to settle, and sends what changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.config.groups import reason_ignored
from mesh_pilot.model.events import Accepted, Event, Replace, Synced
from mesh_pilot.sources.beside import LARGE_BYTES, beside
from mesh_pilot.sources.files.content import Content, Entry, Gone, Ignored, Place, Reading, Unreadable
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.look import Look, look
from mesh_pilot.sources.files.objects import Known
from mesh_pilot.sources.files.roots import Parts, Root
from mesh_pilot.sources.files.watch import Watched, Watcher

log = structlog.get_logger(scope="sources")


@attrs.frozen
class Timing:
    """How long to wait for what, in seconds of Trio's clock."""

    quiet_seconds: float = 0.1
    """Nothing may have changed for so long before an object is refused or taken back: the file may be half written,
    the object on its way to another file."""
    patience_seconds: float = 2.0
    """Where files never come to rest, objects are refused and taken back after so long all the same."""
    rescan_seconds: float = 30.0
    """How often to look although nothing was told: network file systems tell nothing."""
    poll_seconds: float = 1.0
    """How often to look where nothing can be told."""


@attrs.frozen
class FileSourceStatistics:
    """How a file source is doing."""

    items: int
    """Objects in force."""
    rejected: int
    """Rejections that stand."""
    synced: bool
    waiting_for: str
    """What keeps it from syncing; empty once it has."""
    files: int
    """Files known, readable or not."""
    pending: int
    """Files whose change refuses or takes back something and waits for things to settle."""
    looks: int
    """How often it looked for changes."""
    reads: int
    """How many files it has opened."""
    watching: str
    """How it learns of changes: ``events`` of the operating system, or ``polling`` with the reason if it has to."""


class FileSource:
    """Sends what stands in files and folders, and how that changes.

    What adds or changes objects is sent at once; what refuses or takes back some waits until nothing has changed for
    a short time. What can't be read, or has vanished, keeps what it said.

    State: `_last` and `_index`, what is known, survive a restart; `_pending`, changes that wait; `_recent`, units that
    changed since all was quiet; `_known`, what stood in the parts of files that hold several objects; `_over`, what
    became good before the first picture was sent.
    """

    def __init__(self, name: str, roots: Sequence[Root], *, timing: Timing | None = None, poll: bool = False) -> None:
        """`poll`: look every `poll_seconds` instead of being told by the operating system."""
        self.name = name
        self._roots = tuple(roots)
        self._timing = timing or Timing()
        self._always_poll = poll
        self._failure = ""
        self._index = FileIndex(name)
        self._last = Look()
        self._pending: dict[Place, Reading] = {}
        self._pending_since = math.inf
        self._recent: set[Place] = set()
        self._changed_at = -math.inf
        self._ignored: dict[Place, frozenset[tuple[str, str]]] = {}
        self._known: dict[Place, Known] = {}
        self._over: list[Accepted] = []
        self._announced = False
        self._synced = False
        self._looks = 0
        self._reads = 0
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
            pending=len(self._pending),
            looks=self._looks,
            reads=self._reads,
            watching=self._watching(),
        )

    async def run(
        self,
        events: trio.MemorySendChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send everything, then every change, until cancelled. What is known is kept for the next run."""
        self._announced = self._synced = False
        async with trio.open_nursery() as nursery:
            watcher = Watcher(nursery, self._wake_up, self._timing.rescan_seconds)
            task_status.started()
            while True:
                self._wake = trio.Event()
                await self._look()
                for event in self._take():
                    await events.send(event)
                if not await self._watch(watcher):
                    with trio.move_on_at(self._next_look()):
                        await self._wake.wait()

    def _watching(self) -> str:
        if self._always_poll:
            return "polling"
        return f"polling ({self._failure})" if self._failure else "events"

    def _wake_up(self) -> None:
        self._wake.set()

    async def _look(self) -> None:
        """See what has changed, and parse it. Cancelled half-way, it is as if it had not looked."""
        is_quiet = trio.current_time() >= self._changed_at + self._timing.quiet_seconds
        # A file may change twice within what its times can tell: what changed is read once more before it counts.
        again = frozenset(self._recent) if is_quiet else frozenset()
        found = await trio.to_thread.run_sync(look, self._roots, self._last, again, abandon_on_cancel=True)
        now = trio.current_time()
        readings: dict[Place, Reading] = {}
        for place, what in found.changed.items():
            readings[place] = what if isinstance(what, Unreadable | Gone) else await self._parse(place, what)
            if isinstance(what, Gone):
                self._known.pop(place, None)
        self._last = attrs.evolve(found, changed={})
        self._looks += 1
        self._reads += found.reads
        if readings:
            self._changed_at = now
            self._recent |= readings.keys()
            self._pending |= readings
        elif is_quiet:
            self._recent.clear()

    async def _parse(self, place: Place, parts: Parts) -> Content:
        """What stands in a unit; others run meanwhile, or after every object of a small one."""
        entries: list[Entry] = []
        ignored: set[tuple[str, str]] = set()
        known = dict(self._known.get(place, {}))
        found: Iterable[Entry | Ignored] = self._roots[place.root].parse(place.path, parts, known)
        if sum(map(len, parts.values())) > LARGE_BYTES:
            found = await beside(True, partial(list, found))
        for entry in found:
            if isinstance(entry, Ignored):
                ignored.add((entry.api_version, entry.kind))
            else:
                entries.append(entry)
            await trio.lowlevel.checkpoint()
        self._known[place] = known
        if len(known) < 2:
            del self._known[place]  # a file of one object is read again whatever changes in it
        for api_version, kind in sorted(ignored - self._ignored.get(place, frozenset())):
            _log_ignored(place.path, api_version, kind)
        self._ignored[place] = frozenset(ignored)
        return Content(tuple(entries))

    def _take(self) -> Sequence[Event]:
        """What is to be sent now."""
        events = self._index.update(self._due())
        if self._announced:
            return [*events, *self._sync()]
        self._over += (event for event in events if isinstance(event, Accepted))
        if self._pending:
            return []
        over, self._over, self._announced = self._over, [], True
        rejections = self._index.rejections()
        picture: list[Event] = [Replace(self.name, (), self._index.items()), *over, *rejections]
        return [*picture, *self._sync()]

    def _due(self) -> Mapping[Place, Reading]:
        """The changes that need not wait any longer."""
        due = self._pending
        now = trio.current_time()
        if self._recent and now < self._pending_since + self._timing.patience_seconds:
            due = {place: reading for place, reading in due.items() if self._index.is_harmless(place, reading)}
        self._pending = {place: reading for place, reading in self._pending.items() if place not in due}
        self._pending_since = min(self._pending_since, now) if self._pending else math.inf
        return due

    def _sync(self) -> Sequence[Event]:
        """Synced, if that is so and has not been said."""
        if self._synced or self._waiting_for():
            return ()
        self._synced = True
        state = self._index.statistics()
        log.info("all is read", source=self.name, files=state.files, objects=state.items, rejected=state.rejected)
        return (Synced(self.name),)

    def _waiting_for(self) -> str:
        if self._synced:
            return ""
        if not self._announced:
            return "files being read"
        unread = (root.path for rank, root in enumerate(self._roots) if rank not in self._last.identities)
        return "; ".join(f"{path} can't be read" for path in unread)

    async def _watch(self, watcher: Watcher) -> bool:
        """Watch the folders that there are now; True: look again before waiting to be told."""
        if self._always_poll:
            return False
        if await watcher.over(Watched.over(self._last.folders, [root.path for root in self._roots])):
            return True
        if watcher.failure and watcher.failure != self._failure:
            log.warning("can't watch for changes, looking for them instead", source=self.name, why=watcher.failure)
        self._failure = watcher.failure
        return False

    def _next_look(self) -> float:
        """When to look next if nothing is told."""
        timing = self._timing
        is_polling = self._always_poll or self._failure
        at = trio.current_time() + (timing.poll_seconds if is_polling else timing.rescan_seconds)
        if not self._recent:
            return at
        return min(at, self._changed_at + timing.quiet_seconds, self._pending_since + timing.patience_seconds)


def _log_ignored(file: str, api_version: str, kind: str) -> None:
    what = "objects of this kind are ignored"
    if reason := reason_ignored(api_version, kind):
        log.warning(what, file=file, api_version=api_version, kind=kind, reason=reason)
    else:
        log.info(what, file=file, api_version=api_version, kind=kind)
