"""The pushes that are due: those of all streams that a change has woken are made by one task, one after the other.

One task for each would cost two switches and the objects of a wait, where nothing waits: a response that fits
the windows is written without waiting. Others get their turn after each slice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

__all__ = ["DuePushes"]

SLICE_SECONDS = 0.005
"""Time for which pushes are made before others get their turn."""

Push = Callable[[], None]
"""Pushes to one stream what needs no waiting; raises nothing."""


class DuePushes:
    """Mutable state: the pushes, in the order in which they became due, since when, and whether the task runs.

    It runs in Trio's own nursery, for as long as there is something to do: streams have no nursery in common.
    """

    def __init__(self) -> None:
        self._due: deque[Push] = deque()
        self._since: float | None = None
        self._is_running = False

    def __repr__(self) -> str:
        return f"<DuePushes {len(self._due)} due>"

    def since(self) -> float:
        """The time. One write of the World wakes thousands of streams: until pushes are made the clock stands."""
        if self._since is None:
            self._since = trio.current_time()
            self._start()
        return self._since

    def add(self, push: Push) -> None:
        """Have a push made in the next pass of the loop."""
        self._due.append(push)
        self._start()

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run, name="xds pushes")

    async def _run(self) -> None:
        try:
            while self._due or self._since is not None:
                self._since = None
                end = time.perf_counter() + SLICE_SECONDS
                while self._due:
                    self._due.popleft()()
                    if time.perf_counter() >= end:
                        break
                await trio.lowlevel.checkpoint()
        finally:
            self._is_running = False
