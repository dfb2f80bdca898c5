"""Messages that differ in a few texts only: encoded once with blanks, then made by filling these in.

Building a protobuf message of dozens of fields takes much longer than joining bytes, and ten thousand clusters are
the same but for their names. So the message is built in the plain way once, with marks where the texts belong; what
comes of ``fill`` is to the byte what the plain way gives for those texts. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.envoy.core.protobuf import varint


@attrs.frozen
class _Blank:
    """A field that is filled in: written once for each of its contents, so not at all where there are none."""

    tag: bytes
    name: str


@attrs.frozen
class _Message:
    """An embedded message that has blanks; it is there whatever they are filled with."""

    tag: bytes
    parts: tuple[_Part, ...]


_Part = bytes | _Blank | _Message


@attrs.frozen
class Template:
    """An encoded message with blanks."""

    parts: tuple[_Part, ...]

    def fill(self, contents: Mapping[str, Sequence[bytes]]) -> bytes:
        """The encoded message; each blank has the fields' contents, by its name. Those of no blank do not matter."""
        return _filled(self.parts, contents)


def template(encoded: bytes, marks: Mapping[str, bytes]) -> Template:
    """What a message becomes whose fields are blanks where their content is one of these marks, by blank's name.

    A mark must be the whole content of a text or embedded message, at whatever depth; ValueError where it is not. To
    stay as the plain way writes it, a text that may be filled with nothing or more than one content must be an element
    of a repeated field, or one that is left out when it is empty; and a message around it one that is there anyhow.
    """
    made = Template(tuple(_parts(encoded, marks)))
    rest = made.fill(dict.fromkeys(marks, ()))
    for name, mark in marks.items():
        if mark in rest:
            raise ValueError(f"the mark of {name} is only a part of a text")
    return made


def _filled(parts: tuple[_Part, ...], contents: Mapping[str, Sequence[bytes]]) -> bytes:
    out: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            out.append(part)
        elif isinstance(part, _Blank):
            for content in contents[part.name]:
                out += (part.tag, varint(len(content)), content)
        else:
            body = _filled(part.parts, contents)
            out += (part.tag, varint(len(body)), body)
    return b"".join(out)


def _parts(encoded: bytes, marks: Mapping[str, bytes]) -> Iterator[_Part]:
    """The parts of a message: what has no mark in it stays in one piece."""
    kept = 0
    for start, at, end in _texts(encoded):
        content = encoded[at:end]
        if not any(mark in content for mark in marks.values()):
            continue
        if kept < start:
            yield encoded[kept:start]
        kept = end
        tag = varint(_varint_at(encoded, start)[0])
        name = next((name for name, mark in marks.items() if mark == content), None)
        yield _Blank(tag, name) if name is not None else _Message(tag, tuple(_parts(content, marks)))
    if kept < len(encoded):
        yield encoded[kept:]


def _texts(encoded: bytes) -> Iterator[tuple[int, int, int]]:
    """Where each field of a message starts that has a length, and where its content is."""
    at = 0
    while at < len(encoded):
        start = at
        tag, at = _varint_at(encoded, at)
        match tag & 7:
            case 0:
                _, at = _varint_at(encoded, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint_at(encoded, at)
                yield start, at, at + size
                at += size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"not a message: wire type {kind}")


def _varint_at(encoded: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    for byte in encoded[at:]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, at
        shift += 7
    raise ValueError("not a message: it ends within a number")
