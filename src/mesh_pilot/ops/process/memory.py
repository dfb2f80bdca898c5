"""Returns memory to the system after many clients or services have gone: the C library keeps what is freed.

What has gone is freed at once, and not by a collection, which is rare in this process (``cli.process``): closed streams
and connections are in no cycle. See docs/decisions/010-memory-after-churn.md.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import structlog
import trio

log = structlog.get_logger(scope="bootstrap")

FREED_ENOUGH = 2_000
"""Freed derived values, resources and streams (some megabytes) after which memory is returned."""


class MemoryRelease:
    """Decides when to return memory, and does it.

    Mutable state: the objects freed since the last time, and the streams that had ended by the last call.
    """

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        """``trim`` is for tests."""
        self._trim = trim or _malloc_trim
        self._freed = 0
        self._streams = 0

    def __repr__(self) -> str:
        return f"<MemoryRelease {self._freed} freed>"

    async def release(self, *, freed: int, streams: int) -> None:
        """Return memory if enough was freed: ``freed`` since the last call, ``streams`` ended since the start.

        Cancellation leaves nothing behind.
        """
        self._freed += freed + streams - self._streams
        self._streams = streams
        if self._freed < FREED_ENOUGH:
            return
        self._freed = 0
        began = time.perf_counter()
        await trio.to_thread.run_sync(self._trim)
        log.debug("memory returned to the system", took_ms=round((time.perf_counter() - began) * 1000, 1))


def _malloc_trim() -> None:
    """Ask the C library to return free memory to the system; no effect unless it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
