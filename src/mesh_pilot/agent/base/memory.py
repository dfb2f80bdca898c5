"""Memory that the C library keeps after large answers, given back to the system."""

from __future__ import annotations

import ctypes


def return_freed_memory() -> None:
    """Give it back, which takes milliseconds. No effect unless the C library is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
