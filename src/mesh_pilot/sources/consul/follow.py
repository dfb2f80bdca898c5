"""Following one thing in Consul: a blocking query, its answer, the next query.

Rules: Consul, "Blocking Queries", implementation details: an index that goes back or is not positive starts anew; a
query may return without a change; clients limit how often they ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.consul.api import Answer, ConsulError
from mesh_pilot.sources.consul.crowd import Crowd, Member, Query
from mesh_pilot.sources.consul.line import Line
from mesh_pilot.sources.consul.settings import ConsulSettings

Take = Callable[[Answer, bool], Awaitable[float | None]]
"""What is done with an answer; also, whether Consul seems to have lost what it knew (its index went back).

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


async def follow(
    what: str,
    query: Query,
    take: Take,
    line: Line,
    crowd: Crowd,
    settings: ConsulSettings,
    member: Member | None = None,
    pace_seconds: float | None = None,
) -> None:
    """Ask and take answers until cancelled, through whatever Consul does meanwhile. `what` is for people.

    What fails is asked anew from the start: after an outage, indexes may mean something else. A `member` of the crowd
    shares its queries; what is none holds one of its own. `pace_seconds`: where not that of the settings.
    """
    timing = settings.timing
    backoff = Backoff(timing.retry_seconds, timing.retry_limit_seconds)
    pace = Pace(timing.pace_seconds if pace_seconds is None else pace_seconds)
    index = known = 0
    most_seconds: float | None = None
    try:
        while True:
            await pace.turn()
            await line.up()
            try:
                if not index:
                    answer = await crowd.read(query)
                elif member is None:
                    answer = await crowd.hold(query, index, most_seconds)
                else:
                    answer = await crowd.next(member, query, index, most_seconds)
            except ConsulError as error:
                index = 0
                crowd.failures += 1
                crowd.troubles[what] = str(error)
                line.suspect()
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            crowd.troubles.pop(what, None)
            is_lost, is_changed, known = answer.index < known, known not in (0, answer.index), answer.index
            index = 0 if answer.index < index else answer.index
            most_seconds = await take(answer, is_lost)
            if member is not None:
                crowd.has_read(member, answer.index, is_changed=is_changed)
    finally:
        crowd.troubles.pop(what, None)
