"""Keeps the parts of the agent running: one that fails is started again, and takes no other with it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog
import trio

from mesh_pilot.agent.settings import AgentError

log = structlog.get_logger(scope="agent")

LONGEST_DELAY = 30.0
CALM_SECONDS = 60.0
"""A part that ran for this long has recovered."""


class Upkeep:
    """Mutable state: how often each part has failed."""

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Failures in all, by part."""
        return {"failures_total": dict(self._failures)}

    async def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a part for ever: again, after a growing pause, whenever it fails or ends. If cancelled, so is it."""
        failures = 0
        while True:
            began = trio.current_time()
            try:
                await run()
                log.error("a part of the agent has ended; it is started again", part=name)
            except AgentError as error:
                log.error("a part of the agent has failed; it is started again", part=name, reason=str(error))
            except Exception:  # any part's error is its own
                log.exception("a part of the agent has failed; it is started again", part=name)
            self._failures[name] += 1
            failures = 1 if trio.current_time() - began >= CALM_SECONDS else failures + 1
            await trio.sleep(random.uniform(0.5, 1) * min(LONGEST_DELAY, 2 ** min(failures - 1, 10)))
