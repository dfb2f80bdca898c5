"""Attributes and numbers as OTLP's JSON has them. Source: OpenTelemetry, ``common.proto``; protobuf's JSON mapping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Value = str | int | float | tuple[str, ...]

ESCAPED = "backslashreplace"
"""How a lone surrogate is written: receivers refuse a request that has one."""


def attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    """Attributes in the order of the mapping."""
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def text(content: str) -> str:
    """A string that every receiver can read."""
    return content if content.isascii() else content.encode("utf-8", ESCAPED).decode()


def double(number: float) -> float | str:
    """A number; those that JSON does not have are words."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def nanoseconds(unix_seconds: float) -> str:
    """A point in time. 64-bit numbers are strings."""
    return str(round(unix_seconds * 1000) * 1_000_000)


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": text(value)}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"arrayValue": {"values": [{"stringValue": text(each)} for each in value]}}
