"""Measures that keep the agent small: a library that is not loaded, one heap for all threads.

Measured with rich and without: 3 MB and 0.14 s less. The heap is a precaution: each thread may get one of its own.
"""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8
"""glibc, mallopt(3): how many heaps there are for all threads."""


def load_structlog() -> None:
    """Load structlog without rich, which it takes for tracebacks in colours wherever it is installed."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def share_heap() -> None:
    """One heap for all threads: they work on files now and then. No effect unless the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
