"""JSON as people write it, made into what protobuf's own reader takes.

Patches are written for many versions of Envoy. A field that a message does not have is left out, and named: it costs
only itself. Durations may be written as in Go. A wrong ``@type``, like anything else that is wrong with a value, costs
the patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from mesh_pilot.config.scalars import read_duration, write_duration
from mesh_pilot.envoy.envoy_filter.patch import PatchError

Json = dict[str, Any] | list[Any] | str | float | bool | None

Object = dict[str, Any]

TypeOf = Callable[[str], Descriptor | None]
"""The type that a URL names, if it is known."""

_ANY = "google.protobuf.Any"
_DURATION = "google.protobuf.Duration"
_PROTOBUF_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
_OWN_JSON = "google.protobuf."
"""Types of this package (Struct, Duration, ...) have forms of their own, not fields."""


def readable(value: Object, name: str, type_of: TypeOf) -> tuple[Object, list[str]]:
    """A message's JSON with only the fields that it has, and the paths of those that it has not.

    ``name`` is that of the message's type. Raises PatchError for an Any whose type is not known, and for durations
    that are none.
    """
    unknown: list[str] = []
    kind = type_of(name)
    assert kind is not None
    return _object(value, kind, type_of, "", unknown), unknown


def _object(value: Object, kind: Descriptor, type_of: TypeOf, path: str, unknown: list[str]) -> Object:
    kept: dict[str, Any] = {}
    if kind.full_name == _ANY:
        if not value:
            return value
        inner = _any_type(value, type_of, path)
        if inner.full_name.startswith(_OWN_JSON):
            return value
        kept["@type"] = value["@type"]
        value = {name: item for name, item in value.items() if name != "@type"}
        kind = inner
    elif kind.full_name.startswith(_OWN_JSON):
        return value
    fields = {name: f for f in kind.fields for name in (f.name, f.json_name)}
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        field = fields.get(name)
        if field is None:
            unknown.append(f"{here} (there is none in {kind.full_name})")
        else:
            kept[name] = _field(item, field, type_of, here, unknown)
    return kept


def _field(value: Json, field: FieldDescriptor, type_of: TypeOf, path: str, unknown: list[str]) -> Json:
    kind = field.message_type
    if kind is None:
        return value
    if kind.GetOptions().map_entry:
        entry = kind.fields_by_name["value"]
        if not isinstance(value, dict):
            return value
        return {key: _field(item, entry, type_of, f"{path}[{key}]", unknown) for key, item in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [_message(item, kind, type_of, f"{path}[{at}]", unknown) for at, item in enumerate(value)]
    return _message(value, kind, type_of, path, unknown)


def _message(value: Json, kind: Descriptor, type_of: TypeOf, path: str, unknown: list[str]) -> Json:
    """What is no object is no message either: that is said where it is parsed."""
    if isinstance(value, dict):
        return _object(value, kind, type_of, path, unknown)
    if isinstance(value, str) and kind.full_name == _DURATION:
        return _duration(value, path)
    return value


def _any_type(value: Object, type_of: TypeOf, path: str) -> Descriptor:
    where = f"{path}.@type" if path else "@type"
    url = value.get("@type")
    if not isinstance(url, str) or not url:
        raise PatchError(f"{where}: has to be the URL of a type, such as type.googleapis.com/envoy.config.core.v3.Node")
    kind = type_of(url)
    if kind is None:
        raise PatchError(
            f"{where}: {url}: no such type is known; for a filter that only your Envoy has, "
            "write it as a type.googleapis.com/xds.type.v3.TypedStruct"
        )
    return kind


def _duration(text: str, path: str) -> str:
    """A duration in protobuf's spelling, given that or Go's (``500ms``, ``1m30s``)."""
    if _PROTOBUF_DURATION.fullmatch(text):
        return text
    try:
        return write_duration(read_duration(text))
    except ValueError as error:
        raise PatchError(f"{path}: {error}") from None
