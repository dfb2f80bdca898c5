"""Keeps the parts of a process running: one that fails is restarted, and the others keep running.

May import: nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import structlog
import trio

log = structlog.get_logger(scope="upkeep")

LONGEST_DELAY = 30.0
AGAIN_SECONDS = 1.0
CALM_SECONDS = 60.0
"""A part that ran for this long has recovered."""


class Upkeep:
    """Mutable state: how often each part has failed."""

    def __init__(self, of: str, plain: type[Exception] | tuple[()] = ()) -> None:
        """``of``: whose parts they are, for the log. ``plain``: exceptions whose text says all, without a traceback."""
        self._of = of
        self._plain = plain
        self._failures: Counter[str] = Counter()

    def statistics(self) -> dict[str, dict[str, int]]:
        """Failures in all, by part."""
        return {"failures_total": dict(self._failures)}

    async def keep(
        self, name: str, run: Callable[[], Awaitable[None]], *, fatal: Callable[[], bool] = lambda: False
    ) -> None:
        """Run a part for ever: again, after a growing pause, whenever it fails or ends. If cancelled, so is it.

        Raises only what comes while ``fatal`` is true.
        """
        failures, pause = 0, 0.0

        async def part() -> None:
            if pause:  # here, where an exception of the pause itself ends nothing either
                await trio.sleep(pause)
            await run()

        while True:
            began = trio.current_time() + pause
            await self._once(name, part, fatal)
            failures = 1 if trio.current_time() - began >= CALM_SECONDS else failures + 1
            pause = random.uniform(0.5, 1) * min(LONGEST_DELAY, 2 ** min(failures - 1, 10))

    async def start(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """As ``keep``, for a part that reports when it has started. Raises what keeps it from starting first."""
        has_started = False

        async def part() -> None:
            nonlocal has_started
            async with trio.open_nursery() as nursery:
                await nursery.start(run)
                if not has_started:
                    has_started = True
                    task_status.started()

        await self.keep(name, part, fatal=lambda: not has_started)

    async def _once(self, name: str, run: Callable[[], Awaitable[None]], fatal: Callable[[], bool]) -> None:
        try:
            await run()
            log.error(f"a part of {self._of} ended; restarting it", part=name)
        except Exception as error:  # any part's error is its own
            if fatal():
                raise
            self._say(name, error, f"a part of {self._of} failed; restarting it")
        except BaseExceptionGroup as group:  # of a part that is cancelled, and fails at that
            failed, others = group.split(Exception)
            if failed is None or others is None:
                raise
            self._say(name, failed, f"a part of {self._of} failed while it was stopping")
            self._failures[name] += 1
            raise others from None
        self._failures[name] += 1

    def _say(self, part: str, error: Exception, event: str) -> None:
        reasons = [str(each) for each in leaves(error) if isinstance(each, self._plain)]
        if reasons:
            log.error(event, part=part, reason="; ".join(reasons))
        else:
            log.error(event, part=part, exc_info=error)


async def until_done(step: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run what has to be brought to its end: again, a second later, after each exception. If cancelled, so is it."""
    has_failed = False
    while True:
        try:
            if has_failed:
                await trio.sleep(AGAIN_SECONDS)
            await run()
        except Exception as error:
            has_failed = True
            log.error("a step failed; retrying", step=step, exc_info=error)
        else:
            return


def leaves(error: BaseException) -> Iterator[BaseException]:
    """An exception, or the members of a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
