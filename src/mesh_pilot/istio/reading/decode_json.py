"""Plain data (from YAML or JSON) to a betterproto message, strictly: every problem with its field path.

The rules are those of the protobuf JSON mapping: camelCase and snake_case names, wrappers as plain values, null as
absence. In contrast to betterproto2's `from_dict` these are errors: two members of a oneof, a string for a list,
numbers out of range, unknown enum values, both spellings of one field. `decode_fast` is the fast path.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import TypeVar

import betterproto2

from mesh_pilot.api.google.protobuf import ListValue, Struct, Value
from mesh_pilot.api.istio.security.v1beta1 import PeerAuthentication
from mesh_pilot.base.suggestions import did_you_mean
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, MessageDescriptor, descriptor_of
from mesh_pilot.istio.meaning.durations import describe, read_duration
from mesh_pilot.istio.reading import scalars
from mesh_pilot.istio.reading.field_warnings import ONCE_SINGLE, REMOVED, REPLACED, use_warnings
from mesh_pilot.model.config import Problem, Severity

M = TypeVar("M", bound=betterproto2.Message)

NOT_EMPTY = {(PeerAuthentication, "port_level_mtls")}
"""Maps that must not be empty if they are present."""

MAX_LISTED = 15
"""An error about an unknown name lists the known ones unless there are more than this."""


def read_message(message: type[M], data: object, path: str, problems: list[Problem]) -> M | None:
    """The message that `data` describes; None if `data` is not an object.

    Adds every problem to `problems`; fields with an error are left out of the message. `path` is the path of `data`.
    """
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"expected an object, got {describe(data)}"))
        return None
    descriptor = descriptor_of(message)
    values: dict[str, object] = {}
    written: dict[str, str] = {}
    groups: dict[str, str] = {}
    for name, item in data.items():
        here = f"{path}.{name}" if path else str(name)
        field = descriptor.by_name.get(name)
        if field is None:
            _unknown_field(descriptor, name, item, here, problems)
            continue
        if (other := written.get(field.python_name)) is not None:
            problems.append(Problem(here, f"given twice, as {other} and as {name}"))
            continue
        written[field.python_name] = name
        # In this order: a name of no field, a field by two names, null (which is absence, but not for a Value), two
        # members of a oneof. A part with an error is kept if it is a message, list or map: rules about its other fields
        # still apply.
        if item is None and field.wellknown is not Value:
            continue
        if field.group is not None:
            if (other := groups.get(field.group)) is not None:
                problems.append(Problem(here, f"only one of {other} and {name} may be set"))
                continue
            groups[field.group] = name
        problems += use_warnings(message, field, here)
        count = len(problems)
        value = _read_field(message, field, item, here, problems)
        if value is not None and (len(problems) == count or field.message or field.repeated or field.value):
            values[field.python_name] = value
    return message(**values)


def _unknown_field(descriptor: MessageDescriptor, name: str, item: object, path: str, problems: list[Problem]) -> None:
    """Add an error, or a warning for a field that Istio has removed (nothing if it is null)."""
    removed = REMOVED.get(descriptor.message, {})
    if (instead := REPLACED.get(descriptor.message, {}).get(name)) is not None:
        problems.append(Problem(path, instead))
    elif (reason := removed.get(name)) is None:
        known = [*(field.json_name for field in descriptor.fields), *removed]
        problems.append(Problem(path, unknown_reason("field", name, known)))
    elif item is not None:
        problems.append(Problem(path, f"has no effect: {reason}", Severity.WARNING))


def unknown_reason(what: str, name: object, known: Iterable[str]) -> str:
    """`unknown field "rout"; did you mean route?`, or the known names if none is similar and they are few."""
    names = sorted(known)
    if hint := did_you_mean(str(name), names):
        return f'unknown {what} "{name}"{hint}'
    if len(names) > MAX_LISTED:
        return f'unknown {what} "{name}"'
    return f'unknown {what} "{name}"; known: {", ".join(names)}' if names else f'unknown {what} "{name}"; none is known'


def _read_field(
    message: type[betterproto2.Message], field: FieldDescriptor, item: object, path: str, problems: list[Problem]
) -> object:
    if field.repeated:
        if isinstance(item, str) and (version := ONCE_SINGLE.get((message, field.proto_name))):
            reason = f"is a list since Istio {version}: taken for one with a single entry"
            problems.append(Problem(path, reason, Severity.WARNING))
            item = [item]
        if not isinstance(item, list):
            problems.append(Problem(path, f"expected a list, got {describe(item)}"))
            return None
        return [
            value
            for index, element in enumerate(item)
            if (value := _read_one(field, element, f"{path}[{index}]", problems)) is not None
        ]
    if field.value is not None:
        if not isinstance(item, Mapping):
            problems.append(Problem(path, f"expected an object, got {describe(item)}"))
            return None
        if not item and (message, field.proto_name) in NOT_EMPTY:
            problems.append(Problem(path, "must not be empty; leave it out"))
        return _read_map(field, item, path, problems)
    return _read_one(field, item, path, problems)


def _read_map(
    field: FieldDescriptor, item: Mapping[str, object], path: str, problems: list[Problem]
) -> dict[object, object]:
    assert field.key is not None
    assert field.value is not None
    values: dict[object, object] = {}
    for written, element in item.items():
        here = f"{path}[{written}]"
        try:
            key = _read_key(field.key, written)
        except ValueError as error:
            problems.append(Problem(here, f"as a key: {error}"))
            continue
        # As in Istio: `headers: {x: }` is a match of any value.
        value = _read_one(field.value, {} if element is None and field.value.message else element, here, problems)
        if value is not None:
            values[key] = value
    return values


def _read_key(field: FieldDescriptor, written: str) -> object:
    """A map's key, which is always a string in YAML and JSON."""
    if field.proto_type == "bool" and written in ("true", "false"):
        return written == "true"
    return _read_scalar(field, written)


