"""The task that writes what the World becomes. It is told of each revision, and writes when it gets to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from mesh_pilot.model.events import Item
from mesh_pilot.safety.state.codec import Key
from mesh_pilot.safety.state.database import StateError
from mesh_pilot.safety.state.revision_log import NO_HISTORY, RevisionLog
from mesh_pilot.safety.state.store import Batch, SavedSourceState, Store
from mesh_pilot.world import Reducer, World
from mesh_pilot.world.reducer import Published

GATHER_SECONDS = 0.25
"""The wait for more changes before a write: proxies are served first, and a burst is written once."""
CONFIRM_SECONDS = 10.0
"""The longest time between two writes: they also say that sources still stand by their pictures."""
SETTLE_SECONDS = 1.0
"""The same while proxies answer what followed from the last revisions."""
RETRY_SECONDS = 1.0
"""The first wait after a write that failed; each next is twice as long,"""
RETRY_LIMIT_SECONDS = 30.0
"""up to this."""
LAST_SECONDS = 2.0
"""The time for a last write after the task was cancelled."""
MAX_CHANGED = 50_000
"""Changed keys of a source that wait while writing fails. Of more, the whole picture is written instead."""

log = structlog.get_logger(scope="state")


class Standing(Protocol):
    """A source's own word on the picture that it has sent; see `sources.base.contract.SourceStatistics`."""

    @property
    def synced(self) -> bool: ...


class Recorded(Protocol):
    """A source whose picture is kept."""

    name: str

    def statistics(self) -> Standing: ...


@attrs.frozen
class RecorderStatistics:
    """How writing goes. Times are of Trio's clock, in seconds."""

    writes: int
    failures: int
    last_write: float | None
    """None: there was none yet."""
    failing_since: float | None
    """None: writing works."""
    trouble: str
    """The reason why it does not; empty while it does."""
    bytes: int
    """The size of the file."""
    confirmed: Mapping[str, datetime]
    """The sources whose pictures are in it, and when they last stood by them."""


