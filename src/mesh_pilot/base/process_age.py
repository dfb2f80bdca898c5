"""Seconds that the process has lived, the start of Python included."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOADED = time.monotonic()


def process_age() -> float:
    """Where the system does not tell (it is not Linux), the time since this module was loaded."""
    try:
        ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _LOADED
