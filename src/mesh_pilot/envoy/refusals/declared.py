"""Constraints on the fields of Envoy's messages, as its API declares them (the options of ``validate.proto``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import attrs
from envoy.annotations import deprecation_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from validate import validate_pb2

from mesh_pilot.envoy.core.protobuf import find_type

Check = Callable[[Any], str]
"""The reason why a value is refused, or an empty string."""

ANY = "google.protobuf.Any"
_DURATION = "google.protobuf.Duration"
_WRAPPER = re.compile(r"google\.protobuf\.(Bool|Bytes|Double|Float|U?Int(32|64)|String)Value")
_SINGLE_VALUE = re.compile(r"google\.protobuf\.(Any|Duration|Struct|Timestamp|Value|ListValue|[A-Za-z0-9]+Value)")

_NANOS = 10**9
_MAX_NANOS = 2**63
"""Envoy counts nanoseconds in 64 bits."""

_HEADER = {
    (validate_pb2.HTTP_HEADER_NAME, True): (r":?[0-9a-zA-Z!#$%&'*+\-.^_|~`]+", "the name of a header"),
    (validate_pb2.HTTP_HEADER_VALUE, True): (r"[^\x00-\x08\x0a-\x1f\x7f]*", "text without control characters"),
    (validate_pb2.HTTP_HEADER_NAME, False): (r"[^\x00\n\r]*", "text without NUL and line breaks"),
    (validate_pb2.HTTP_HEADER_VALUE, False): (r"[^\x00\n\r]*", "text without NUL and line breaks"),
}
"""Patterns of the rule ``well_known_regex``, by it and by ``strict``."""

_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "lt": ("less than", lambda value, bound: value < bound),
    "lte": ("at most", lambda value, bound: value <= bound),
    "gt": ("greater than", lambda value, bound: value > bound),
    "gte": ("at least", lambda value, bound: value >= bound),
}

_SIZES: Mapping[str, tuple[str, Callable[[int, int], bool]]] = {
    "min_len": ("at least {} characters long", int.__ge__),
    "max_len": ("at most {} characters long", int.__le__),
    "min_bytes": ("at least {} bytes long", int.__ge__),
    "max_bytes": ("at most {} bytes long", int.__le__),
}


@attrs.frozen
class FieldRules:
    """The rules of one field."""

    field: FieldDescriptor
    checks: tuple[Check, ...] = ()
    """Checks of a value, or of a list or map as a whole."""
    item_checks: tuple[Check, ...] = ()
    key_checks: tuple[Check, ...] = ()
    value_type: Descriptor | None = None
    """The type of a value, list element or map value, if that type has rules."""
    unsupported: str = ""
    """Not empty: why the field may not be set at all."""

    @property
    def parent(self) -> str:
        """The type that has the field."""
        kind = self.field.containing_type
        return kind.full_name if kind is not None else ""


@attrs.frozen
class MessageRules:
    """The rules of a message type."""

    by_number: Mapping[int, FieldRules]
    """Rules for fields that are set."""
    absent: Mapping[int, tuple[str, str]]
    """Fields that must be set: their names, and the reasons."""
    oneofs: Mapping[str, str]
    """Oneofs of which a field must be set, and the names of these fields."""


# -- the rules of a type


@cache
def rules_of(name: str) -> MessageRules:
    """The rules of a message type of this full name, which has to be loaded."""
    kind = find_type(name)
    assert kind is not None
    by_number: dict[int, FieldRules] = {}
    absent: dict[int, tuple[str, str]] = {}
    for field in kind.fields:
        options = field.GetOptions()
        declared = options.Extensions[validate_pb2.rules]
        rules = _field_rules(field, declared)
        if options.Extensions[deprecation_pb2.disallowed_by_default]:
            rules = attrs.evolve(rules, unsupported="Envoy does not support this field any more")
        if rules != FieldRules(field):
            by_number[field.number] = rules
        if reason := _absent_reason(field, declared, rules):
            absent[field.number] = (field.name, reason)
    required = [o for o in kind.oneofs if o.GetOptions().Extensions[validate_pb2.required]]
    oneofs = {oneof.name: ", ".join(field.name for field in oneof.fields) for oneof in required}
    return MessageRules(by_number, absent, oneofs)


def _field_rules(field: FieldDescriptor, declared: Any) -> FieldRules:
    kind = declared.WhichOneof("type")
    value_type = None if declared.message.skip else _nested_type(field)
    if kind == "repeated":
        items = _value_checks(field, declared.repeated.items)
        return FieldRules(field, _size_checks(declared.repeated), items, (), value_type)
    if kind == "map":
        assert field.message_type is not None
        entry = field.message_type.fields_by_name
        keys, values = (_value_checks(entry[n], getattr(declared.map, f"{n}s")) for n in ("key", "value"))
        return FieldRules(field, _size_checks(declared.map), values, keys, value_type)
    checks = _value_checks(field, declared)
    return (
        FieldRules(field, (), checks, (), value_type)
        if field.is_repeated
        else FieldRules(field, checks, (), (), value_type)
    )


def _nested_type(field: FieldDescriptor) -> Descriptor | None:
    """The type of a field's messages if these are to be checked."""
    kind: Descriptor | None = field.message_type
    if kind is not None and is_map(field):
        kind = kind.fields_by_name["value"].message_type
    if kind is None or (kind.full_name != ANY and is_single_value(kind)):
        return None
    # No factory reads these.
    return None if field.name == "typed_filter_metadata" else kind


