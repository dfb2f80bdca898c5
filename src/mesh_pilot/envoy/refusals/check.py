"""The walk over a message that finds why Envoy would refuse it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from mesh_pilot.envoy.core.protobuf import find_type, unpack
from mesh_pilot.envoy.refusals import clusters, extensions, filters, formats, listeners, routes
from mesh_pilot.envoy.refusals.declared import ANY, FieldRules, is_map, is_single_value, rules_of
from mesh_pilot.envoy.refusals.pairs import Rule

_EXTENSION = "envoy.config.core.v3.TypedExtensionConfig"

UNDECLARED: Mapping[str, Rule] = {
    **extensions.RULES,
    **filters.RULES,
    **formats.RULES,
    **listeners.RULES,
    **routes.RULES,
    **clusters.RULES,
}
"""Rules for complete messages, by type: they yield ``field: reason``."""


def refusals(message: Message, *, partly: bool = False, path: str = "") -> Iterator[str]:
    """Reasons why Envoy would refuse a message, as ``path: reason``, with paths in the names of Envoy's API.

    With ``partly`` the message is to be merged into another, so nothing is required of what it does not set. Elements
    of lists and values of maps are complete nevertheless.
    """
    rules = rules_of(message.DESCRIPTOR.full_name)
    fields = message.ListFields()
    prefix = f"{path}." if path else ""
    if not partly:
        present = {field.number for field, _ in fields} if rules.absent else ()
        for number, (name, reason) in rules.absent.items():
            if number not in present:
                yield f"{prefix}{name}: {reason}"
        for oneof, names in rules.oneofs.items():
            if message.WhichOneof(oneof) is None:
                yield f"{prefix}{oneof}: is missing; it is one of {names}"
        undeclared = UNDECLARED.get(message.DESCRIPTOR.full_name)
        if undeclared is not None:
            yield from (prefix + text for text in undeclared(message))
    for field, value in fields:
        found = rules.by_number.get(field.number)
        if found is not None:
            yield from _of_field(found, value, prefix + field.name, partly)


def _of_field(rules: FieldRules, value: Any, path: str, partly: bool) -> Iterator[str]:
    if rules.unsupported:
        yield f"{path}: {rules.unsupported}"
    yield from (f"{path}: {reason}" for check in rules.checks if (reason := check(value)))
    kind = rules.value_type
    if not rules.field.is_repeated:
        if kind is not None:
            # Of Anys, only the configs of filters and transport sockets are merged.
            is_merged = not is_single_value(kind) or rules.field.name == "typed_config"
            yield from _of_value(rules, kind, value, path, partly and is_merged)
        return
    for key, item in value.items() if is_map(rules.field) else enumerate(value):
        here = f"{path}[{key}]"
        yield from (f"{here}: {reason}" for check in rules.key_checks if (reason := check(key)))
        yield from (f"{here}: {reason}" for check in rules.item_checks if (reason := check(item)))
        if kind is not None:
            yield from _of_value(rules, kind, item, here, False)


def _of_value(rules: FieldRules, kind: Descriptor, value: Any, path: str, partly: bool) -> Iterator[str]:
    if kind.full_name == _EXTENSION and (reason := extensions.misfit(rules.parent, value)):
        yield f"{path}.typed_config: {reason}"
    if kind.full_name != ANY:
        yield from refusals(value, partly=partly, path=path)
    elif not value.type_url:
        yield f"{path}: @type is missing"
    elif find_type(value.type_url) is not None:
        try:
            message = unpack(value)
            inner = extensions.in_typed_struct(message)
        except ValueError as error:
            yield f"{path}: {error}"
        else:
            yield from refusals(message, partly=partly, path=path)
            if inner is not None:
                yield from refusals(inner, partly=partly, path=f"{path}.value")
