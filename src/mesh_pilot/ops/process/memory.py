"""Returns memory to the system after many clients or services have gone.

Two things keep it otherwise, as measured in docs/decisions/010-memory-after-churn.md: a closed connection leaves mostly
reference cycles, which the rare garbage collections of this process (``cli.process``) do not reach for a long time, and
the C library keeps freed memory. So, after many have gone: one full collection and one ``malloc_trim``.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable

import structlog
import trio

log = structlog.get_logger(scope="bootstrap")

FREED_ENOUGH = 2_000
"""Freed derived values, resources and streams (some megabytes) after which memory is returned."""

OBJECTS_A_STREAM = 300
"""Objects that a stream and its connection leave in cycles."""

FOUND_A_STREAM = 50
"""Objects of a stream that a collection of the young generations finds, if they are that young."""

YOUNG, ALL = 1, 2
"""Generations of the collector. Collecting the young ones is cheap and finds streams that ended soon."""

WORTH_A_COLLECTION = 0.02
"""The estimated share of memory blocks in cycles that makes a full collection worth its time."""


class MemoryRelease:
    """Decides when to return memory, and does it.

    Mutable state: the objects freed, and the streams ended, since the last time.
    """

    def __init__(
        self,
        *,
        collect: Callable[[int], int] = gc.collect,
        trim: Callable[[], None] | None = None,
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        """The arguments are for tests."""
        self._collect = collect
        self._trim = trim or _malloc_trim
        self._blocks = blocks
        self._freed = 0
        self._streams = 0
        self._streams_collected = 0

    def __repr__(self) -> str:
        return f"<MemoryRelease {self._freed} freed, {self._streams - self._streams_collected} streams ended>"

    async def release(self, *, freed: int, streams: int) -> None:
        """Return memory if enough was freed: ``freed`` since the last call, ``streams`` ended since the start.

        A collection blocks the process: some 0.1 s for a million objects. Cancellation leaves nothing behind.
        """
        self._freed += freed
        self._streams = streams
        ended = streams - self._streams_collected
        if self._freed + ended < FREED_ENOUGH and not self._is_worth_a_collection(ended):
            return
        began = time.perf_counter()
        collected = 0
        if self._is_worth_a_collection(ended):
            self._streams_collected = streams
            collected = self._collect(YOUNG)
            if collected < ended * FOUND_A_STREAM:
                collected += self._collect(ALL)
        paused = time.perf_counter() - began
        self._freed = 0
        await trio.to_thread.run_sync(self._trim)
        log.debug("memory returned to the system", collected=collected, paused_ms=round(paused * 1000, 1))

    def _is_worth_a_collection(self, ended: int) -> bool:
        return ended > 0 and ended * OBJECTS_A_STREAM >= WORTH_A_COLLECTION * self._blocks()


def _malloc_trim() -> None:
    """Ask the C library to return free memory to the system; no effect unless it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
