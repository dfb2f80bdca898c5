"""Decoding large documents in a thread, so that pushes go on.

Decoding takes some ten microseconds a value. What is small is decoded where it arrives, which is quicker than to hand
it over; a document of a megabyte would hold the loop, and every push with it, for a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

LARGE_BYTES = 16 * 1024
"""Text from here on is read in a thread: up to there it takes some ten milliseconds."""

LARGE_VALUES = 2000
"""The same of data that is not text: values in it."""

_ONE: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("one at a time")
"""Two would take turns, and be done later. Each run has its own: a thread that ends after its run returns nothing."""

T = TypeVar("T")


async def offload(is_large: bool, read: Callable[[], T]) -> T:
    """The result of ``read``, which runs in a thread if it ``is_large``. Raises its errors.

    If cancelled, the thread runs to its end and its result is dropped: ``read`` must change nothing that others see.
    """
    if not is_large:
        return read()
    return await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=_one())


def _one() -> trio.CapacityLimiter:
    try:
        return _ONE.get()
    except LookupError:
        _ONE.set(limiter := trio.CapacityLimiter(1))
        return limiter


def has_many_values(data: object) -> bool:
    """True if plain data has LARGE_VALUES values or more; it counts no further."""
    waiting = [data]
    found = 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            inner: list[object] = list(item.values())
        elif isinstance(item, list):
            inner = item
        else:
            continue
        found += len(inner)
        if found >= LARGE_VALUES:
            return True
        waiting += inner
    return False
