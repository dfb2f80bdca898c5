"""One heap for all threads of the agent, as a precaution: otherwise each thread may get its own."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""glibc, mallopt(3): how many heaps there are for all threads."""


def share_heap() -> None:
    """One heap for all threads: they work on files now and then. No effect unless the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
