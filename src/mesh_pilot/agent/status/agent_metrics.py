"""The agent's own metrics, ``mesh_pilot_agent_*``: numbers in the ``statistics()`` of its parts, and of its process.

A field that is a number, or true or false, is a metric; one that is a mapping to numbers has a series for each key; a
point in time is in seconds of Unix time. The name of a part and of a field is the name of the metric. The text is
written here: Prometheus' client would need 1 MB of memory for it.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import attrs

from mesh_pilot.base.process_age import process_age

Parts = Mapping[str, Callable[[], object]]
"""The parts of an agent by name, each with its ``statistics``."""

PREFIX = "mesh_pilot_agent"

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]+")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_MOST_KEYS = 1000
"""Series of one field."""


def agent_metrics(parts: Parts) -> bytes:
    """All of them in Prometheus' text format. A part whose statistics fail is left out, and counted."""
    lines: list[str] = []
    missing = 0
    for name, statistics in parts.items():
        try:
            lines += metric_lines(name, statistics())
        except Exception:  # a part's error hides no other part
            missing += 1
    lines += _metric("missing_parts", missing)
    for field, value in process_numbers().items():
        lines += _metric(f"process_{field}", value)
    return "".join(f"{line}\n" for line in lines).encode()


def metric_lines(part: str, statistics: object) -> Iterator[str]:
    """The lines of one part; ``statistics`` is an instance of an attrs class, or a mapping."""
    for field, value in fields_of(statistics):
        name = _NO_NAME.sub("_", f"{part}_{field}")
        if isinstance(value, Mapping):
            numbers = {str(key): _number(each) for key, each in list(value.items())[:_MOST_KEYS]}
            known = {key: number for key, number in numbers.items() if number is not None}
            if known:
                yield _type(name)
            for key, number in known.items():
                yield f'{PREFIX}_{name}{{key="{key.translate(_ESCAPES)}"}} {_text(number)}'
        else:
            yield from _metric(name, _number(value))


def fields_of(statistics: object) -> Iterator[tuple[str, object]]:
    """Names and values of the public fields of what a part's ``statistics`` returned."""
    if isinstance(statistics, Mapping):
        yield from ((str(key), value) for key, value in statistics.items())
    elif attrs.has(kind := type(statistics)):
        for field in attrs.fields(kind):
            if not field.name.startswith("_") and field.repr is not False:
                yield field.name, getattr(statistics, field.name)


def process_numbers() -> dict[str, float]:
    """The process's memory, CPU time, files and start, where the system tells them."""
    times = os.times()
    found: dict[str, float] = {"cpu_seconds_total": times.user + times.system}
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        found["start_time_seconds"] = time.time() - process_age()
        found["resident_memory_bytes"] = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        found["open_fds"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except (OSError, ValueError, IndexError, AttributeError):
        pass  # not Linux
    return found


def _type(name: str) -> str:
    return f"# TYPE {PREFIX}_{name} {'counter' if name.endswith('_total') else 'untyped'}"


def _metric(name: str, number: float | None) -> Iterator[str]:
    if number is not None:
        yield _type(name)
        yield f"{PREFIX}_{name} {_text(number)}"


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return value.timestamp()
    return None


def _text(number: float) -> str:
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return "NaN" if math.isnan(number) else repr(number)
