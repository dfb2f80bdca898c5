"""Containment of errors: a task or a call that must not cost more than itself. Its error is logged, no more.

There are two ways to say so, as what is left to do differs:

- *A task* is still needed: `restarted` runs it again, after a growing pause, until it ends. `PartSupervisor` does so
  for the parts of a process, which never end by themselves, and counts their failures.
- *A call* is over, and its caller has something to fall back on, mostly the last value: ``with Contained(log, "...")``.

Where people are to see an error for as long as it lasts, it *stands* in a register:
`engine.failures.OwnFailures.contained`. Code that turns any exception of a library into its own (``raise
SourceError from error``) contains nothing, and needs none of these.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self

import structlog
import trio

log = structlog.get_logger(scope="upkeep")

LONGEST_DELAY = 30.0
AGAIN_SECONDS = 1.0
CALM_SECONDS = 60.0
"""A task that ran for this long has recovered."""


class Contained:
    """A block whose exception is logged and ends there::

        members = self._members
        with Contained(log, "cannot list members; they stay as they are", group=name) as failed:
            members = list_members(name)

    Afterwards ``failed.error`` is the exception, or None.
    """

    def __init__(
        self,
        log: Any,
        event: str,
        *,
        is_logged: Callable[[], bool] = lambda: True,
        **fields: object,
    ) -> None:
        """``is_logged``: whether it is logged, which a limit may forbid this time."""
        self._log, self._event, self._is_logged, self._fields = log, event, is_logged, fields
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.error = None
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True

    def caught(self, error: Exception) -> None:
        """An error that was caught in another way than by the block."""
        if self._is_logged():
            self._log.error(self._event, **self._fields, exc_info=error)
        self.error = error


async def restarted(
    run: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], bool],
    *,
    longest_delay: float = LONGEST_DELAY,
) -> None:
    """Run a task until it ends: again, after a pause that grows, whenever it fails. If cancelled, so is it.

    ``failed`` logs an exception, and says whether there is another try. What it raises ends the task.
    """
    failures, pause = 0, 0.0
    while True:
        began = trio.current_time() + pause
        try:
            if pause:  # here, where an exception of the pause itself ends nothing either
                await trio.sleep(pause)
            return await run()
        except Exception as error:
            if not failed(error):
                return None
        except BaseExceptionGroup as group:  # of a task that is cancelled, and fails at that
            errors, others = group.split(Exception)
            if errors is None or others is None:
                raise
            failed(errors)
            raise others from None
        failures = 1 if trio.current_time() - began >= CALM_SECONDS else failures + 1
        pause = random.uniform(0.5, 1) * min(longest_delay, 2 ** min(failures - 1, 10))


async def until_done(step: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run what has to be brought to its end: again, within a second, after each exception. If cancelled, so is it."""

    def failed(error: Exception) -> bool:
        log.error("a step failed; retrying", step=step, exc_info=error)
        return True

    await restarted(run, failed, longest_delay=AGAIN_SECONDS)


class PartSupervisor:
    """Keeps the parts of a process running. Mutable state: how often each part has failed."""

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
        """Run a part forever: again, after a growing pause, whenever it fails or ends. If cancelled, so is it.

        Raises only what comes while ``fatal`` is true.
        """

        async def endless() -> None:
            await run()
            raise _Ended

        await restarted(endless, partial(self._failed, name, fatal))

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

    def _failed(self, name: str, fatal: Callable[[], bool], error: Exception) -> bool:
        is_stopping = trio.current_effective_deadline() == -math.inf
        if isinstance(error, _Ended):
            log.error(f"a part of {self._of} ended; restarting it", part=name)
        elif is_stopping:
            self._say(name, error, f"a part of {self._of} failed while it was stopping")
        elif fatal():
            raise error
        else:
            self._say(name, error, f"a part of {self._of} failed; restarting it")
        self._failures[name] += 1
        return True

    def _say(self, part: str, error: Exception, event: str) -> None:
        reasons = [str(each) for each in leaves(error) if isinstance(each, self._plain)]
        if reasons:
            log.error(event, part=part, reason="; ".join(reasons))
        else:
            log.error(event, part=part, exc_info=error)


class _Ended(Exception):
    """A part returned that should not."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """An exception, or the members of a group."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
