"""Durations as Go writes them, and values in the words of a YAML author. Light: no message of an API is imported.

Functions that read return the value or raise ValueError with a reason for users.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

_MICROSECONDS = {
    "ns": Decimal("0.001"),
    "us": Decimal(1),
    "µs": Decimal(1),
    "μs": Decimal(1),
    "ms": Decimal(1000),
    "s": Decimal(1_000_000),
    "m": Decimal(60_000_000),
    "h": Decimal(3_600_000_000),
}
_NUMBER_WITH_UNIT = r"([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"([-+]?)((?:{_NUMBER_WITH_UNIT})+)")
_DURATION_PART = re.compile(_NUMBER_WITH_UNIT)
_MAX_DURATION = timedelta(seconds=315_576_000_000)
MAX_DURATION_TEXT = 100
"""Characters of a duration as it is written."""


def describe(value: object) -> str:
    """A value in the words of a YAML author."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int():
            return f"the number {value}" if value.bit_length() <= 256 else "a whole number of more than 256 bits"
        case float():
            return f"the number {value}"
        case str():
            return f"the string {value!r}" if len(value) <= 60 else f"the string {value[:57]!r}..."
        case dict():
            return "an object"
        case list():
            return "a list"
    return type(value).__name__


def read_duration(value: object) -> timedelta:
    """A duration as Go writes them: `1.5s`, `250ms`, `1h30m`; `0` needs its unit too."""
    if not isinstance(value, str):
        raise ValueError(f"expected a duration such as 5s, 250ms or 1h30m, got {describe(value)}")
    if len(value) > MAX_DURATION_TEXT:
        raise ValueError(f"a duration has at most {MAX_DURATION_TEXT} characters, this has {len(value)}")
    match = _DURATION.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write a number and a unit, such as 5s, 250ms or 1h30m")
    total = sum(
        (Decimal(number) * _MICROSECONDS[unit] for number, unit in _DURATION_PART.findall(match[2])), Decimal(0)
    )
    if total != total.to_integral_value():
        raise ValueError(f"{value!r} is finer than a microsecond")
    if total > _MAX_DURATION // timedelta(microseconds=1):
        raise ValueError(f"{value!r} is too long; the longest duration is 315576000000s")
    return timedelta(microseconds=int(total)) * (-1 if match[1] == "-" else 1)


def write_duration(value: timedelta) -> str:
    """The protobuf JSON form of a duration: seconds with as many decimals as needed."""
    microseconds = value // timedelta(microseconds=1)
    sign = "-" if microseconds < 0 else ""
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{sign}{seconds}{fraction}s"
