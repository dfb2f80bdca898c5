"""The other workers, from the first one's side: it starts them, feeds them, asks them, and replaces those that end.

The first worker never forks itself: it has threads and an event loop, which a fork would copy in the middle of
something. It also never sends a new worker the World, which would take seconds. It sends every event to a fork server,
and the order to fork along the same socket, so a worker begins with exactly the World after which its own link starts;
there is no handshake that could be lost. Independent control planes at one port would need none of this, but each would
read every source, and two could differ in what they hold back.

No process waits for a worker: what it does not read piles up to a limit, what it does not answer in time has no
answer, and either way it is killed and replaced. A worker that has served for a while restarts at once, one that has
not after a growing pause. Decision 017 has the measurements.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.events import Accepted, Confirmed, Event, Item, Rejected, SourceAdded, Synced, Upsert
from mesh_pilot.replicas.registration.registrar import (
    HealthReported,
    Registrar,
    WorkloadJoined,
    WorkloadLeft,
    WorkloadRefused,
)
from mesh_pilot.replicas.workers.effects import EffectsOfAll, EffectsQuestion, WorkerEffects
from mesh_pilot.replicas.workers.frames import Applied, Drain, Fork, Kill, LogStatistics, Roots, Serving, Setup, encode
from mesh_pilot.replicas.workers.link import Link, LinkClosed
from mesh_pilot.replicas.workers.questions import Answer, WorkerState, WorkerStateQuestion
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.quarantine.verdicts import SOURCE as QUARANTINE
from mesh_pilot.safety.state.revision_log import Effects
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published

log = structlog.get_logger(scope="bootstrap")

START_SECONDS = 60.0
"""The time that the first worker waits for the others before it serves without them."""

ANSWER_SECONDS = 1.0
"""The time that a worker has to answer, for a page."""

LOOK_SECONDS = 2.0
"""The interval at which each worker is asked for its state."""

END_SECONDS = 1.0
"""The time that the fork server has to end, once there are no workers."""

PROVEN_SECONDS = 60.0
"""A worker that has served for this time is restarted at once when it ends."""

TOLD_SECONDS = 2.0
"""The time for a signal that ended another worker to come to the first one as well, which may be busy."""

LOADED_AT_ONCE = 500
"""Items in a frame, while the fork server is given the World."""

_NOT_PASSED_ON = Rejected | Accepted | Confirmed
"""Events that are the first worker's business."""


@attrs.define(eq=False)
class _OtherWorker:
    """A worker other than the first. Mutable: how far it has come."""

    number: int
    link: Link | None = None
    """None while it is to be started."""
    pid: int = 0
    serving: trio.Event = attrs.field(factory=trio.Event)
    ended: bool = False
    """It has been told to end, or says that it does."""
    state: WorkerState | None = None
    restarts: int = 0

    @property
    def is_serving(self) -> bool:
        return self.link is not None and self.serving.is_set()


