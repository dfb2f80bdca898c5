"""Elections: a single replica that always leads, and replicas that compete for a lock."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.containment import restarted
from mesh_pilot.replicas.election.base import (
    Clock,
    ElectionStatistics,
    Holding,
    Leader,
    Lock,
    LockError,
    LockLost,
    Replica,
    Term,
    TermEnded,
    Work,
    boot_clock,
)
from mesh_pilot.replicas.election.term_lease import TermLease

log = structlog.get_logger(scope="election")

SHORTEST_SECONDS = 1.0
"""The shortest TTL. The longest is ``LONGEST_SECONDS`` of Leases: Consul delays a lock by a minute at most."""

DEFAULT_TTL_SECONDS = 15.0

RENEWALS = 3
"""Renewals in a TTL."""

WATCH_SECONDS = 1.0
"""The interval at which the end of a term is looked for: Trio's clock stands still while the machine is suspended."""

RELEASE_SECONDS = 2.0
"""The time for letting go of the lock at the end."""

RESIGNED = "this replica has resigned"


@attrs.frozen
class LeaderTask:
    """Work for the leader."""

    name: str
    work: Work

    async def run(self, term: Term) -> None:
        """Do it, again if it fails, until it is done or the term ended."""

        def failed(error: Exception) -> bool:
            if isinstance(error, TermEnded) or term.ended:  # it may be within a group
                return False
            log.error("duty failed; restarting it", duty=self.name, term=term.number, exc_info=error)
            return True

        await restarted(partial(self.work, term), failed)


