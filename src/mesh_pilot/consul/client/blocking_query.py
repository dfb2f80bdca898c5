"""Following one thing in Consul by blocking queries, and what all of them do during an outage.

Rules: Consul, "Blocking Queries", implementation details: an index that goes back or is not positive starts again; a
query may return without a change; clients limit how often they ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.api import Answer
from mesh_pilot.consul.client.client import ConsulDeniedError, ConsulError
from mesh_pilot.consul.client.query_pool import PooledQuery, PooledService, QueryPool
from mesh_pilot.consul.client.settings import ConsulSettings

log = structlog.get_logger(scope="sources")

SILENT = "Consul does not answer; its last answers are kept"
REFUSES = "Consul refuses the token; its last answers are kept"

TakeAnswer = Callable[[Answer, bool], Awaitable[float | None]]
"""Takes an answer; the flag is true if Consul seems to have lost its data (its index went back).

Returns the longest time that the next query may block, in seconds, or None.
"""


class OutageGate:
    """Holds queries back while Consul does not answer: one asks whether it is back, the others wait.

    So queries come back spread out after an outage, and none of them fails again in vain.

    State: since when Consul does not answer and why, and the events that hold back queries and wake the check.
    """

    def __init__(self, source: str, check: Callable[[], Awaitable[object]], backoff: Backoff) -> None:
        """`check` raises ConsulError while Consul can't answer."""
        self._source = source
        self._check = check
        self._backoff = backoff
        self._is_up = trio.Event()
        self._is_up.set()
        self._is_suspect = trio.Event()
        self.down_since: float | None = None
        """When it was found not to answer, on Trio's clock; None while it does."""
        self.error = ""
        """Why it does not answer; empty while it does."""
        self.outages = 0

    def __repr__(self) -> str:
        return f"<OutageGate of {self._source}: {f'down, {self.error}' if self.error else 'up'}>"

    def suspect(self) -> None:
        """A query failed: before more are sent, the check finds out whether any would be answered."""
        if self._is_up.is_set():
            self._is_up = trio.Event()
            self._is_suspect.set()

    async def wait_up(self) -> None:
        """Wait until Consul is thought to answer. Cancelling leaves nothing behind."""
        await self._is_up.wait()

    async def run(self) -> None:
        """Check Consul whenever a query failed, until cancelled."""
        while True:
            await self._is_suspect.wait()
            try:
                await self._check()
            except ConsulError as error:
                self._note_down(error)
                await trio.sleep(self._backoff.next_seconds())
            else:
                self._note_up()

    def _note_down(self, error: ConsulError) -> None:
        if self.down_since is None:
            self.down_since = trio.current_time()
            self.outages += 1
            log.warning(
                REFUSES if isinstance(error, ConsulDeniedError) else SILENT, source=self._source, error=str(error)
            )
        self.error = str(error)

    def _note_up(self) -> None:
        if self.down_since is not None:
            seconds = trio.current_time() - self.down_since
            log.info("Consul answers again", source=self._source, after_seconds=round(seconds, 1))
        self.down_since = None
        self.error = ""
        self._backoff.reset()
        self._is_suspect = trio.Event()
        self._is_up.set()


@attrs.define
class QueryPace:
    """A token bucket: a burst at once, then one in a while."""

    every_seconds: float
    burst: int = 4
    tokens: float = attrs.field(init=False)
    counted_at: float = attrs.field(factory=trio.current_time, init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    async def wait(self) -> None:
        """Wait for a token. Cancelling takes none."""
        while True:
            now = trio.current_time()
            self.tokens = min(self.burst, self.tokens + (now - self.counted_at) / self.every_seconds)
            self.counted_at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return
            await trio.sleep((1 - self.tokens) * self.every_seconds)


async def run_blocking_query(
    name: str,
    query: PooledQuery,
    take: TakeAnswer,
    gate: OutageGate,
    pool: QueryPool,
    settings: ConsulSettings,
    service: PooledService | None = None,
    pace_seconds: float | None = None,
) -> None:
    """Send a query again and again, and take its answers, until cancelled. `name` is for people.

    After a failure the next query starts without an index: after an outage, an index may mean something else.
    `service`: shares the slots of the pool; without one, the query always blocks. `pace_seconds`: instead
    of that of the settings.
    """
    timing = settings.timing
    backoff = Backoff(timing.retry_seconds, timing.retry_limit_seconds)
    pace = QueryPace(timing.pace_seconds if pace_seconds is None else pace_seconds)
    index = known = 0
    most_seconds: float | None = None
    try:
        while True:
            await pace.wait()
            await gate.wait_up()
            try:
                if not index:
                    answer = await pool.read(query)
                elif service is None:
                    answer = await pool.block(query, index, most_seconds)
                else:
                    answer = await pool.next(service, query, index, most_seconds)
            except ConsulError as error:
                index = 0
                pool.failures += 1
                pool.troubles[name] = str(error)
                if service is not None:
                    pool.note_failure(service)
                gate.suspect()
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            pool.troubles.pop(name, None)
            is_lost, is_changed, known = answer.index < known, known not in (0, answer.index), answer.index
            index = 0 if answer.index < index else answer.index
            most_seconds = await take(answer, is_lost)
            if service is not None:
                pool.note_read(service, answer.index, is_changed=is_changed)
            del answer  # JSON of many kilobytes, which would stay while the next query waits
    finally:
        pool.troubles.pop(name, None)