class WorkerSupervisor:
    """The workers other than the first. State: the fork server, these workers, and whether there is an end."""

    def __init__(
        self,
        options: WorkerSettings,
        setup: Setup,
        world: World,
        trust: TrustStore,
        grpc: Sequence[trio.SocketListener],
        secure_grpc: Sequence[trio.SocketListener],
        *,
        registrar: Registrar,
    ) -> None:
        """``registrar`` is told of the workloads at the workers."""
        self._options = options
        self._setup = setup
        self._world = world
        self._trust = trust
        self._grpc, self._secure_grpc = grpc, secure_grpc
        self._fork_server: Link | None = None
        self._there_is_fork_server = trio.Event()
        self._members = [_OtherWorker(number) for number in range(2, self._options.count + 1)]
        self._effects: EffectsOfAll | None = None
        """None: workers are not asked for effects."""
        self._registrar = registrar
        self._begun = trio.Event()
        self._draining = False
        self._idle: set[trio.CancelScope] = set()
        """Waits before the start of a worker, which the drain ends."""
        self._ended = trio.Event()
        trust.on_change(self._pass_roots_on)

    def __repr__(self) -> str:
        return f"<WorkerSupervisor of {self._options.count}, {sum(m.is_serving for m in self._members)} others serve>"

    # -- reading

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all other workers."""
        return [member.number for member in self._members]

    def states(self) -> Mapping[int, WorkerState]:
        """The latest state of each worker that has told it."""
        return {member.number: member.state for member in self._members if member.state is not None}

    def missing(self) -> dict[int, str]:
        """Workers that do not serve now, with the reason."""
        return {
            member.number: "is being started again" if member.restarts else "is being started"
            for member in self._members
            if not member.is_serving
        }

    def pids(self) -> Mapping[int, int]:
        """The process of each other worker; 0 while it does not serve."""
        return {member.number: member.pid if member.is_serving else 0 for member in self._members}

    def restarts(self) -> Mapping[int, int]:
        """The workers that have been started again, and how often."""
        return {member.number: member.restarts for member in self._members}

    async def ask(self, question: object) -> Mapping[int, object]:
        """The answers of the other workers, by number. One that does not answer in time has none."""
        found: dict[int, object] = {}

        async def ask_one(member: _OtherWorker) -> None:
            with suppress(LinkClosed):
                if member.link is not None:
                    found[member.number] = await member.link.ask(question)

        with trio.move_on_after(ANSWER_SECONDS):
            async with trio.open_nursery() as nursery:
                for member in self._members:
                    nursery.start_soon(ask_one, member)
        return dict(sorted(found.items()))

    def log_statistics(self) -> None:
        """Have every worker log its statistics."""
        for member in self._members:
            if member.link is not None:
                member.link.put(LogStatistics())

    # -- writing

    def follow_effects(self, own: Effects) -> EffectsOfAll:
        """The effects at all workers, who are asked for them from now on; ``own`` are those at this one."""
        self._effects = EffectsOfAll(own)
        return self._effects

    def published(self, published: Published) -> None:
        """A revision of the World: pass it on."""
        if not self._begun.is_set():
            return
        events = tuple(_passed_on(published.events))
        if not events:
            return
        now = time.monotonic()
        frame = encode(
            Applied(
                published.revision.number,
                events,
                now - (trio.current_time() - published.first_event_at),
                now - (trio.current_time() - published.published_at),
            )
        )
        for link in self._links():
            link.put_frame(frame)

    async def begin(self) -> None:
        """Start the workers with the World as it is now, and wait until they serve, though not forever."""
        self._begun.set()
        if self._fork_server is not None:
            self._load(self._fork_server)
        with trio.move_on_after(START_SECONDS):
            for member in self._members:
                await member.serving.wait()
        if missing := self.missing():
            log.warning("serving although workers have not started in time", workers=[*missing])

    async def run(self, answer: Answer) -> None:
        """Keep the workers running until all have drained; ``answer`` answers their questions.

        If cancelled, they drain and end by themselves.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_fork_server)
            await self._begun.wait()
            async with trio.open_nursery() as workers:
                for member in self._members:
                    workers.start_soon(self._keep, member, answer)
            self._ended.set()
            nursery.cancel_scope.cancel()

    async def drain(self) -> None:
        """Have all workers drain, and wait until they have ended. The fork server ends those that take too long."""
        self._draining = True
        for scope in self._idle:
            scope.cancel()
        for member in self._members:
            if member.link is not None:
                member.ended = True
                member.link.put(Drain())
        if self._begun.is_set():
            await self._ended.wait()

    # -- inside

    def _links(self) -> Iterable[Link]:
        if self._fork_server is not None:
            yield self._fork_server
        for member in self._members:
            if member.link is not None:
                yield member.link

    def _load(self, link: Link) -> None:
        """Give the World to a fork server: what there is now, then what comes."""
        number, now = self._world.revision, time.monotonic()
        missing = self._world.unsynced()
        sources = [name for name in self._world.sources() if name != QUARANTINE]
        for source in sources:
            if source not in self._setup.sources:  # it came later
                after = tuple(sources[: sources.index(source)])
                link.put(Applied(number, (SourceAdded(source, after),), now, now))
            items = [*self._world.items_of(source).values()]
            for start in range(0, len(items), LOADED_AT_ONCE):
                link.put_frame(partial(_loaded, number, source, items[start : start + LOADED_AT_ONCE], now))
            if source not in missing:
                link.put(Applied(number, (Synced(source),), now, now))

    async def _keep_fork_server(self) -> None:
        backoff = Backoff(first_seconds=0.5)
        while True:
            began = trio.current_time()
            try:
                reason = await self._run_fork_server()
            except OSError as error:
                reason = f"it cannot be started: {error}"
            if self._draining:
                return
            if trio.current_time() - began > PROVEN_SECONDS:
                backoff.reset()
            seconds = backoff.next_seconds()
            log.error(
                "the fork server exited; workers keep serving, and none can be started until there is another",
                reason=reason,
                again_in_seconds=round(seconds, 1),
            )
            await trio.sleep(seconds)

    async def _run_fork_server(self) -> str:
        """One fork server, from its start to its end. Returns the reason of the end."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await trio.lowlevel.open_process(
                    [*self._options.command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        link = Link(ours, buffered_bytes=self._options.buffered_bytes)
        try:
            link.put(self._setup)
            if self._begun.is_set():
                self._load(link)
            self._fork_server = link
            self._there_is_fork_server.set()
            await link.run(_ignore, _no_answer)
            return link.reason or f"status {await process.wait()}"
        finally:
            self._fork_server = None
            self._there_is_fork_server = trio.Event()
            if link.reason:
                process.kill()
            with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS):
                await process.wait()

    async def _keep(self, member: _OtherWorker, answer: Answer) -> None:
        backoff = Backoff(first_seconds=0.5)
        while await self._unless_draining(self._wait_for_fork_server):
            began = trio.current_time()
            reason = await self._run_worker(member, answer)
            pause = TOLD_SECONDS if member.ended else 0.0
            if not await self._unless_draining(partial(trio.sleep, pause)):
                return
            member.restarts += 1
            if trio.current_time() - began > PROVEN_SECONDS:
                backoff.reset()
            seconds = 0.0 if not backoff.tries else backoff.next_seconds()
            backoff.tries = max(1, backoff.tries)
            log.warning(
                "a worker exited; restarting it, and its proxies connect to the others",
                ended=member.number,
                reason=reason,
                again_in_seconds=round(seconds, 1),
            )
            if not await self._unless_draining(partial(trio.sleep, seconds)):
                return

    async def _unless_draining(self, wait: Callable[[], Awaitable[object]]) -> bool:
        """Wait, but not beyond the beginning of the drain; False if that has come."""
        if not self._draining:
            with trio.CancelScope() as scope:
                self._idle.add(scope)
                try:
                    await wait()
                finally:
                    self._idle.discard(scope)
        return not self._draining

    async def _wait_for_fork_server(self) -> None:
        while self._fork_server is None:  # it may have ended again before this task has its turn
            await self._there_is_fork_server.wait()

    async def _run_worker(self, member: _OtherWorker, answer: Answer) -> str:
        """One worker, from its fork to its end. Returns the reason of the end."""
        assert self._fork_server is not None
        ours, theirs = socket.socketpair()
        member.link = link = Link(ours, buffered_bytes=self._options.buffered_bytes)
        member.pid, member.ended = 0, False
        if member.serving.is_set():  # else somebody may be waiting for it
            member.serving = trio.Event()
        shared = [os.dup(each.socket.fileno()) for each in (*self._grpc, *self._secure_grpc)]
        # From here on the worker gets what is published: the fork server has the rest before it forks.
        self._fork_server.put(Fork(member.number, len(self._secure_grpc)), [theirs.detach(), *shared])
        link.put(self._roots())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_after, member, link)
                await link.run(partial(self._take, member), answer)
                nursery.cancel_scope.cancel()
        finally:
            member.link = member.state = None
            if self._effects is not None:
                self._effects.ended(member.number)
            self._registrar.worker_ended(member.number)
        return link.reason or ("it was told to" if member.ended else "the socket is closed")

    def _take(self, member: _OtherWorker, message: object) -> None:
        match message:
            case Serving(pid=pid):
                member.pid = pid
                member.serving.set()
                log.info("a worker serves", started=member.number, pid=pid)
            case Drain():
                member.ended = True
            case WorkloadJoined() | HealthReported() | WorkloadLeft() | WorkloadRefused():
                self._registrar.tell(message, member.number)
            case _:
                log.error("a message of a worker is not understood", sender=member.number, kind=type(message).__name__)

    async def _look_after(self, member: _OtherWorker, link: Link) -> None:
        """Ask a worker for its state and effects now and then; end it if it does not answer."""
        await member.serving.wait()
        while True:
            with trio.move_on_after(self._options.stuck_seconds) as waiting:
                try:
                    state = await link.ask(WorkerStateQuestion())
                    if self._effects is not None:
                        effects = await link.ask(EffectsQuestion())
                        if isinstance(effects, WorkerEffects):
                            self._effects.told(member.number, effects)
                except LinkClosed:
                    return
                member.state = state if isinstance(state, WorkerState) else None
            if waiting.cancelled_caught and not member.ended:
                self._kill(member, f"it has not answered for {self._options.stuck_seconds:g} s")
                return
            await trio.sleep(LOOK_SECONDS)

    def _kill(self, member: _OtherWorker, reason: str) -> None:
        if member.link is not None:
            if self._fork_server is not None:
                self._fork_server.put(Kill(member.number))
            if member.pid:  # the fork server may be another one than it was forked from
                with suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            member.link.close(reason)

    def _roots(self) -> Roots:
        return Roots(self._trust.foreign_bundles(), self._trust.domains)

    def _pass_roots_on(self) -> None:
        for member in self._members:
            if member.link is not None:
                member.link.put(self._roots())


def _passed_on(events: Iterable[Event]) -> Iterable[Event]:
    return (event for event in events if event.source != QUARANTINE and not isinstance(event, _NOT_PASSED_ON))


def _loaded(revision: int, source: str, items: Sequence[Item], at: float) -> bytes:
    return encode(Applied(revision, tuple(Upsert(source, item) for item in items), at, at))


def _ignore(message: object) -> None:
    """The fork server says nothing."""


async def _no_answer(question: object) -> object:
    return None
