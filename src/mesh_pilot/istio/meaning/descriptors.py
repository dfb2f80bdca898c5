"""Descriptors of generated messages: their fields under the names that people write.

betterproto2 has Python names only, and its `from_dict` guesses JSON names from them, which fails for names with digits
or unusual capitals (`consecutive5xxErrors`, `meshMTLS`). These are the names of the protobuf JSON mapping.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from functools import cache

import attrs
import betterproto2

from mesh_pilot.api.google.protobuf import ListValue, Struct, Value

JSON_NAMES = {"mesh_mTLS": "meshMTLS", "well_known_ca_certificates": "wellKnownCACertificates"}
"""Fields with an explicit `json_name`."""


@attrs.frozen
class FieldDescriptor:
    """One field of a message."""

    python_name: str
    proto_name: str
    json_name: str
    proto_type: str
    """As betterproto2 names it: `string`, `uint32`, `enum`, `message`, `map`, ...; of wrappers, the wrapped type."""
    repeated: bool
    group: str | None
    """The oneof that the field is a member of."""
    number: int
    optional: bool = False
    """True for a scalar with presence: `optional` in the proto file, or a member of a oneof."""
    message: type[betterproto2.Message] | None = None
    enum: type[betterproto2.Enum] | None = None
    wellknown: type | None = None
    """`timedelta`, `datetime`, `Struct`, `Value` or `ListValue`: types with a special form in JSON."""
    wrapper: bool = False
    """A wrapper such as `BoolValue`: a scalar that can be absent."""
    carrier: type[betterproto2.Message] | None = None
    """The message on the wire, also for fields with a plain value in Python."""
    key: FieldDescriptor | None = None
    value: FieldDescriptor | None = None
    """Keys and values of a map."""


@attrs.frozen
class MessageDescriptor:
    """The fields of a message, by every name they may be written with."""

    message: type[betterproto2.Message]
    fields: tuple[FieldDescriptor, ...]
    by_name: Mapping[str, FieldDescriptor]
    by_number: Mapping[int, FieldDescriptor]


def camel_case(proto_name: str) -> str:
    """The JSON name that protobuf gives a field."""
    return JSON_NAMES.get(proto_name) or re.sub(r"_(.)", lambda match: match[1].upper(), proto_name)


@cache
def json_name(python_name: str) -> str:
    """The same of the attribute that has a field."""
    return camel_case(python_name.removesuffix("_"))


@cache
def descriptor_of(message: type[betterproto2.Message]) -> MessageDescriptor:
    """The descriptor of a generated class."""
    meta = _metadata(message)
    fields = []
    for name, field in meta.meta_by_field_name.items():
        proto_name = name.removesuffix("_")
        descriptor = _field(name, proto_name, field, meta.cls_by_field[name])
        if field.map_meta:
            key, value = field.map_meta
            descriptor = attrs.evolve(
                descriptor,
                key=_field("key", "key", key, str),
                value=_field("value", "value", value, meta.cls_by_field[f"{name}.value"]),
                message=None,
            )
        fields.append(descriptor)
    by_name = {field.proto_name: field for field in fields} | {field.json_name: field for field in fields}
    return MessageDescriptor(message, tuple(fields), by_name, {field.number: field for field in fields})


def _metadata(message: type[betterproto2.Message]) -> betterproto2.ProtoClassMetadata:
    meta: betterproto2.ProtoClassMetadata = message._betterproto  # type: ignore[arg-type]  # its class property is untyped
    return meta


def _field(name: str, proto_name: str, meta: betterproto2.FieldMetadata, python_type: type) -> FieldDescriptor:
    proto_type = meta.proto_type
    message: type[betterproto2.Message] | None = None
    enum: type[betterproto2.Enum] | None = None
    wellknown: type | None = None
    carrier: type[betterproto2.Message] | None = None
    wrapper = False
    if proto_type == betterproto2.TYPE_ENUM:
        enum = python_type
    elif proto_type == betterproto2.TYPE_MESSAGE:
        if meta.unwrap is not None:
            wrapped: type[betterproto2.Message] = meta.unwrap()
            carrier = wrapped
            if wrapped.__name__ in ("Duration", "Timestamp"):
                wellknown = datetime.timedelta if wrapped.__name__ == "Duration" else datetime.datetime
            else:
                wrapper = True
                proto_type = _metadata(wrapped).meta_by_field_name["value"].proto_type
        elif python_type in (Struct, Value, ListValue):
            wellknown = carrier = python_type
        else:
            message = carrier = python_type
    return FieldDescriptor(
        python_name=name,
        proto_name=proto_name,
        json_name=camel_case(proto_name),
        proto_type=proto_type,
        repeated=bool(meta.repeated),
        group=meta.group,
        number=meta.number,
        optional=bool(meta.optional),
        message=message,
        enum=enum,
        wellknown=wellknown,
        wrapper=wrapper,
        carrier=carrier,
    )