def _absent_reason(field: FieldDescriptor, declared: Any, rules: FieldRules) -> str:
    """The reason why a field must be set; empty: it need not be."""
    if field.containing_oneof is not None:
        return ""
    kind = declared.WhichOneof("type")
    if declared.message.required or (kind in ("duration", "any") and getattr(declared, kind).required):
        return "is missing"
    if field.is_repeated:
        return _first_reason(rules.checks, ())
    if field.has_presence:
        return ""
    reason = _first_reason(rules.checks, field.default_value)
    return "is missing" if reason and not field.default_value else reason


def _first_reason(checks: tuple[Check, ...], value: Any) -> str:
    return next((reason for check in checks if (reason := check(value))), "")


def _value_checks(field: FieldDescriptor, declared: Any) -> tuple[Check, ...]:
    """The checks of one value: a scalar, an element of a list, a key or value of a map."""
    kind = declared.WhichOneof("type")
    wrapped = field.message_type is not None and _WRAPPER.fullmatch(field.message_type.full_name)
    name = "" if field.message_type is None else field.message_type.full_name
    found: list[Check] = []
    # A duration has bounds of Envoy's own even where nothing is declared; of an Any, only its presence is (see
    # ``_absent_reason``). Wrapped values are judged inside, and only where ``ignore_empty`` says so an empty one
    # passes.
    if name == _DURATION:
        found = [_duration_reason]
    if kind is None or kind == "any":
        return tuple(found)
    rules = _given(getattr(declared, kind))
    match kind:
        case "string" | "bytes":
            found += _text_checks(rules)
        case "enum":
            found += _enum_checks(field, rules)
        case "bool":
            found += [partial(_const_reason, rules["const"])]
        case "duration":
            found += [partial(_bound_reason, n, _nanos(rules[n]), _nanos) for n in _BOUNDS if n in rules]
        case _:
            found += [partial(_bound_reason, n, rules[n], None) for n in _BOUNDS if n in rules]
    if not found:
        return ()
    if wrapped:
        return (partial(_wrapped_reason, tuple(found)),)
    if rules.get("ignore_empty"):
        return (partial(_non_empty_reason, tuple(found)),)
    return tuple(found)


def _given(rules: Message) -> dict[str, Any]:
    return {field.name: value for field, value in rules.ListFields()}


def _size_checks(declared: Message) -> tuple[Check, ...]:
    """The checks of a list or map as a whole."""
    rules = _given(declared)
    found: list[Check] = []
    if least := rules.get("min_items") or rules.get("min_pairs"):
        found.append(lambda value: "" if len(value) >= least else f"has to have at least {least} entries")
    if most := rules.get("max_items") or rules.get("max_pairs"):
        found.append(lambda value: "" if len(value) <= most else f"has {len(value)} entries, allowed are {most}")
    if rules.get("unique"):
        found.append(lambda value: "" if len(set(value)) == len(value) else "has an entry twice")
    return tuple(found)


def _text_checks(rules: Mapping[str, Any]) -> Iterator[Check]:
    yield from (partial(_size_reason, name, rules[name]) for name in _SIZES if name in rules)
    if known := rules.get("well_known_regex"):
        pattern, wanted = _HEADER[known, rules.get("strict", True)]
        yield partial(_pattern_reason, re.compile(pattern), wanted)
    if own := rules.get("pattern"):
        yield partial(_pattern_reason, re.compile(own), f"text of the form {own}")
    if start := rules.get("prefix"):
        yield lambda value: "" if value.startswith(start) else f"has to start with {start}"
    if end := rules.get("suffix"):
        yield lambda value: "" if value.endswith(end) else f"has to end with {end}"
    if allowed := tuple(rules.get("in", ())):
        yield lambda value: "" if value in allowed else f"has to be one of {', '.join(map(repr, allowed))}"


def _enum_checks(field: FieldDescriptor, rules: Mapping[str, Any]) -> Iterator[Check]:
    kind = field.enum_type
    assert kind is not None
    known, refused = kind.values_by_number, frozenset(rules.get("not_in", ()))
    if rules.get("defined_only"):
        yield lambda value: "" if value in known else f"{value} is not a value of {kind.full_name}"
    if refused:
        yield lambda value: f"{known[value].name} is not allowed" if value in refused else ""


# -- reasons


def _bound_reason(name: str, bound: Any, measure: Callable[[Any], Any] | None, value: Any) -> str:
    words, holds = _BOUNDS[name]
    if holds(measure(value) if measure else value, bound):
        return ""
    shown = f"{bound / _NANOS:g}s" if measure else f"{bound:g}" if isinstance(bound, float) else bound
    return f"has to be {words} {shown}"


def _const_reason(wanted: Any, value: Any) -> str:
    return "" if value == wanted else f"has to be {wanted}"


def _size_reason(name: str, bound: int, value: Any) -> str:
    words, holds = _SIZES[name]
    size = len(value.encode()) if name.endswith("bytes") and isinstance(value, str) else len(value)
    return "" if holds(size, bound) else f"has to be {words.format(bound)}"


def _pattern_reason(pattern: re.Pattern[str], wanted: str, value: str) -> str:
    return "" if pattern.fullmatch(value) else f"{value[:100]!r} is not {wanted}"


def _wrapped_reason(checks: tuple[Check, ...], value: Any) -> str:
    return _first_reason(checks, value.value)


def _non_empty_reason(checks: tuple[Check, ...], value: Any) -> str:
    return _first_reason(checks, value) if value else ""


def _duration_reason(value: Any) -> str:
    nanos = _nanos(value)
    if nanos < 0:
        return "a duration can't be negative"
    return "" if nanos < _MAX_NANOS else f"a duration has to be less than {_MAX_NANOS // _NANOS}s"


def _nanos(value: Any) -> int:
    total: int = value.seconds * _NANOS + value.nanos
    return total


def is_single_value(kind: Descriptor) -> bool:
    """True for types that are one value: a part of one means nothing."""
    return _SINGLE_VALUE.fullmatch(kind.full_name) is not None


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
