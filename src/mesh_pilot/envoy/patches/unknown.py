"""Fields that a message does not have: found in its JSON, and left out.

Patches are written for many versions of Envoy. A field that is gone, or not known yet, is said and costs only itself;
anything else that is wrong with a value costs the patch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

Json = dict[str, Any] | list[Any] | str | float | bool | None

Object = dict[str, Any]

TypeOf = Callable[[str], Descriptor | None]
"""The type that a URL names, if it is known."""

_ANY = "google.protobuf.Any"
_OWN_JSON = "google.protobuf."
"""Types of this package (Struct, Duration, ...) have forms of their own, not fields."""


def without_unknown(value: Object, name: str, type_of: TypeOf) -> tuple[Object, list[str]]:
    """A message's JSON with only the fields that it has, and the paths of those that it has not.

    ``name`` is that of the message's type.
    """
    unknown: list[str] = []
    kind = type_of(name)
    assert kind is not None
    return _object(value, kind, type_of, "", unknown), unknown


def _object(value: Object, kind: Descriptor, type_of: TypeOf, path: str, unknown: list[str]) -> Object:
    kept: dict[str, Any] = {}
    if kind.full_name == _ANY:
        inner = type_of(str(value.get("@type", "")))
        if inner is None or inner.full_name.startswith(_OWN_JSON):
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
    return _object(value, kind, type_of, path, unknown) if isinstance(value, dict) else value
