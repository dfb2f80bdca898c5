"""Many services, few connections: whose query waits at Consul, and how the others learn that they have changed.

Services that have a seat hold a blocking query. Where there are more services than seats, those that changed last get
them; the others wait until they are called, because something that covers many of them has changed (see ``triggers``).

A seat is free again once its query was answered, not before: Consul holds the connection of a query that is given up
until the query would have ended anyway, and counts it.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import trio

from mesh_pilot.sources.consul.api import Answer
from mesh_pilot.sources.consul.settings import Consistency, ConsulSettings

STANDING = 5
"""Queries that have no need of a seat: the catalog, the configs in KV, and the triggers."""

_SWEEPERS = 4
_REMEMBERED = 256
_LAG_SECONDS = 0.5
"""How far behind a server may be that answers a stale read; Consul says some tens of milliseconds, commonly."""


class Query(Protocol):
    """A question that can wait for a change."""

    async def __call__(self, index: int, wait_seconds: float) -> Answer:
        """What is so now, or once it differs from what was so at `index`. Raises ConsulError."""


@attrs.define(eq=False)
class Member:
    """A service among others. State: how it waits."""

    name: str
    changed_at: float = -math.inf
    """When it was last seen to change, on Trio's clock."""
    is_known: bool = False
    """Whether it was read once."""
    called: trio.Event = attrs.field(factory=trio.Event)
    """Set when it may have changed."""
    is_urgent: bool = False
    """Whether it was called because it has changed."""
    read: trio.Event = attrs.field(factory=trio.Event)
    """Set once it has been read after a call, or is gone."""


class Crowd:
    """Shares out the queries of a source. State: who is there, who has a seat, what was told lately."""

    def __init__(self, settings: ConsulSettings) -> None:
        self._timing = settings.timing
        self._is_stale = settings.consistency is Consistency.STALE
        starts = max(min(settings.max_starts, settings.max_queries // 4), 1)
        self._starts = trio.CapacityLimiter(starts)
        self.seats = max(settings.max_queries - starts - STANDING, 1)
        """How many services may hold a query; the connections of all queries are ``max_queries`` at most."""
        self.members: dict[str, Member] = {}
        self._seated: dict[str, Member] = {}
        self._told: deque[int] = deque(maxlen=_REMEMBERED)
        self.under_way = 0
        """Queries that Consul has not answered yet."""
        self.failures = 0
        """Queries that were not answered as they should be, so far."""
        self.troubles: dict[str, str] = {}
        """What followers were told last instead of an answer, by what they follow."""

    def __repr__(self) -> str:
        return f"<Crowd of {len(self.members)}, {len(self._seated)} of {self.seats} seats taken>"

    @property
    def waiting(self) -> int:
        """Services without a query of their own."""
        return len(self.members) - len(self._seated)

    @property
    def is_known(self) -> bool:
        """Whether any service was read."""
        return any(member.is_known for member in self.members.values())

    @contextmanager
    def member(self, name: str) -> Iterator[Member]:
        """A service that takes part for the length of the block."""
        self.members[name] = member = Member(name)
        try:
            yield member
        finally:
            del self.members[name]
            self._seated.pop(name, None)
            member.read.set()

    async def read(self, query: Query) -> Answer:
        """What is so now; few at a time. Raises ConsulError."""
        async with self._starts:
            return await self._ask(query, 0, 0.0)

    async def hold(self, query: Query, index: int, most_seconds: float | None) -> Answer:
        """What is so once it has changed, or after a while. Raises ConsulError."""
        wait = self._timing.wait_seconds * random.uniform(0.75, 1)
        return await self._ask(query, index, wait if most_seconds is None else min(wait, most_seconds))

    async def next(self, member: Member, query: Query, index: int, most_seconds: float | None) -> Answer:
        """What is so of a service once it may have changed, or after a while. Raises ConsulError."""
        if self._sit(member):
            member.called = trio.Event()
            answer = await self.hold(query, index, most_seconds)
            if answer.index == index:
                self._stand_up(member)
            return answer
        patience = self._timing.reread_seconds * random.uniform(0.75, 1)
        with trio.move_on_after(patience if most_seconds is None else most_seconds):
            await member.called.wait()
        member.called = trio.Event()
        is_urgent, member.is_urgent = member.is_urgent, False
        answer = await self.read(query)
        if is_urgent and self._is_stale and answer.index == index:
            await trio.sleep(_LAG_SECONDS)
            answer = await self.read(query)
        return answer

    def has_read(self, member: Member, index: int, *, is_changed: bool) -> None:
        """A service was read, as it is since `index`."""
        if is_changed:
            member.changed_at = trio.current_time()
            self._told.append(index)
        member.is_known = True
        member.read.set()

    def has_told(self, index: int) -> bool:
        """Whether some service said that it is what changed at `index`."""
        return index in self._told

    def call(self, names: Iterable[str]) -> None:
        """These services have changed."""
        for name in names:
            if name in self.members:
                self.members[name].is_urgent = True
                self.members[name].called.set()

    async def call_and_wait(self, names: Iterable[str]) -> None:
        """Have these services read, a few at a time so that others need not wait for it, but for those with a query."""
        queue = iter([self.members[name] for name in names if name in self.members])

        async def work() -> None:
            for member in queue:
                is_here = self.members.get(member.name) is member and member.is_known
                if is_here and member.name not in self._seated:
                    member.read = trio.Event()
                    member.called.set()
                    await member.read.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(_SWEEPERS):
                nursery.start_soon(work)

    async def sweep(self) -> None:
        """Have every service read that holds no query."""
        await self.call_and_wait(list(self.members))

    def _sit(self, member: Member) -> bool:
        """Whether it has a seat, or gets one that is free."""
        if len(self._seated) < self.seats:
            self._seated[member.name] = member
        return member.name in self._seated

    def _stand_up(self, member: Member) -> None:
        """A service has not changed while it held its query: another that changed later may have its seat."""
        standing = (other for name, other in self.members.items() if name not in self._seated)
        latest = max(standing, key=lambda other: other.changed_at, default=member)
        if latest.changed_at > member.changed_at:
            del self._seated[member.name]
            latest.called.set()

    async def _ask(self, query: Query, index: int, wait_seconds: float) -> Answer:
        self.under_way += 1
        try:
            return await query(index, wait_seconds)
        finally:
            self.under_way -= 1
