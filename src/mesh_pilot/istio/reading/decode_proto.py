"""Encoded protobuf to a betterproto message, strictly.

betterproto2 accepts truncated fields and wrong wire types, so bytes from the network are checked first. Unknown fields
are warnings: a newer sender may know more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import betterproto2

from mesh_pilot.base.protowire import FIXED32, FIXED64, LEN, VARINT, WireError, fields, read_varint, value_span
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, MessageDescriptor, descriptor_of
from mesh_pilot.istio.reading.field_warnings import use_warnings
from mesh_pilot.model.config import Problem, Severity

M = TypeVar("M", bound=betterproto2.Message)

_VARINTS = frozenset(("enum", "bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64"))
_FIXED = {"double": FIXED64, "fixed64": FIXED64, "sfixed64": FIXED64}
_FIXED |= {"float": FIXED32, "fixed32": FIXED32, "sfixed32": FIXED32}
_MAX_DEPTH = 100


def parse_message(message: type[M], body: bytes, path: str, problems: list[Problem]) -> M:
    """The message that `body` encodes.

    Raises ValueError if it is not an encoded message. Adds to `problems`: unknown, deprecated and ineffective fields as
    warnings, unknown enum values and second members of a oneof as errors.
    """
    _walk(descriptor_of(message), memoryview(body), path, problems, 0)
    try:
        return message.parse(body)
    except OverflowError as error:
        raise ValueError(f"a duration or time is out of range: {error}") from None


def _walk(descriptor: MessageDescriptor, body: memoryview, path: str, problems: list[Problem], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"{path} is nested too deeply")
    counts: dict[int, int] = {}
    members: dict[str, str] = {}
    seen: set[int] = set()
    for number, wire_type, start, end in _fields(body, path):
        field = descriptor.by_number.get(number)
        if field is None:
            reason = f"unknown field number {number}, ignored"
            problems.append(Problem(path, reason, Severity.WARNING))
            continue
        here = f"{path}.{field.json_name}" if path else field.json_name
        if number not in seen:
            seen.add(number)
            problems += use_warnings(descriptor.message, field, here)
        if field.repeated:
            index = counts.get(number, 0)
            counts[number] = index + 1
            here = f"{here}[{index}]"
        if field.group is not None and members.setdefault(field.group, field.json_name) != field.json_name:
            problems.append(Problem(here, f"only one of {members[field.group]} and {field.json_name} may be set"))
        _check(field, wire_type, body[start:end], here, problems, depth)


def _fields(body: memoryview, path: str) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message; what is wrong with one is a ValueError that names the message's path."""
    try:
        yield from fields(body)
    except WireError as error:
        raise ValueError(f"{path} {error}") from None


def _check(
    field: FieldDescriptor, wire_type: int, value: memoryview, path: str, problems: list[Problem], depth: int
) -> None:
    """One occurrence of a field."""
    wanted = _wire_type(field)
    if wire_type != wanted:
        # Lists of numbers may come packed or one by one, whatever the schema says.
        if field.repeated and wire_type == LEN and wanted != LEN:
            return _check_packed(wanted, value, path)
        raise ValueError(f"{path} has wire type {wire_type}, not {wanted}")
    if field.carrier is not None:
        _walk(descriptor_of(field.carrier), value, path, problems, depth + 1)
    elif field.key is not None and field.value is not None:
        _check_entry(field.key, field.value, value, path, problems, depth)
    elif field.proto_type == "string":
        _utf8(value, path)
    elif field.enum is not None:
        number, _ = read_varint(value, 0)
        if number not in {member.value for member in field.enum}:
            allowed = ", ".join(member.proto_name or member.name for member in field.enum)
            problems.append(Problem(path, f"unknown value {number}; allowed: {allowed}"))
    return None


def _check_entry(
    key: FieldDescriptor, value: FieldDescriptor, body: memoryview, path: str, problems: list[Problem], depth: int
) -> None:
    """A map's entry: a message of field 1, the key, and field 2, the value."""
    for number, wire_type, start, end in _fields(body, path):
        if number in (1, 2):
            part = key if number == 1 else value
            _check(part, wire_type, body[start:end], f"{path}.{part.json_name}", problems, depth)


def _check_packed(wanted: int, value: memoryview, path: str) -> None:
    position = 0
    try:
        while position < len(value):
            _, position = value_span(value, position, wanted)
    except WireError as error:
        raise ValueError(f"{path} {error}") from None


def _wire_type(field: FieldDescriptor) -> int:
    if field.carrier is not None:
        return LEN
    if field.proto_type in _VARINTS:
        return VARINT
    return _FIXED.get(field.proto_type, LEN)


def _utf8(value: memoryview, path: str) -> None:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
