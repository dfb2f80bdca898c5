"""A supervisor keeps one source running: it restarts a source that raises, and nothing else notices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.model.events import Event, EventSender, Item, Synced
from mesh_pilot.sources.base.contract import Source, SourceStatistics

log = structlog.get_logger(scope="sources")


class SourceState(StrEnum):
    IDLE = "idle"
    """Not started."""
    SYNCING = "syncing"
    """Running; its first full picture is not in yet."""
    SYNCED = "synced"
    """Running; its items are current."""
    WAITING = "waiting"
    """It raised and will be started again; its items are kept."""
    ENDED = "ended"
    """It returned or was cancelled; its items are kept."""


@attrs.frozen
class SupervisorStatistics:
    """The state of a source and its supervision. Times are of Trio's clock, in seconds; None: never."""

    name: str
    state: SourceState
    restarts: int
    """The number of times that it raised and was started again."""
    last_error: str
    """The last error that it raised; empty if it never did."""
    ever_synced: bool
    """True once a full picture came at any time: the source no longer holds up readiness."""
    synced_since: float | None
    """The time when it synced since it was last started."""
    last_event: float | None
    """The time of its last event."""
    events: int
    """The number of events that it has sent."""
    source: SourceStatistics
    """The statistics of the source itself."""

    @property
    def waiting_for(self) -> str:
        """The reason why it has not synced, as it is now; empty once it has."""
        return self.last_error if self.state is SourceState.WAITING else self.source.waiting_for


class RestoredSourceState(Protocol):
    """The last picture of a source in an earlier run."""

    @property
    def items(self) -> tuple[Item, ...]: ...

    @property
    def confirmed_at(self) -> datetime: ...


class StateWriter(Protocol):
    """Keeps the pictures of sources over restarts."""

    async def added(self, source: Source) -> RestoredSourceState | None:
        """A source comes: its last picture; None if there is none."""

    async def replaced(self, source: Source) -> None:
        """A source continues in place of the one of its name, with what that had."""

    async def removed(self, name: str) -> None:
        """A source is no more."""


@runtime_checkable
class Supervising(Protocol):
    """More of a source that runs others, which come and go."""

    state_writer: StateWriter | None
    """Keeps the sources' pictures; None: they are not kept."""

    @property
    def supervisors(self) -> Sequence[Supervisor]: ...


class Supervisor:
    """Runs one source, which sends its events through it.

    State: where the source is in its life, whether anyone still receives events, and the counters of `statistics`.
    """

    def __init__(self, source: Source, events: EventSender, *, backoff: Backoff | None = None) -> None:
        self.source = source
        self._events = events
        self._backoff = backoff or Backoff()
        self._state = SourceState.IDLE
        self._restarts = 0
        self._last_error = ""
        self._ever_synced = trio.Event()
        self._synced_since: float | None = None
        self._last_event: float | None = None
        self._sent = 0
        self._is_broken = False

    def __repr__(self) -> str:
        return f"<Supervisor of {self.source.name}: {self._state}, {self._restarts} restarts>"

    def statistics(self) -> SupervisorStatistics:
        return SupervisorStatistics(
            name=self.source.name,
            state=self._state,
            restarts=self._restarts,
            last_error=self._last_error,
            ever_synced=self._ever_synced.is_set(),
            synced_since=self._synced_since,
            last_event=self._last_event,
            events=self._sent,
            source=self.source.statistics(),
        )

    async def wait_synced(self) -> None:
        """Wait until the source's first full picture has been passed on. Cancelling leaves nothing behind."""
        await self._ever_synced.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the source until cancelled, starting it again whenever it dies.

        Returns if the source returns. Raises only what is not the source's doing: cancellation, and
        trio.BrokenResourceError when the receiver of events is closed.
        """
        task_status.started()
        try:
            while not await self._run_once():
                self._state = SourceState.WAITING
                await trio.sleep(self._backoff.next_seconds())
                self._restarts += 1
        finally:
            self._state = SourceState.ENDED

    async def _run_once(self) -> bool:
        """Run the source once; True if it returned, False if it raised."""
        self._state = SourceState.SYNCING
        self._synced_since = None
        started = trio.current_time()
        try:
            await self.source.run(self)
        except Exception as error:
            if self._is_broken:
                raise trio.BrokenResourceError from error
            if trio.current_time() - started >= self._backoff.limit_seconds:
                self._backoff.reset()
            self._died(error)
            return False
        return True

    async def send(self, event: Event, /) -> None:
        """Pass an event of the source on, and count it: a slow reducer slows the source, not memory."""
        try:
            await self._events.send(event)
        except trio.BrokenResourceError:
            self._is_broken = True
            raise
        self._sent += 1
        self._last_event = trio.current_time()
        if isinstance(event, Synced) and event.source == self.source.name:  # it may pass on those of others
            self._state = SourceState.SYNCED
            self._synced_since = trio.current_time()
            self._ever_synced.set()

    def _died(self, error: Exception) -> None:
        """Log it: in full the first time, in a line while it stays the same."""
        message = f"{type(error).__name__}: {error}"
        log.error(
            "source failed; its configuration is kept; restarting it",
            source=self.source.name,
            error=message,
            restarts=self._restarts,
            next_try_within_seconds=self._backoff.ceiling_seconds,
            exc_info=error if message != self._last_error else None,
        )
        self._last_error = message
