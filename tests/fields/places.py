"""Where objects have which fields, and the same objects without one, or with another value in it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import betterproto2

from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from tests.door.fields import FIELDS

FieldPath = tuple[str | int, ...]
Place = tuple[FieldPath, type[betterproto2.Message], FieldDescriptor]


def places(message: type[betterproto2.Message], data: Any, under: FieldPath = ()) -> Iterator[Place]:
    """Every field that is set in an object."""
    for name, value in data.items():
        field = descriptor_of(message).by_name[name]
        path = (*under, name)
        yield path, message, field
        inner = (field.value or field).message
        if inner is None:
            continue
        parts: Sequence[tuple[FieldPath, Any]] = [(path, value)]
        if field.value is not None:
            parts = [((*path, key), part) for key, part in value.items()]
        elif field.repeated:
            parts = [((*path, number), part) for number, part in enumerate(value)]
        for where, part in parts:
            yield from places(inner, part, where)


def below(found: Sequence[Place], path: FieldPath) -> Iterator[Place]:
    """Of these places, those of the fields of a message at `path`."""
    for place in found:
        inner = place[0]
        steps = inner[len(path) :]
        if len(inner) > len(path) and inner[: len(path)] == path and len(steps) <= _STEPS_TO_A_FIELD:
            yield place


_WORDS = {
    "RouteNamespaces.from": ("All", "Same"),
    "ListenerNamespaces.from": ("All", "Same"),
    "LabelSelectorRequirement.operator": ("NotIn",),
    "GatewaySpecAddress.type": ("IPAddress",),
    "LuaConfig.inlineCode": ("function envoy_on_response(handle) end",),
}
"""Values of fields that are texts, of which only some are allowed."""

_STEPS_TO_A_FIELD = 2
"""A number or a key between a list or a map and the fields of a message in it."""


def variants(data: Any, path: FieldPath, message: type[betterproto2.Message], field: FieldDescriptor) -> Iterator[Any]:
    """Copies of an object without a field, then with other values in it."""
    yield _edited(data, path, None)
    for sibling in descriptor_of(message).fields if field.group else ():
        if sibling.group == field.group and sibling is not field and sibling.proto_type == "string":
            yield _edited(_edited(data, path, None), (*path[:-1], sibling.json_name), "x-other")
    value = data
    for step in path:
        value = value[step]
    name = f"{message.__name__}.{field.json_name}"
    known = _WORDS.get(name) or FIELDS.get(name, FIELDS.get(field.json_name, ()))
    if field.repeated and len(value) > 1:
        yield _edited(data, path, value[:1])
        yield _edited(data, path, value[1:])
    if field.repeated and value and field.message is None:
        for other in _others(field, value[0], known):
            yield _edited(data, path, [other, *value[1:]])
    elif field.value is not None and field.value.message is None:
        for key in value:
            yield _edited(data, path, {**value, key: next(_others(field.value, value[key], ()), None)})
            yield _edited(data, path, {key + "x": each for key, each in value.items()})
        numbers = list(value.values())
        yield _edited(data, path, dict(zip(value, reversed(numbers), strict=True)))
    elif field.message is None:
        for other in _others(field, value, known):
            yield _edited(data, path, other)


def _others(field: FieldDescriptor, value: Any, known: Sequence[Any]) -> Iterator[Any]:
    if field.enum is not None:
        names = (member.proto_name or member.name for member in field.enum)
        yield from (name for name in names if name != value)
    elif field.wellknown is timedelta:
        yield "17s"
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        yield from ("x" + value, value + "x", "other." + value)
        yield from (each for each in known if each != value)


def _edited(data: Any, path: FieldPath, value: Any) -> Any:
    data = copy.deepcopy(data)
    holder = data
    for step in path[:-1]:
        holder = holder[step]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return data