class Recorder:
    """Writes revisions into a store, off the reducer's path.

    State: the keys that have changed since the last write, by source; whether writing works, and since when not.
    """

    def __init__(self, store: Store, world: World, reducer: Reducer, sources: Sequence[Recorded]) -> None:
        self.store = store
        self._world = world
        self._reducer = reducer
        self._sources = {source.name: source for source in sources if source.name in store.places}
        self._changed: dict[str, dict[Key, None]] = {}
        revisions = store.settings.history.revisions
        self.history = RevisionLog(world.settings, limit=revisions) if revisions else None
        """The log of revisions to write; None: they are not kept."""
        self._wake = trio.Event()
        self._turn = trio.CapacityLimiter(1)
        self._writes = self._failures = 0
        self._last_write: float | None = None
        self._confirmed_then: Mapping[str, datetime] = {}
        self._failing_since: float | None = None
        self._trouble = ""

    def __repr__(self) -> str:
        waiting = sum(map(len, self._changed.values()))
        return f"<Recorder {waiting} changes waiting{f', failing: {self._trouble}' if self._trouble else ''}>"

    def statistics(self) -> RecorderStatistics:
        return RecorderStatistics(
            writes=self._writes,
            failures=self._failures,
            last_write=self._last_write,
            failing_since=self._failing_since,
            trouble=self._trouble,
            bytes=self.store.bytes,
            confirmed=self._confirmed_then,
        )

    def published(self, published: Published) -> None:
        """A revision of the World: for `Reducer.on_publish`."""
        for change in published.changes:
            if change.source in self._sources:
                self._changed.setdefault(change.source, {})[change.key] = None
        if self.history is not None:
            self.history.published(published)
        self._wake.set()

    async def added(self, source: Recorded) -> SavedSourceState | None:
        """A source comes while others run: its picture of an earlier run; None if there is none."""
        place = getattr(source, "place", None)
        if not isinstance(place, str):
            return None
        self._sources[source.name] = source
        try:
            return await trio.to_thread.run_sync(partial(self.store.picture_of, source.name, place), limiter=self._turn)
        except StateError as error:
            self._failed(error)
            return None

    async def replaced(self, source: Recorded) -> None:
        """A source continues in place of the one of its name, with what that had. It may read at another place."""
        place = getattr(source, "place", None)
        if source.name in self._sources and isinstance(place, str):
            self._sources[source.name] = source
            await trio.to_thread.run_sync(partial(self.store.move, source.name, place), limiter=self._turn)

    async def removed(self, name: str) -> None:
        """A source is no more."""
        if self._sources.pop(name, None) is None:
            return
        self._changed.pop(name, None)
        try:
            await trio.to_thread.run_sync(partial(self.store.forget, name), limiter=self._turn)
        except StateError as error:
            self._failed(error)

    def unusable(self, error: Exception) -> None:
        """The store cannot be opened: it is tried again, and said when it works."""
        self._failed(error)

    async def run(self) -> None:
        """Write until cancelled; what is left is written then, within `LAST_SECONDS`."""
        pause = RETRY_SECONDS
        try:
            while True:
                if self._failing_since is None:
                    is_settling = self.history is not None and self.history.is_settling
                    with trio.move_on_after(SETTLE_SECONDS if is_settling else CONFIRM_SECONDS):
                        await self._wake.wait()
                    await trio.sleep(GATHER_SECONDS)
                    pause = RETRY_SECONDS
                else:
                    await trio.sleep(pause)
                    pause = min(pause * 2, RETRY_LIMIT_SECONDS)
                self._wake = trio.Event()
                await self._write()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_SECONDS):
                await self._in_thread(int)  # a write that was under way
                await self._write()
                await self._in_thread(self.store.close)

    async def _in_thread(self, call: Callable[[], object]) -> None:
        """Make a blocking call, after the one before it. If cancelled, it continues; its result is lost."""
        await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._turn)

    async def _write(self) -> None:
        try:
            batch = self._batch()
        except Exception as error:
            self._failed(error)
            return
        if not (batch.items or batch.confirmed or batch.history):
            return
        changed, self._changed = self._changed, {}
        try:
            await self._in_thread(partial(self.store.write, batch))
        except BaseException as error:
            if self.history is not None:
                self.history.give_back(batch.history)
            for source, keys in changed.items():
                self._changed.setdefault(source, {}).update(keys)
            if not isinstance(error, Exception):
                raise
            for source in [source for source, keys in self._changed.items() if len(keys) > MAX_CHANGED]:
                del self._changed[source]
                self.store.begin_anew(source)
            self._failed(error)  # of any kind: a fault in what is only a memory must not end the service
            return
        self._writes += 1
        self._confirmed_then = {**self._confirmed_then, **batch.confirmed}
        self._last_write = trio.current_time()
        if self._failing_since is not None:
            log.info("state is kept again", seconds=round(self._last_write - self._failing_since))
        self._failing_since, self._trouble = None, ""

    def _batch(self) -> Batch:
        """The changes of all sources whose picture is full."""
        confirmed = self._confirmed()
        whole = frozenset(confirmed.keys() - self.store.current)
        items: list[tuple[str, Key, Item | None]] = []
        for source in whole:
            items += [(source, key, item) for key, item in self._world.items_of(source).items()]
        for source in self.store.current:
            keys = self._changed.get(source, ())
            items += [(source, key, self._world.item_of(source, key)) for key in keys]
        history = self.history.take(trio.current_time()) if self.history is not None else NO_HISTORY
        return Batch(self._world.revision, items, confirmed, whole, history, self._world.sources())

    def _confirmed(self) -> Mapping[str, datetime]:
        """The sources that stand by what they have in the World, and when they last did."""
        found = {}
        now = datetime.now(UTC)
        unsynced, stale = self._world.unsynced(), self._reducer.intake.stale()
        for name, source in self._sources.items():
            statistics = source.statistics()
            if (confirmed_at := stale.get(name)) is not None:
                if name not in self.store.undecrypted:  # the file has more than the World until the source answers
                    found[name] = confirmed_at
            elif name not in unsynced and name not in stale and statistics.synced:
                silent = getattr(statistics, "stale_seconds", 0.0)
                found[name] = now - timedelta(seconds=silent if math.isfinite(silent) else 0.0)
        return found

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failing_since is None:
            self._failing_since = trio.current_time()
        if str(error) != self._trouble:
            self._trouble = str(error)
            trace = {} if isinstance(error, StateError) else {"exc_info": error}
            text = "state is not kept; the mesh is served as before, and it is tried again"
            log.error(text, reason=self._trouble, **trace)
