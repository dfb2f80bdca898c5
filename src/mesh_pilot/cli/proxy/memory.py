"""Measures that keep the agent small: libraries that are not loaded, one heap for all threads.

Measured with rich and without: 3 MB and 0.14 s less; once httpx is loaded, 4 MB less. The heap is a precaution: each
thread may get one of its own.
"""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8
"""glibc, mallopt(3): how many heaps there are for all threads."""


def load_structlog() -> None:
    """Load structlog without what it takes wherever it is installed: rich, for tracebacks in colours, and greenlet."""
    if "structlog" in sys.modules:
        return
    unwanted = [name for name in ("rich", "greenlet") if name not in sys.modules]
    for name in unwanted:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import structlog  # noqa: F401
    finally:
        for name in unwanted:
            del sys.modules[name]


def leave_out_httpx_command() -> None:
    """Have httpx, where it is loaded later, do without its command line: rich and Pygments, 4 MB."""
    if "httpx" not in sys.modules:
        sys.modules["httpx._main"] = None  # type: ignore[assignment]  # httpx takes that for a missing extra


def share_heap() -> None:
    """One heap for all threads: they work on files now and then. No effect unless the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
