"""Gives memory back that a crowd of clients, or of services, has left behind.

Two things keep it, as measured in docs/decisions/010-memory-after-churn.md. What a closed connection leaves is mostly
in reference cycles, and with the rare collections of a long-lived process (``cli.memory``) those wait for ever. And
the C library keeps what was freed. So after many have left: one full collection, and one ``malloc_trim``.
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
"""Derived values, resources and streams that must be gone for memory to be worth giving back: some megabytes."""

OBJECTS_A_STREAM = 300
"""Objects that a stream leaves in cycles, that of its connection included."""

FOUND_A_STREAM = 50
"""Objects of each such stream that are found by a look at the young objects, if they are among those."""

YOUNG, ALL = 1, 2
"""Generations of the collector. To look at the young ones is cheap, and those who left soon are among them."""

WORTH_A_COLLECTION = 0.02
"""The share of all memory blocks that must be in cycles, by estimation, for a collection, which looks at everything."""


class MemoryRelease:
    """Decides when to give memory back, and does it.

    Mutable state: what is gone since the last time.
    """

    def __init__(
        self,
        *,
        collect: Callable[[int], int] = gc.collect,
        trim: Callable[[], None] | None = None,
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        """What is done, and how many blocks are in use: given for tests."""
        self._collect = collect
        self._trim = trim or _malloc_trim
        self._blocks = blocks
        self._freed = 0
        self._streams = 0
        self._streams_collected = 0

    def __repr__(self) -> str:
        return f"<MemoryRelease {self._freed} freed, {self._streams - self._streams_collected} streams ended>"

    async def release(self, *, freed: int, streams: int) -> None:
        """Give memory back if enough was let go: ``freed`` since the last call, and ``streams`` ended since the start.

        A collection holds everything up while it runs: some 0.1 s for a million objects. If cancelled, all is as well.
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
        log.debug("memory given back", collected=collected, paused_ms=round(paused * 1000, 1))

    def _is_worth_a_collection(self, ended: int) -> bool:
        return ended > 0 and ended * OBJECTS_A_STREAM >= WORTH_A_COLLECTION * self._blocks()


def _malloc_trim() -> None:
    """Have the C library give free memory back to the system; nothing where it cannot (only glibc can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
