"""Byte templates: a message that is encoded once with placeholders, and then filled in for each resource.

Ten thousand clusters differ in a few strings only, and joining bytes is much faster than building a protobuf message
of dozens of fields. The message is built once from Envoy's classes with placeholders for the strings that vary;
``Template.fill`` gives the bytes that building it with the real strings would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.base.protowire import LEN, WireError, fields, tag, varint


@attrs.frozen
class _Placeholder:
    """A field that is written once for each of its values, so not at all without any."""

    tag: bytes
    name: str


@attrs.frozen
class _Enclosing:
    """An embedded message that contains placeholders; it is present whatever they are filled with."""

    tag: bytes
    segments: tuple[_Segment, ...]


_Segment = bytes | _Placeholder | _Enclosing


@attrs.frozen
class Template:
    """An encoded message with placeholders."""

    segments: tuple[_Segment, ...]
    names: frozenset[str]
    """The names of its placeholders: a message may have no place for some that others of its kind have."""

    def fill(self, values: Mapping[str, Sequence[bytes]]) -> bytes:
        """The encoded message. ``values`` has the field values of each placeholder, by its name; others are ignored."""
        return _fill(self.segments, values)


def template(encoded: bytes, placeholders: Mapping[str, bytes]) -> Template:
    """An encoded message as a template: each field whose value is one of these becomes the placeholder of that name.

    A placeholder that may be filled zero or several times must sit in a repeated field, or in a string that is omitted
    when empty; its enclosing message must always be present. Raises ValueError if one is only part of a field's value.
    """
    try:
        segments = tuple(_segments(encoded, placeholders))
    except WireError:
        raise ValueError("a placeholder is part of a field that is not a message") from None
    made = Template(segments, frozenset(_names(segments)))
    fixed = made.fill(dict.fromkeys(placeholders, ()))
    for name, value in placeholders.items():
        if value in fixed:
            raise ValueError(f"the placeholder {name} is only a part of a field")
    return made


def _names(segments: Sequence[_Segment]) -> Iterator[str]:
    for segment in segments:
        if isinstance(segment, _Placeholder):
            yield segment.name
        elif isinstance(segment, _Enclosing):
            yield from _names(segment.segments)


def _fill(segments: tuple[_Segment, ...], values: Mapping[str, Sequence[bytes]]) -> bytes:
    out: list[bytes] = []
    for segment in segments:
        if isinstance(segment, bytes):
            out.append(segment)
        elif isinstance(segment, _Placeholder):
            for value in values[segment.name]:
                out += (segment.tag, varint(len(value)), value)
        else:
            body = _fill(segment.segments, values)
            out += (segment.tag, varint(len(body)), body)
    return b"".join(out)


def _segments(encoded: bytes, placeholders: Mapping[str, bytes]) -> Iterator[_Segment]:
    """The segments of a message; fields without placeholders stay together. Raises WireError."""
    copied = field_start = 0
    for number, wire_type, start, end in fields(encoded):
        value = encoded[start:end]
        if wire_type == LEN and any(placeholder in value for placeholder in placeholders.values()):
            if copied < field_start:
                yield encoded[copied:field_start]
            name = next((name for name, placeholder in placeholders.items() if placeholder == value), None)
            if name is not None:
                yield _Placeholder(tag(number), name)
            else:
                yield _Enclosing(tag(number), tuple(_segments(value, placeholders)))
            copied = end
        field_start = end
    if copied < len(encoded):
        yield encoded[copied:]
