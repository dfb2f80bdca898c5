"""Messages to bytes: the same bytes as `bytes(message)`, ten times as fast.

betterproto2 looks up each field for every message. Here each class has a list of field writers, built once.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import betterproto2

from mesh_pilot.base.protowire import FIXED32, FIXED64, LEN, VARINT, tag, varint

_Write = Callable[[Any], bytes]
"""A field with its tag, of a value that is there."""

_VARINTS = frozenset(("enum", "bool", "int32", "int64", "uint32", "uint64"))
_ZIGZAG = frozenset(("sint32", "sint64"))
_FIXED = {"double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q"}


def encode(message: betterproto2.Message) -> bytes:
    """The encoded message."""
    parts = []
    for name, default, write in _fields(type(message)):
        value = getattr(message, name)
        if value is not None and value != default:
            parts.append(write(value))
    if message._unknown_fields:
        parts.append(message._unknown_fields)
    return b"".join(parts)


@cache
def _fields(message: type[betterproto2.Message]) -> Sequence[tuple[str, object, _Write]]:
    """Name, default and writer of each field, in the order in which they are written."""
    meta: betterproto2.ProtoClassMetadata = message._betterproto  # type: ignore[arg-type]  # its class property is untyped
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return tuple(
            (name, meta.default_gen[name](), _field_writer(field)) for name, field in meta.meta_by_field_name.items()
        )


def _field_writer(field: betterproto2.FieldMetadata) -> _Write:
    if field.map_meta is not None:
        return _map_writer(field.number, *field.map_meta)
    write = _writer(field.number, field)
    if not field.repeated:
        return write
    if field.proto_type in _VARINTS or field.proto_type in _ZIGZAG or field.proto_type in _FIXED:
        return _packed_writer(field.number, _bare_writer(field))
    return lambda values: b"".join([write(value) for value in values])


def _map_writer(number: int, key: betterproto2.FieldMetadata, value: betterproto2.FieldMetadata) -> _Write:
    entry_tag = tag(number, LEN)
    write_key, write_value = _writer(1, key), _writer(2, value)

    def write(items: Mapping[object, object]) -> bytes:
        entries = [write_key(key) + write_value(item) for key, item in items.items()]
        return b"".join([entry_tag + varint(len(entry)) + entry for entry in entries])

    return write


def _packed_writer(number: int, write: _Write) -> _Write:
    field_tag = tag(number, LEN)

    def write_all(values: Sequence[object]) -> bytes:
        body = b"".join([write(value) for value in values])
        return field_tag + varint(len(body)) + body

    return write_all


def _writer(number: int, field: betterproto2.FieldMetadata) -> _Write:
    """One value with its tag."""
    write = _bare_writer(field)
    if field.proto_type in _VARINTS or field.proto_type in _ZIGZAG:
        field_tag = tag(number, VARINT)
        return lambda value: field_tag + write(value)
    if field.proto_type in _FIXED:
        field_tag = tag(number, FIXED64 if struct.calcsize(_FIXED[field.proto_type]) == 8 else FIXED32)
        return lambda value: field_tag + write(value)
    field_tag = tag(number, LEN)

    def write_delimited(value: object) -> bytes:
        body = write(value)
        return field_tag + varint(len(body)) + body

    return write_delimited


def _bare_writer(field: betterproto2.FieldMetadata) -> _Write:
    """One value without its tag."""
    if field.proto_type in _VARINTS:
        return varint
    if field.proto_type in _ZIGZAG:
        return lambda value: varint(value << 1 if value >= 0 else ~(value << 1))
    if field.proto_type in _FIXED:
        return struct.Struct(_FIXED[field.proto_type]).pack
    if field.proto_type == betterproto2.TYPE_STRING:
        return str.encode
    if field.proto_type != betterproto2.TYPE_MESSAGE:
        return bytes
    if field.unwrap is None:
        return encode
    wrapper: Any = field.unwrap()  # of a Duration, a BoolValue, ...: in Python a plain value
    return lambda value: encode(wrapper.from_wrapped(value))
