"""Following one thing in Consul: a blocking query, its answer, the next query.

Rules: Consul, "Blocking Queries", implementation details: an index that goes back or is not positive starts anew; a
query may return without a change; clients limit how often they ask.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs
import trio

from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.consul.api import Answer, ConsulError
from mesh_pilot.sources.consul.line import Line
from mesh_pilot.sources.consul.settings import ConsulSettings


class Query(Protocol):
    """A question that can wait for a change."""

    async def __call__(self, index: int, wait_seconds: float) -> Answer:
        """What is so now, or once it differs from what was so at `index`. Raises ConsulError."""


Take = Callable[[object, bool], Awaitable[float | None]]
"""What is done with an answer's data; also, whether Consul seems to have lost what it knew (its index went back).

It returns how long the next query may wait at most, in seconds, or None.
"""


@attrs.define
class Pace:
    """Lets a few through at once, and then one in a while: a token bucket."""

    every_seconds: float
    burst: int = 4
    tokens: float = attrs.field(init=False)
    counted_at: float = attrs.field(factory=trio.current_time, init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    async def turn(self) -> None:
        """Until it is allowed again. Cancelling gives nothing away."""
        while True:
            now = trio.current_time()
            self.tokens = min(self.burst, self.tokens + (now - self.counted_at) / self.every_seconds)
            self.counted_at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return
            await trio.sleep((1 - self.tokens) * self.every_seconds)


class Crowd:
    """How many queries may be under way: those that are answered at once, and those that wait for a change.

    Where more want to wait than may, each waits shortly and then lets the next one in: first come, first served.
    State: who is under way, and how many follow something.
    """

    def __init__(self, settings: ConsulSettings) -> None:
        self._timing = settings.timing
        self._starts = trio.CapacityLimiter(settings.max_starts)
        self._slots = trio.CapacityLimiter(settings.max_queries)
        self.followers = 0
        self.failures = 0
        """Queries that were not answered as they should be, so far."""
        self.troubles: dict[str, str] = {}
        """What followers were told last instead of an answer, by what they follow."""

    @property
    def waiting(self) -> int:
        """Queries that wait for their turn."""
        return self._starts.statistics().tasks_waiting + self._slots.statistics().tasks_waiting

    @property
    def under_way(self) -> int:
        return int(self._starts.borrowed_tokens + self._slots.borrowed_tokens)

    async def ask(self, query: Query, index: int, most_seconds: float | None) -> Answer:
        """One query. Raises ConsulError."""
        timing = self._timing
        async with self._slots if index else self._starts:
            crowded = self.followers > self._slots.total_tokens
            wait = timing.rotation_seconds if crowded else timing.wait_seconds * random.uniform(0.75, 1)
            return await query(index, wait if most_seconds is None else min(wait, most_seconds))


async def follow(what: str, query: Query, take: Take, line: Line, crowd: Crowd, settings: ConsulSettings) -> None:
    """Ask and take answers until cancelled, through whatever Consul does meanwhile. `what` is for people.

    What fails is asked anew from the start: after an outage, indexes may mean something else.
    """
    timing = settings.timing
    backoff = Backoff(timing.retry_seconds, timing.retry_limit_seconds)
    pace = Pace(timing.pace_seconds)
    index = known = 0
    most_seconds: float | None = None
    crowd.followers += 1
    try:
        while True:
            await pace.turn()
            await line.up()
            try:
                answer = await crowd.ask(query, index, most_seconds)
            except ConsulError as error:
                index = 0
                crowd.failures += 1
                crowd.troubles[what] = str(error)
                line.suspect()
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            crowd.troubles.pop(what, None)
            is_lost, known = answer.index < known, answer.index
            index = 0 if answer.index < index else answer.index
            most_seconds = await take(answer.data, is_lost)
    finally:
        crowd.followers -= 1
        crowd.troubles.pop(what, None)
