"""A betterproto message to plain data, the inverse of `decode_json`: the output can be written to a file and read.

betterproto2's `to_dict` guesses JSON names from Python names and gets some wrong (`consecutive5XxErrors`); here they
come from `descriptors`.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Mapping
from typing import Any

import betterproto2

from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from mesh_pilot.istio.meaning.durations import write_duration

_LONG = frozenset(("int64", "uint64", "sint64", "fixed64", "sfixed64"))
"""Types written as strings in the protobuf JSON mapping, because a JSON number has fewer than 64 bits."""


def to_json(message: betterproto2.Message) -> dict[str, Any]:
    """The message as the protobuf JSON mapping writes it, camelCase; fields at their default are left out."""
    found: dict[str, Any] = {}
    for field in descriptor_of(type(message)).fields:
        value = getattr(message, field.python_name)
        if value is None or (_has_default(field) and not value):
            continue
        found[field.json_name] = _field(field, value)
    return found


def _has_default(field: FieldDescriptor) -> bool:
    """True if an unset field has a value: any field but messages, wrappers and members of a oneof."""
    if field.repeated or field.value is not None:
        return True
    return field.carrier is None and not field.optional


def _field(field: FieldDescriptor, value: object) -> object:
    if field.repeated:
        assert isinstance(value, list)
        return [_one(field, item) for item in value]
    if field.value is not None:
        assert isinstance(value, Mapping)
        return {_key(key): _one(field.value, item) for key, item in value.items()}
    return _one(field, value)


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _one(field: FieldDescriptor, value: object) -> object:
    if field.wellknown is not None and isinstance(value, betterproto2.Message):
        return value.to_dict()  # of Struct, Value and ListValue: the JSON value itself
    match value:
        case betterproto2.Message():
            return to_json(value)
        case datetime.timedelta():
            return write_duration(value)
        case datetime.datetime():
            return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
        case betterproto2.Enum():
            return value.proto_name or value.name or value.value
        case bytes():
            return base64.b64encode(value).decode()
        case int() if field.proto_type in _LONG and not isinstance(value, bool):
            return str(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
