"""Single values, read as the protobuf JSON mapping and Istio read them.

Each function returns the value or raises ValueError with a reason for users: what was expected, what was found, what to
write.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import UTC, datetime

from mesh_pilot.api.google.protobuf import ListValue, Struct, Value
from mesh_pilot.istio.meaning.durations import describe

RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "sfixed32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "fixed32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "sint64": (-(2**63), 2**63 - 1),
    "sfixed64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
    "fixed64": (0, 2**64 - 1),
}
"""The integer types and their ranges."""

MAX_DEPTH = 100
"""Levels of objects and lists in a free-form value. Messages are compared recursively, so deeper ones could overflow
Python's stack. Envoy has the same limit."""

_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[-+]\d\d:\d\d)")


def read_string(value: object) -> str:
    if isinstance(value, str):
        if not is_text(value):
            raise ValueError("holds half of a surrogate pair, which is not a character")
        return value
    if isinstance(value, bool | int | float):
        raise ValueError(f"expected a string, got {describe(value)}; put it in quotes")
    raise ValueError(f"expected a string, got {describe(value)}")


def is_text(value: str) -> bool:
    """True if it can be encoded as UTF-8: JSON strings may contain lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected true or false, got {describe(value)}")


def read_integer(value: object, proto_type: str) -> int:
    """An integer of a protobuf type; integral floats and decimal strings count, as in protobuf's JSON."""
    low, high = RANGES[proto_type]
    number: int
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {describe(value)}")
    if isinstance(value, int):
        number = value
    elif (isinstance(value, float) and value.is_integer()) or (
        isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value)
    ):
        number = int(value)
    else:
        raise ValueError(f"expected a whole number, got {describe(value)}")
    if not low <= number <= high:
        raise ValueError(f"{describe(number).removeprefix('the number ')} is out of range, allowed are {low} to {high}")
    return number


def read_number(value: object) -> float:
    """A float or double."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {describe(value)}")
    if isinstance(value, int | float):
        return _float(value)
    if isinstance(value, str):
        try:
            return float({"Infinity": "inf", "-Infinity": "-inf"}.get(value, value))
        except ValueError:
            pass
    raise ValueError(f"expected a number, got {describe(value)}")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is a whole number beyond all that a float can hold") from None


def read_bytes(value: object) -> bytes:
    """Base64, of either alphabet, with or without its padding."""
    text = read_string(value)
    try:
        padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
        return base64.b64decode(padded.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected base64") from None


def read_timestamp(value: object) -> datetime:
    """RFC 3339, as Kubernetes writes `creationTimestamp`."""
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"expected a time such as 2024-03-01T12:00:00Z, got {describe(value)}")


def read_struct(value: object, depth: int = 0) -> Struct:
    """A JSON object. ``depth``: number of enclosing lists and objects."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {describe(value)}")
    _check_nesting(depth)
    return Struct(fields={read_string(str(key)): read_value(item, depth + 1) for key, item in value.items()})


def read_list_value(value: object, depth: int = 0) -> ListValue:
    """A JSON list. ``depth``: number of enclosing lists and objects."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {describe(value)}")
    _check_nesting(depth)
    return ListValue(values=[read_value(item, depth + 1) for item in value])


def _check_nesting(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ValueError(f"is nested too deeply; at most {MAX_DEPTH} levels can be read")


def read_value(value: object, depth: int = 0) -> Value:
    """Any JSON value. ``depth``: number of enclosing lists and objects."""
    match value:
        case bool():
            return Value(bool_value=value)
        case int() | float():
            number = _float(value)
            if not math.isfinite(number):
                raise ValueError(f"{value} can't be written in JSON")
            return Value(number_value=number)
        case str():
            return Value(string_value=read_string(value))
        case list():
            return Value(list_value=read_list_value(value, depth))
        case dict():
            return Value(struct_value=read_struct(value, depth))
    return Value.from_dict(None)
