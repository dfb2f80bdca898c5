"""Plain data to a message, for data without problems: the fast path of `decode_json`, with the same results.

Each message class has a table of readers by field name, built once. Unknown fields, fields with warnings, and values
in any but their usual form are left to `decode_json`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TypeVar

import betterproto2

from mesh_pilot.api.google.protobuf import ListValue, Struct
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from mesh_pilot.istio.meaning.durations import read_duration
from mesh_pilot.istio.reading import scalars
from mesh_pilot.istio.reading.field_warnings import DEPRECATED, WITHOUT_EFFECT

M = TypeVar("M", bound=betterproto2.Message)

_Read = Callable[[object], object]
"""The decoded value of plain data. Raises ValueError for data that it leaves to `decode_json`."""


def read_fast(message: type[M], data: object) -> M | None:
    """The message that `data` describes; None if `decode_json` has to read it."""
    reader: Callable[[object], M] = _reader_of(message)
    try:
        return reader(data)
    except (ValueError, RecursionError):
        return None


@cache
def _reader_of(message: type[M]) -> Callable[[object], M]:
    fields: dict[str, tuple[str, _Read]] = {}
    groups: dict[str, str] = {}

    def read(data: object) -> M:
        if not fields:  # built at the first use, because a message may contain itself
            groups.update(_groups(message))
            fields.update(_fields(message))  # last, and in one step: another thread may be reading
        if type(data) is not dict:
            raise ValueError
        values: dict[str, object] = {}
        for name, item in data.items():
            field = fields.get(name)
            if field is None or item is None:
                raise ValueError
            values[field[0]] = field[1](item)
        if len(values) != len(data):
            raise ValueError  # one field by two names
        if groups:
            chosen = [groups[name] for name in values if name in groups]
            if len(chosen) != len(set(chosen)):
                raise ValueError
        return message(**values)

    return read


def _fields(message: type[betterproto2.Message]) -> dict[str, tuple[str, _Read]]:
    """Python name and reader of each field, by every name it may be written with; fields with warnings left out."""
    descriptor = descriptor_of(message)
    with_warnings = {*DEPRECATED.get(message, ()), *WITHOUT_EFFECT.get(message, ())}
    return {
        name: (field.python_name, _field(field))
        for name, field in descriptor.by_name.items()
        if field.proto_name not in with_warnings
    }


def _groups(message: type[betterproto2.Message]) -> dict[str, str]:
    return {field.python_name: field.group for field in descriptor_of(message).fields if field.group is not None}


def _field(field: FieldDescriptor) -> _Read:
    if field.repeated:
        return _strings if _is_string(field) else _list_of(_value(field))
    if field.key is not None and field.value is not None:
        if not _is_string(field.key):
            return _leave
        return _string_map() if _is_string(field.value) else _map_of(_value(field.value))
    return _value(field)


def _is_string(field: FieldDescriptor) -> bool:
    return field.proto_type == "string"


def _value(field: FieldDescriptor) -> _Read:
    if field.message is not None:
        return _reader_of(field.message)
    if field.wellknown is not None:
        return _WELLKNOWN.get(field.wellknown, _leave)
    if field.enum is not None:
        return _member_of(field.enum)
    if field.proto_type in scalars.RANGES:
        return _integer_of(*scalars.RANGES[field.proto_type])
    if _is_string(field):
        return _repeated_string()
    return _SCALARS.get(field.proto_type, _leave)


# -- readers of values


def _leave(item: object) -> object:
    raise ValueError


def _string(item: object) -> str:
    if type(item) is not str or not (item.isascii() or scalars.is_text(item)):
        raise ValueError
    return item


def _repeated_string() -> _Read:
    """A reader of strings that returns one object for equal ones in a row, such as the service account of endpoints."""
    last = ""

    def read_string(item: object) -> str:
        nonlocal last
        found = last  # a local name: another thread may replace `last`
        if item != found:
            last = found = _string(item)
        return found

    return read_string


def _bool(item: object) -> bool:
    if type(item) is not bool:
        raise ValueError
    return item


def _number(item: object) -> float:
    if type(item) is not float and type(item) is not int:
        raise ValueError
    return scalars.read_number(item)


def _duration(item: object) -> datetime.timedelta:
    if type(item) is not str or len(item) > 20:
        raise ValueError
    return _known_duration(item)


_known_duration = lru_cache(maxsize=256)(read_duration)


def _strings(item: object) -> list[str]:
    if type(item) is not list:
        raise ValueError
    return [_string(element) for element in item]


def _string_map() -> _Read:
    """A reader of maps of strings that returns one dict for equal maps in a row, such as the labels of endpoints.

    Several messages share that dict. That is safe because a spec is never changed once it is decoded (`model.Config`);
    betterproto2 wants a real dict, so it cannot be frozen.
    """
    last: dict[str, str] = {}

    def read_map(item: object) -> dict[str, str]:
        nonlocal last
        if type(item) is not dict:
            raise ValueError
        found = last  # a local name: another thread may replace `last`
        if item != found:
            last = found = {_string(key): _string(element) for key, element in item.items()}
        return found

    return read_map


def _list_of(read: _Read) -> _Read:
    def read_list(item: object) -> list[object]:
        if type(item) is not list:
            raise ValueError
        return [read(element) for element in item]

    return read_list


def _map_of(read: _Read) -> _Read:
    def read_map(item: object) -> dict[str, object]:
        if type(item) is not dict:
            raise ValueError
        return {_string(key): read(element) for key, element in item.items()}

    return read_map


def _integer_of(low: int, high: int) -> _Read:
    def read_integer(item: object) -> int:
        if type(item) is not int or not low <= item <= high:
            raise ValueError
        return item

    return read_integer


def _member_of(enum: type[betterproto2.Enum]) -> _Read:
    members = {member.proto_name or member.name: member for member in enum}

    def read_member(item: object) -> betterproto2.Enum:
        if type(item) is not str or item not in members:
            raise ValueError
        return members[item]

    return read_member


_SCALARS: dict[str, _Read] = {"bool": _bool, "float": _number, "double": _number}
_WELLKNOWN: dict[type, _Read] = {
    datetime.timedelta: _duration,
    Struct: scalars.read_struct,
    ListValue: scalars.read_list_value,
}
