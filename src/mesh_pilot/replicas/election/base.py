"""The contract of elections: replicas, leaders, terms, tasks of the leader, and the locks that replicas compete for."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

import attrs

Clock = Callable[[], float]
"""Seconds of a clock that continues while the process, or the machine, is suspended."""


def boot_clock() -> float:
    """The time since the machine was started, with the time that it was suspended where the system knows it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class TermEnded(Exception):
    """A replica does not lead any more: what it was about to do must not be done. The reason in one line."""


class LockError(Exception):
    """A lock that could not be reached, or an answer that can't be read: nothing is known. The reason in one line."""


class LockLost(Exception):
    """A lock that is surely not ours any more. The reason in one line."""


@attrs.frozen
class Replica:
    """A control plane among others."""

    id: str
    """Unique to the process."""
    host: str = ""
    address: str = ""
    """The address at which it serves proxies."""
    version: str = ""


@attrs.frozen
class Leader:
    """The replica that leads, as the lock names it."""

    id: str
    term: int
    """The number of its term: every term has a higher one than all before."""
    since: datetime | None = None
    """When it took the lock, by its own clock."""
    host: str = ""
    address: str = ""


@attrs.frozen
class Holding:
    """A lock that was acquired."""

    term: int
    session: str = ""
    """The session that holds it, where there are sessions."""


class Lock(Protocol):
    """A lock that one replica at a time can hold. It ends on its own after ``ttl_seconds`` without a renewal.

    Each request ends on its own, within a fraction of the TTL. Requests raise LockError.
    """

    kind: str
    """``consul``, ``kubernetes``, ..."""
    place: str
    """The thing that is locked, and where, for people."""
    ttl_seconds: float
    poll_seconds: float
    """The wait between attempts to acquire it while it is not available."""

    async def attend(self) -> None:
        """Exchange anything else that replicas tell each other, until cancelled."""

    async def acquire(self) -> Holding | Leader | None:
        """Take the lock; else the replica that has it; None if no replica has it but it is not available yet."""

    async def renew(self, holding: Holding) -> None:
        """Prolong it. Raises LockLost, too."""

    async def confirm(self, holding: Holding) -> None:
        """Ask whether it is still held. Raises LockLost, too."""

    async def release(self, holding: Holding | None) -> None:
        """Release the lock, and what attempts have left behind, so that another replica need not wait."""

    async def wait_free(self) -> None:
        """Wait until it is worth trying again."""

    async def wait_lost(self, holding: Holding) -> str:
        """Wait until it is held no more; the reason. It may never notice: renewals do."""

    async def fenced_write(self, holding: Holding, key: str, value: bytes | None) -> None:
        """See ``Term.fenced_write``. Raises LockLost, too."""

    def replicas(self) -> tuple[Replica, ...]:
        """The replicas that are there; empty if this kind of lock does not know."""


class Term:
    """A term of leadership, as a task of the leader sees it. State: whether it ended."""

    def __init__(self, number: int, ended: Callable[[], str], lock: Lock | None = None, holding: Holding | None = None):
        """``ended``: the reason why it is over, found out again; empty while it is not."""
        self.number = number
        self._ended = ended
        self._lock = lock
        self._holding = holding

    def __repr__(self) -> str:
        return f"<Term {self.number} {f'ended: {self.ended}' if self.ended else 'runs'}>"

    @property
    def ended(self) -> str:
        """The reason why the term is over; empty while it is not."""
        return self._ended()

    def check(self) -> None:
        """Raise TermEnded if the term is over. To be called right before each write to the outside.

        It asks the clock, so it also notices that the process was stopped since the last call. A process that is
        stopped after the call and before the write takes effect is not noticed: only ``fenced_write`` covers that.
        """
        if reason := self.ended:
            raise TermEnded(f"term {self.number}: {reason}")

    async def confirm(self) -> None:
        """Ask the server of the lock whether the term is still on; for writes that no server can fence.

        Raises TermEnded, LockError.
        """
        self.check()
        if self._lock is not None and self._holding is not None:
            try:
                await self._lock.confirm(self._holding)
            except LockLost as error:
                raise TermEnded(f"term {self.number}: {error}") from None
        self.check()

    async def fenced_write(self, key: str, value: bytes | None) -> None:
        """Put an entry into Consul's KV store, or delete it (None), in one transaction with the check of the lock.

        The server refuses it if this term is over, however late it arrives. Only for a lock in Consul. If it raises
        LockError, or is cancelled, the write may have happened. Raises TermEnded, LockError.
        """
        self.check()
        if self._lock is None or self._holding is None:
            raise LockError("no lock fences this write: there is no leader election")
        try:
            await self._lock.fenced_write(self._holding, key, value)
        except LockLost as error:
            raise TermEnded(f"term {self.number}: {error}") from None


Work = Callable[[Term], Awaitable[None]]


@attrs.frozen
class ElectionStatistics:
    """The state of an election, as this replica knows it."""

    kind: str
    """``none``, ``consul``, ``kubernetes``."""
    place: str
    replica: Replica
    leads: bool
    leader: Leader | None
    """The leader; None if there is none, or none is known."""
    replicas: tuple[Replica, ...]
    """The replicas that are there, this one too; empty if the kind of election does not know."""
    changes: int
    """The number of times that another leader, or the same one again, was seen."""
    tasks: tuple[str, ...]
    """Names of what the leader does."""
    trouble: str
    """The reason why the lock cannot be reached; empty while it can."""


class Election(Protocol):
    """Leader election: at most one replica leads."""

    @property
    def leader(self) -> Leader | None:
        """The leader as far as it is known: its name, since when, the number of its term."""

    def while_leading(self, name: str, work: Work) -> None:
        """Have something done while this replica leads; to be called before ``run``.

        The work is started in each term, and cancelled as soon as the term ends. It is done for the term if it returns;
        started again, after a while, if it raises.
        """

    async def run(self) -> None:
        """Take part until cancelled, or resigned. Cancelled, it stops all tasks and then releases the lock."""

    def resign(self) -> None:
        """Stop all tasks, release the lock, and take part no more; another replica takes over at once."""

    def statistics(self) -> ElectionStatistics: ...


class ElectionSettings(Protocol):
    """A kind of election as it was set up."""

    def election(self, replica: Replica) -> Election:
        """The election for a replica. Raises SourceError for what can never work."""
