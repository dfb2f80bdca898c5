"""The reducer: the only writer of the World. It waits for a quiet moment, applies what came, publishes a revision.

Debouncing is Pilot's: changes are held until none came for ``debounce_after``, but no longer than ``debounce_max``.
When nothing is being held, changes of endpoints only (see ``urgency``) are applied at once, those together that a
source sends one right after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
import structlog
import trio

from mesh_pilot.model.events import Event
from mesh_pilot.world.urgency import touches_only_endpoints
from mesh_pilot.world.world import Revision, World

_QUIET_AT_START = 0.01
"""Seconds of quiet before the first pictures are published: nobody is served yet, and waiting helps nobody."""

_TURNS = 3
"""How often others run before urgent changes are published: who has more to send at once has sent it then."""

_URGENT_AT_ONCE = 1000
"""So many urgent changes are published although more of them are coming."""

log = structlog.get_logger(scope="world")


@attrs.frozen
class Published:
    """A revision and the clock around it."""

    revision: Revision
    first_event_at: float
    """When the oldest of its events came in, in seconds of ``trio.current_time()``."""
    published_at: float


@attrs.frozen
class ReducerStatistics:
    events: int
    """Events taken since the start."""
    waiting: int
    """Events held back by debouncing now."""
    revisions: int
    """Revisions published since the start, including those that changed nothing."""
    debounced: int
    """Events that shared a revision with an earlier one."""
    apply_seconds: float
    """Time spent applying, all together."""


class Reducer:
    """Feeds events into a World."""

    def __init__(self, world: World, *, debounce_after: float = 0.1, debounce_max: float = 10.0) -> None:
        self._world = world
        self._after = debounce_after
        self._max = debounce_max
        self._waiting: list[Event] = []
        self._is_urgent = True
        """Whether all that waits is about endpoints only."""
        self._first_at = 0.0
        self._events = 0
        self._revisions = 0
        self._debounced = 0
        self._apply_seconds = 0.0
        self._hooks: list[Callable[[Published], None]] = []
        self._synced = trio.Event()

    def on_publish(self, hook: Callable[[Published], None]) -> None:
        """Call ``hook`` after every revision, from the reducer's task; it must not block."""
        self._hooks.append(hook)

    async def wait_synced(self) -> None:
        """Until every expected source has sent its first full picture and it is published."""
        await self._synced.wait()

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    async def run(
        self,
        events: trio.MemoryReceiveChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Apply events until the channel closes. Cancelled, it leaves the World at its last revision."""
        task_status.started()
        while True:
            try:
                await self._gather(events)
            except trio.EndOfChannel:
                if self._waiting:
                    self._publish()
                return
            self._publish()

    def statistics(self) -> ReducerStatistics:
        return ReducerStatistics(
            events=self._events,
            waiting=len(self._waiting),
            revisions=self._revisions,
            debounced=self._debounced,
            apply_seconds=self._apply_seconds,
        )

    async def _gather(self, events: trio.MemoryReceiveChannel[Event]) -> None:
        """Wait for an event, then for quiet."""
        self._take(await events.receive())
        self._first_at = trio.current_time()
        deadline = self._first_at + self._max
        while True:
            self._drain(events)
            if self.synced and self._is_urgent:
                if len(self._waiting) >= _URGENT_AT_ONCE or not await self._comes_more(events):
                    return
                continue
            quiet = self._after if self.synced else min(self._after, _QUIET_AT_START)
            with trio.move_on_at(min(trio.current_time() + quiet, deadline)) as scope:
                self._take(await events.receive())
            if scope.cancelled_caught or trio.current_time() >= deadline:
                return

    def _take(self, event: Event) -> None:
        self._waiting.append(event)
        self._is_urgent = self._is_urgent and self.synced and touches_only_endpoints(event, self._world)

    def _drain(self, events: trio.MemoryReceiveChannel[Event]) -> None:
        while True:
            try:
                self._take(events.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return

    async def _comes_more(self, events: trio.MemoryReceiveChannel[Event]) -> bool:
        """Let others run: does any of them send something?"""
        waiting = len(self._waiting)
        for _ in range(_TURNS):
            await trio.lowlevel.checkpoint()
            self._drain(events)
        return len(self._waiting) > waiting

    def _publish(self) -> None:
        batch, self._waiting, self._is_urgent = self._waiting, [], True
        started = time.perf_counter()
        revision = self._world.apply(batch)
        took = time.perf_counter() - started
        self._events += len(batch)
        self._debounced += max(0, len(batch) - 1)
        self._revisions += 1
        self._apply_seconds += took
        if revision.changed:
            log.info(
                "published",
                revision=revision.number,
                changed=len(revision.changed),
                events=len(batch),
                ms=round(took * 1000, 1),
            )
        if not self._synced.is_set() and not self._world.unsynced():
            self._synced.set()
        published = Published(revision, self._first_at, trio.current_time())
        for hook in self._hooks:
            try:
                hook(published)
            except Exception as error:
                name = getattr(hook, "__qualname__", repr(hook))
                log.error("publish hook failed; world state is unaffected", hook=name, exc_info=error)
