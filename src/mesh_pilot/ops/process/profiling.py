"""Profiles of the running process: its time and its memory, by line of code. They cost nothing while none is made."""

from __future__ import annotations

import os
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType

import attrs

INTERVAL_SECONDS = 0.005
"""Between samples: some 200 a second, which cost 2 to 3 % of a core."""

MAX_DEPTH = 200
"""Frames of a stack that are told; the outermost are left out."""

MAX_STACKS = 20_000
"""Different stacks that are counted apart; further ones are counted together."""

LINES = 50
"""Lines of code that take the most memory."""

IDLE = ("select", "poll", "wait", "accept", "get_events", "_worker_thread")
"""Functions in which a thread waits: its samples count as idle."""

OTHER = "(other)"

_PACKAGES = str(Path(__file__).parents[2])


@attrs.frozen
class CpuProfile:
    """The time of a process, by what it did."""

    seconds: float
    cpu_seconds: float
    interval_seconds: float
    samples: int
    idle: int
    """Samples of threads that waited."""
    stacks: Mapping[str, int]
    """``thread;outer;inner``, and how often each was seen."""


@attrs.frozen
class CodeLine:
    """The memory that a line of code has taken and not given back."""

    line: str
    bytes: int
    blocks: int


@attrs.frozen
class MemoryProfile:
    """The memory of a process, by what has taken it."""

    seconds: float
    resident_bytes: int
    resident_bytes_before: int
    taken_bytes: int
    peak_bytes: int
    lines: Sequence[CodeLine]


def cpu_profile(seconds: float, stop: threading.Event) -> CpuProfile:
    """The stacks of all threads, ``thread;outer;inner``, and how often each was seen within some seconds, or until
    `stop`. Runs in a separate thread."""
    stacks: Counter[str] = Counter()
    samples = idle = 0
    own = threading.get_ident()
    labels: dict[CodeType, str] = {}
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds and not stop.wait(INTERVAL_SECONDS):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # the one way to see other threads
            if ident == own:
                continue
            samples += 1
            if frame.f_code.co_name in IDLE:
                idle += 1
                continue
            stack = f"{names.get(ident, 'thread')};{_stack(frame, labels)}"
            stacks[stack if stack in stacks or len(stacks) < MAX_STACKS else OTHER] += 1
    elapsed, busy = round(time.monotonic() - began, 3), round(time.process_time() - used, 3)
    return CpuProfile(elapsed, busy, INTERVAL_SECONDS, samples, idle, dict(stacks.most_common()))


def _stack(frame: FrameType | None, labels: dict[CodeType, str]) -> str:
    found: list[str] = []
    while frame is not None and len(found) < MAX_DEPTH:
        code = frame.f_code
        label = labels.get(code)
        if label is None:
            label = labels[code] = f"{_file(code.co_filename)}:{code.co_qualname}".replace(";", ":")
        found.append(label)
        frame = frame.f_back
    return ";".join(reversed(found))


def memory_profile(seconds: float, stop: threading.Event) -> MemoryProfile:
    """The memory that was taken within some seconds, or until `stop`, and not given back, by line of code.

    Allocations are traced during this time, which makes them slower. Runs in a separate thread.
    """
    before = resident_bytes()
    tracemalloc.start()
    try:
        began = time.monotonic()
        stop.wait(seconds)
        taken, peak = tracemalloc.get_traced_memory()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    statistics = snapshot.statistics("lineno")
    lines = [
        CodeLine(f"{_file(each.traceback[0].filename)}:{each.traceback[0].lineno}", each.size, each.count)
        for each in statistics[:LINES]
    ]
    return MemoryProfile(round(time.monotonic() - began, 3), resident_bytes(), before, taken, peak, lines)


def resident_bytes() -> int:
    """The memory of the process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _file(name: str) -> str:
    """A file as it is imported: ``mesh_pilot/world/world.py``."""
    short = name.removeprefix(_PACKAGES).lstrip("/") if name.startswith(_PACKAGES) else name
    return short.rpartition("site-packages/")[2]
