"""What all queries do while Consul does not answer: one asks whether it is back, the others wait.

After an outage the queries come back spread out over time, and none of them had to knock in vain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.consul.api import ConsulError

log = structlog.get_logger(scope="sources")


class Line:
    """Whether Consul answers. State: since when it does not and why, and whom to wake."""

    def __init__(self, source: str, check: Callable[[], Awaitable[object]], backoff: Backoff) -> None:
        """`check` raises ConsulError while Consul can't answer."""
        self._source = source
        self._check = check
        self._backoff = backoff
        self._is_up = trio.Event()
        self._is_up.set()
        self._suspicion = trio.Event()
        self.down_since: float | None = None
        """When it was found not to answer, on Trio's clock; None while it does."""
        self.error = ""
        """Why it does not answer; empty while it does."""
        self.outages = 0

    def __repr__(self) -> str:
        return f"<Line to {self._source}: {f'down, {self.error}' if self.error else 'up'}>"

    def suspect(self) -> None:
        """A query was not answered: before more are sent, it is asked whether any would be."""
        if self._is_up.is_set():
            self._is_up = trio.Event()
            self._suspicion.set()

    async def up(self) -> None:
        """Until Consul is thought to answer. Cancelling leaves nothing behind."""
        await self._is_up.wait()

    async def run(self) -> None:
        """Ask after Consul whenever a query failed, until cancelled."""
        while True:
            await self._suspicion.wait()
            try:
                await self._check()
            except ConsulError as error:
                self._is_down(str(error))
                await trio.sleep(self._backoff.next_seconds())
            else:
                self._is_back()

    def _is_down(self, error: str) -> None:
        if self.down_since is None:
            self.down_since = trio.current_time()
            self.outages += 1
            log.warning("Consul does not answer; what it said stays in force", source=self._source, error=error)
        self.error = error

    def _is_back(self) -> None:
        if self.down_since is not None:
            seconds = trio.current_time() - self.down_since
            log.info("Consul answers again", source=self._source, after_seconds=round(seconds, 1))
        self.down_since = None
        self.error = ""
        self._backoff.reset()
        self._suspicion = trio.Event()
        self._is_up.set()
