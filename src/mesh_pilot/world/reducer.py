"""The reducer: the only writer of the World. It collects events until there is a quiet period, applies them, and
publishes a revision.

Debouncing is Pilot's: events wait until none came for ``debounce_after``, but no longer than ``debounce_max``. Events
that change only endpoints are urgent: while no others wait, they are applied at once, together with those that a
source sends right after them.

Why one task: what translators read must be one revision, and a lock around each read would cost more than all writes.
Trio switches tasks only where one awaits, so a writer that does not await within a revision needs no lock. Why all
events wait together: a change often consists of several, of several sources (a service and its endpoints, a
Secret and the Gateway that names it), and each revision in between would be pushed to all proxies.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import attrs
import structlog
import trio

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.base.containment import Contained
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Endpoints,
    Event,
    Item,
    Quarantine,
    Rejected,
    Replace,
    ResolvedHost,
    RolloutState,
    Upsert,
    WorkloadHealth,
)
from mesh_pilot.world.guard import HoldChange, HoldStep, accept_command, names_of
from mesh_pilot.world.intake import Admitted, Intake, ItemChange, Renewal
from mesh_pilot.world.world import Revision, World

_QUIET_AT_START = 0.01
"""Seconds of quiet until the initial sync is complete: no proxy is served yet, so a longer wait has no use."""

_TURNS = 3
"""Checkpoints before urgent events are published, so that sources can send the rest of a burst."""

_URGENT = (("endpoints",), ("addresses",), ("health",), ("quarantine",), ("rollout",))
"""Collections whose changes are urgent."""

_URGENT_AT_ONCE = 1000
"""Urgent events that are published even if more are arriving."""

log = structlog.get_logger(scope="world")


@attrs.frozen
class Published:
    """A revision and the clock around it."""

    revision: Revision
    first_event_at: float
    """Arrival of its oldest event, in seconds of ``trio.current_time()``."""
    published_at: float
    changes: Sequence[ItemChange] = ()
    """The items of sources that its events changed; a restored picture does not count."""
    events: Sequence[Event] = ()
    """The events that took effect."""
    apply_seconds: float = 0.0
    """The time that it took to apply them to the World."""


@attrs.frozen
class _Replayed:
    """The number and time of a revision of another process."""

    revision: int
    published_at: float


@attrs.frozen
class ReducerStatistics:
    events: int
    """Events applied since the start."""
    waiting: int
    """Events that wait in the debounce window now."""
    revisions: int
    """Revisions published since the start, including those that changed nothing."""
    debounced: int
    """Events that shared a revision with an earlier one."""
    apply_seconds: float
    """Total time spent applying events."""


class Reducer:
    """Feeds events into a World."""

    def __init__(
        self,
        world: World,
        *,
        debounce_after: float = 0.1,
        debounce_max: float = 10.0,
        intake: Intake | None = None,
        follows: bool = False,
    ) -> None:
        """``intake`` decides which events take effect; None: all.

        ``follows``: another process numbers the revisions; what only this one changes belongs to the latest of them.
        """
        self._world = world
        self.intake = intake or Intake(world)
        self.gates: list[Callable[[Admitted], Admitted]] = []
        """Functions that see events before they take effect, in order: owners of hosts, rollouts."""
        self._follows = follows
        self._after = debounce_after
        self._max = debounce_max
        self._waiting: list[Event] = []
        self._is_urgent = True
        """True if all waiting events change only endpoints."""
        self._first_at = 0.0
        self._events = 0
        self._revisions = 0
        self._debounced = 0
        self._apply_seconds = 0.0
        self._hooks: list[tuple[str, Callable[[Published], None]]] = []
        """Hooks with the names that the log has for them."""
        self._synced = trio.Event()
        self._next = trio.Event()
        """Set at the next revision."""

    def on_publish(self, hook: Callable[[Published], None]) -> None:
        """Call ``hook`` after every revision, from the reducer's task; it must not block."""
        self._hooks.append((getattr(hook, "__qualname__", "") or repr(hook), hook))

    async def wait_synced(self) -> None:
        """Wait until the initial sync of every expected source is published."""
        await self._synced.wait()

    async def wait_published(self) -> None:
        """Wait for the next revision, even if it changes nothing."""
        await self._next.wait()

    @property
    def synced(self) -> bool:
        return self._synced.is_set()

    async def run(
        self,
        events: trio.MemoryReceiveChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Apply events until the channel closes. If cancelled, the World stays at its last revision."""
        task_status.started()
        while True:
            try:
                await self._gather(events)
            except trio.EndOfChannel:
                if self._waiting:
                    self._admit()
                return
            self._admit()

    def restore(self, pictures: Iterable[tuple[str, Iterable[Item], datetime]]) -> None:
        """Publish what sources had in an earlier run, with the time of its confirmation; before ``run``."""
        events: list[Event] = []
        for source, items, confirmed_at in pictures:
            events += self.intake.restored(source, items, confirmed_at)
        if events:
            self._first_at = trio.current_time()
            self._publish(Admitted(events))

    def replay(self, events: Sequence[Event], revision: int, first_event_at: float, published_at: float) -> None:
        """Publish what the reducer of another process has published, under its number: all of it takes effect."""
        self._events += len(events)
        self._first_at = first_event_at
        self._publish(Admitted([*events]), _Replayed(revision, published_at))

    def debounce(self, after: float, longest: float) -> None:
        """Wait for so many seconds from the next event on."""
        self._after, self._max = after, longest

    def statistics(self) -> ReducerStatistics:
        return ReducerStatistics(
            events=self._events,
            waiting=len(self._waiting),
            revisions=self._revisions,
            debounced=self._debounced,
            apply_seconds=self._apply_seconds,
        )

    async def _gather(self, events: trio.MemoryReceiveChannel[Event]) -> None:
        """Wait for an event, then for a quiet period; or until the intake is due."""
        with trio.move_on_at(self.intake.due) as waiting:
            self._take(await events.receive())
        self._first_at = trio.current_time()
        if waiting.cancelled_caught:
            return
        deadline = self._first_at + self._max
        while True:
            self._drain(events)
            if self.synced and self._is_urgent:
                if len(self._waiting) >= _URGENT_AT_ONCE or not await self._more_arrive(events):
                    return
                continue
            quiet = self._after if self.synced else min(self._after, _QUIET_AT_START)
            with trio.move_on_at(min(trio.current_time() + quiet, deadline)) as scope:
                self._take(await events.receive())
            if scope.cancelled_caught or trio.current_time() >= deadline:
                return

    def _take(self, event: Event) -> None:
        self._waiting.append(event)
        self._is_urgent = self._is_urgent and self.synced and is_endpoint_only(event, self._world)

    def _drain(self, events: trio.MemoryReceiveChannel[Event]) -> None:
        while True:
            try:
                self._take(events.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel):
                return

    async def _more_arrive(self, events: trio.MemoryReceiveChannel[Event]) -> bool:
        """Let other tasks run. True if one of them sends an event."""
        waiting = len(self._waiting)
        for _ in range(_TURNS):
            await trio.lowlevel.checkpoint()
            self._drain(events)
        return len(self._waiting) > waiting

    def _admit(self) -> None:
        batch, self._waiting, self._is_urgent = self._waiting, [], True
        self._events += len(batch)
        self._debounced += max(0, len(batch) - 1)
        admitted = Admitted(batch)
        with Contained(log, "internal error in intake: guards are off until a restart; changes take effect") as failed:
            admitted = self.intake.admit(batch, trio.current_time())
        if failed.error is not None:
            self.intake = Intake(self._world)
        for gate in self.gates:
            admitted = gate(admitted)
        self._publish(admitted)

    def _apply(self, events: Sequence[Event], replayed: _Replayed | None) -> Revision:
        if replayed is not None:
            return self._world.follow(events, replayed.revision)
        if self._follows:
            return self._world.follow(events, self._world.revision)
        return self._world.apply(events)

    def _publish(self, admitted: Admitted, replayed: _Replayed | None = None) -> None:
        for hold in admitted.holds:
            _log_hold(hold)
        for renewal in admitted.renewals:
            _log_renewal(renewal)
        started = time.perf_counter()
        revision = self._apply(admitted.events, replayed)
        took = time.perf_counter() - started
        self._revisions += 1
        self._apply_seconds += took
        if revision.changed:
            (log.info if replayed is None else log.debug)(
                "published",
                revision=revision.number,
                changed=len(revision.changed),
                events=len(admitted.events),
                ms=round(took * 1000, 1),
            )
        if not self._synced.is_set() and not self._world.unsynced():
            self._synced.set()
        self._next.set()
        self._next = trio.Event()
        published_at = trio.current_time() if replayed is None else replayed.published_at
        published = Published(revision, self._first_at, published_at, admitted.changes, admitted.events, took)
        for name, hook in self._hooks:
            with Contained(log, "publish hook failed; world state is unaffected", hook=name):
                hook(published)


def _log_hold(change: HoldChange) -> None:
    held = change.held
    if change.step is HoldStep.BEGUN:
        log.warning(
            "picture held",
            source=held.source,
            reason=held.reason,
            first=held.first_names,
            **({"security": held.security} if held.security else {}),
            effect="they are kept until the source has them again",
            to_let_them_go=accept_command(held.source),
        )
        return
    event = "held picture recovered" if change.step is HoldStep.RECOVERED else "held picture accepted"
    log.info(event, source=held.source, gone=held.objects, **({"first": held.first_names} if held.keys else {}))


def _log_renewal(renewal: Renewal) -> None:
    log.info(
        "restored picture confirmed",
        source=renewal.source,
        last_confirmed=f"{renewal.confirmed_at:%Y-%m-%dT%H:%M:%SZ}",
        changed=renewal.changed,
    )
    if renewal.leftovers:
        log.warning(
            "refused objects stay as they were before the restart",
            source=renewal.source,
            objects=len(renewal.leftovers),
            first=names_of(renewal.leftovers),
            until="the source has a good version of them, or has them no more",
        )


def is_endpoint_only(event: Event, world: World) -> bool:
    """True if an event changes only endpoints, who is served old values, or nothing. Being late costs requests."""
    match event:
        case (
            Upsert(item=Endpoints() | ResolvedHost() | WorkloadHealth() | Quarantine() | RolloutState())
            | Rejected()
            | Accepted()
        ):
            return True
        case Upsert(source=source, item=Config() as config):
            before = world.item_of(source, ("config", *config.key))
            return config.key.kind == "WorkloadEntry" or (
                isinstance(before, Config) and _differs_in_endpoints_only(before, config)
            )
        case Delete(key=key) | Replace(collection=key):
            return key[:1] in _URGENT or key[:2] == ("config", "WorkloadEntry")
        case _:
            return False


def _differs_in_endpoints_only(before: Config, after: Config) -> bool:
    """True for two versions of a ServiceEntry that differ at most in endpoints.

    With DNS resolution endpoints are part of the cluster: the answer is False then.
    """
    if after.key.kind != "ServiceEntry" or after.spec.resolution != api.ServiceEntryResolution.STATIC:
        return False
    if (before.created, before.labels, before.annotations) != (after.created, after.labels, after.annotations):
        return False
    fields = (field.name for field in dataclasses.fields(after.spec) if field.name != "endpoints")
    return all(getattr(before.spec, name) == getattr(after.spec, name) for name in fields)