def _read_one(field: FieldDescriptor, item: object, path: str, problems: list[Problem]) -> object:
    if field.message is not None:
        return read_message(field.message, item, path, problems)
    try:
        return _read_scalar(field, item)
    except ValueError as error:
        problems.append(Problem(path, str(error)))
        return None


def _read_scalar(field: FieldDescriptor, item: object) -> object:
    if field.wellknown is not None:
        if field.wellknown is datetime.timedelta:
            return read_duration(item)
        if field.wellknown is datetime.datetime:
            return scalars.read_timestamp(item)
        if field.wellknown is Struct:
            return scalars.read_struct(item)
        return scalars.read_list_value(item) if field.wellknown is ListValue else scalars.read_value(item)
    match field.proto_type:
        case "string":
            return scalars.read_string(item)
        case "bool":
            return scalars.read_bool(item)
        case "enum":
            assert field.enum is not None
            return read_enum(field.enum, item)
        case "float" | "double":
            return scalars.read_number(item)
        case "bytes":
            return scalars.read_bytes(item)
    return scalars.read_integer(item, field.proto_type)


def read_enum(enum: type[betterproto2.Enum], item: object) -> betterproto2.Enum:
    """A value of an enum by its name or number."""
    names = {member.proto_name or member.name: member for member in enum}
    if isinstance(item, str):
        if item in names:
            return names[item]
        raise ValueError(f'unknown value "{item}"; allowed: {", ".join(names)}')
    if isinstance(item, int) and not isinstance(item, bool):
        for member in enum:
            if member.value == item:
                return member
        raise ValueError(f"unknown value {item}; allowed: {', '.join(names)}")
    word = next((word for word in ("ON", "OFF") if word in names and item is (word == "ON")), "")
    advice = f'; YAML reads {word} as a boolean: write "{word}", in quotes' if word else ""
    raise ValueError(f"expected one of {', '.join(names)}, got {describe(item)}{advice}")