class Alone:
    """The election of a replica that has no others: it always leads. State: whether it runs."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._tasks: list[LeaderTask] = []
        self._since: datetime | None = None
        self._resigned = trio.Event()

    def __repr__(self) -> str:
        return f"<Alone {self._replica.id}>"

    @property
    def leader(self) -> Leader | None:
        if self._since is None:
            return None
        return Leader(self._replica.id, 1, self._since, self._replica.host, self._replica.address)

    def while_leading(self, name: str, work: Work) -> None:
        self._tasks.append(LeaderTask(name, work))

    async def run(self) -> None:
        self._since = datetime.now(UTC)
        term = Term(1, lambda: RESIGNED if self._resigned.is_set() else "")
        try:
            async with trio.open_nursery() as nursery:
                for task in self._tasks:
                    nursery.start_soon(task.run, term)
                await self._resigned.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._since = None

    def resign(self) -> None:
        self._resigned.set()

    def statistics(self) -> ElectionStatistics:
        leader = self.leader
        return ElectionStatistics(
            kind="none",
            place="",
            replica=self._replica,
            leads=leader is not None,
            leader=leader,
            replicas=(),
            changes=0,
            tasks=tuple(task.name for task in self._tasks),
            trouble="",
        )


class LockElection:
    """The election by a lock: its holder leads.

    State: the lease, how the term that runs can be ended, the leader seen last, and the trouble with the lock.
    """

    def __init__(self, lock: Lock, replica: Replica, *, clock: Clock = boot_clock) -> None:
        self._lock = lock
        self._replica = replica
        self._clock = clock
        self._lease = TermLease(lock.ttl_seconds)
        self._tasks: list[LeaderTask] = []
        self._leader: Leader | None = None
        self._last_term = 0
        self._seen_at = clock()
        self._changes = 0
        self._trouble = ""
        self._resigned = trio.Event()

    def __repr__(self) -> str:
        return f"<LockElection of {self._replica.id} by {self._lock.place}: {self._lease}>"

    @property
    def leader(self) -> Leader | None:
        found = self._leader
        is_over = found is not None and found.id == self._replica.id and not self._lease.leads(self._clock())
        return None if is_over else found

    def while_leading(self, name: str, work: Work) -> None:
        self._tasks.append(LeaderTask(name, work))

    def resign(self) -> None:
        self._resigned.set()

    def statistics(self) -> ElectionStatistics:
        return ElectionStatistics(
            kind=self._lock.kind,
            place=self._lock.place,
            replica=self._replica,
            leads=self._lease.leads(self._clock()),
            leader=self.leader,
            replicas=self._lock.replicas(),
            changes=self._changes,
            tasks=tuple(task.name for task in self._tasks),
            trouble=self._trouble,
        )

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._outlive, self._lock.attend)
                nursery.start_soon(self._outlive, self._contest)
                await self._resigned.wait()
                nursery.cancel_scope.cancel()
        finally:
            await self._release(None)  # of an attempt that was cut off

    async def _outlive(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something to the end: an internal error costs the term, not the control plane."""

        def failed(error: Exception) -> bool:
            self._lease.end()
            log.error("internal error in leader election; restarting it", exc_info=error)
            return True

        await restarted(work, failed)

    async def _contest(self) -> None:
        backoff = self._backoff()
        while True:
            sent_at = self._clock()
            holding: Holding | None = None
            try:
                found = await self._lock.acquire()
                if isinstance(found, Holding):
                    holding = found
                    if self._lease.begin(holding.term, sent_at, self._clock()):
                        await self._lead(holding, sent_at)
                    else:
                        self._lease.end()
                    continue
            except LockError as error:
                self._unreachable(str(error))
                await trio.sleep(backoff.next_seconds())
                continue
            finally:
                if holding is not None:
                    await self._release(holding)
            self._reached()
            backoff.reset()
            self._follow(found)
            if found is None:
                await trio.sleep(self._lock.poll_seconds * random.uniform(0.5, 1.0))
                continue
            await self._wait_free()

    async def _wait_free(self) -> None:
        """Wait until the lock may be free; at most for the TTL, so that an attempt shows whether it can be reached."""
        with trio.move_on_after(self._lock.ttl_seconds):
            try:
                await self._lock.wait_free()
            except LockError as error:
                self._unreachable(str(error))
                await trio.sleep(self._backoff().next_seconds())

    async def _lead(self, holding: Holding, sent_at: float) -> None:
        """Lead for as long as the term lasts. ``sent_at``: when the lock was first asked for, which may take calls."""
        over = trio.Event()
        reason = ""

        def end(why: str) -> None:
            nonlocal reason
            if not reason:
                reason = why
                self._lease.end()
                over.set()

        def ended() -> str:
            if not reason and not self._lease.leads(self._clock()):
                end(f"not renewed in time{f': {self._trouble}' if self._trouble else ''}")
            return reason

        self._reached()
        me = self._replica
        self._see(Leader(me.id, holding.term, datetime.now(UTC), me.host, me.address))
        log.info("leading", term=holding.term, lock=self._lock.place)
        term = Term(holding.term, ended, self._lock, holding)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._expire, ended)
                nursery.start_soon(self._renew, holding, sent_at, end)
                nursery.start_soon(self._notice, holding, end)
                for task in self._tasks:
                    nursery.start_soon(task.run, term)
                await over.wait()
                nursery.cancel_scope.cancel()
        finally:
            end("shutting down")
            self._see(None)
            log.info("not leading any more", term=holding.term, reason=reason)

    async def _expire(self, ended: Callable[[], str]) -> None:
        """End the term in time."""
        while not ended():  # noqa: ASYNC110  a clock has no event
            await trio.sleep(min(self._lease.remaining_seconds(self._clock()), WATCH_SECONDS))

    async def _renew(self, holding: Holding, sent_at: float, end: Callable[[str], None]) -> None:
        """Renew the lock, until that ends the term.

        A renewal is sent a third of the TTL after the last one that succeeded was *sent*, at once if that is past: the
        time of a slow answer counts, or a store that is late would end each term.
        """
        backoff = self._backoff()
        interval = self._lock.ttl_seconds / RENEWALS
        wait = interval - (self._clock() - sent_at)
        while True:
            await trio.sleep(max(0.0, wait))
            sent_at = self._clock()
            try:
                await self._lock.renew(holding)
            except LockLost as error:
                return end(str(error))
            except LockError as error:
                self._unreachable(str(error))
                wait = backoff.next_seconds()
                continue
            self._reached()
            if not self._lease.renew(sent_at, self._clock()):
                return end("the renewal came too late")
            backoff.reset()
            wait = interval * random.uniform(0.8, 1.0) - (self._clock() - sent_at)

    async def _notice(self, holding: Holding, end: Callable[[str], None]) -> None:
        """End the term when the lock is seen to be lost."""
        while True:
            try:
                return end(await self._lock.wait_lost(holding))
            except LockError as error:
                self._unreachable(str(error))
                await trio.sleep(self._lock.poll_seconds)

    async def _release(self, holding: Holding | None) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(RELEASE_SECONDS):
            try:
                await self._lock.release(holding)
            except LockError as error:
                log.info("the lock was not released; it ends on its own", lock=self._lock.place, reason=str(error))

    def _follow(self, leader: Leader | None) -> None:
        """Another replica leads, or none."""
        if leader is not None and leader.term != self._last_term:
            log.info("following", leader=leader.id, address=leader.address, term=leader.term)
        self._see(leader)

    def _see(self, leader: Leader | None) -> None:
        if leader is not None and leader.term != self._last_term:
            self._last_term = leader.term
            self._changes += 1
        self._leader = leader

    def _unreachable(self, reason: str) -> None:
        if not self._trouble:
            log.warning("the lock of the leader cannot be reached", lock=self._lock.place, reason=reason)
        self._trouble = reason
        if self._lease.term is None and self._clock() - self._seen_at > self._lock.ttl_seconds:
            self._leader = None  # nobody here can know

    def _reached(self) -> None:
        if self._trouble:
            log.info("the lock of the leader is reached again", lock=self._lock.place)
        self._trouble = ""
        self._seen_at = self._clock()

    def _backoff(self) -> Backoff:
        return Backoff(first_seconds=self._lock.ttl_seconds / 15, limit_seconds=self._lock.ttl_seconds / 5)
