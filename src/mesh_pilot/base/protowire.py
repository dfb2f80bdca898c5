"""Protocol Buffers' wire format: writing and reading the fields of encoded messages without decoding them.

A message is the concatenation of its fields, each a tag (field number and wire type) and a value. Appending a field to
an encoded message adds an element to a repeated field. Source: Protocol Buffers, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
"""Wire types: a varint, eight bytes, a length and as many bytes, four bytes."""

_SMALL = tuple(bytes((value,)) for value in range(128))
_UINT64 = 0xFFFF_FFFF_FFFF_FFFF


class WireError(ValueError):
    """Bytes that are not encoded message. The message is a predicate, for a sentence that begins with a path."""


def varint(value: int) -> bytes:
    """An integer as a varint; a negative one takes all 64 bits, as ``int32`` and ``int64`` do."""
    if value <= 0x7F:
        if value >= 0:
            return _SMALL[value]
        value &= _UINT64
    if value <= 0x3FFF:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def tag(number: int, wire_type: int = LEN) -> bytes:
    """The tag of a field."""
    return varint(number << 3 | wire_type)


def field(number: int, body: bytes) -> bytes:
    """A string, bytes or embedded message as a field."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def field_header(number: int, size: int) -> bytes:
    """The tag and length of a field whose value has ``size`` bytes."""
    return varint(number << 3 | 2) + varint(size)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The unsigned number at an offset, and the offset after it. Raises WireError."""
    try:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return byte, at
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
    except IndexError:
        raise WireError("is cut short") from None
    raise WireError("holds a number of more than 64 bits")


def value_span(data: bytes | memoryview, at: int, wire_type: int) -> tuple[int, int]:
    """The offsets at which the content of the value at ``at`` starts and ends. Raises WireError."""
    if wire_type == VARINT:
        return at, read_varint(data, at)[1]
    if wire_type == LEN:
        size, at = read_varint(data, at)
    elif wire_type == FIXED64:
        size = 8
    elif wire_type == FIXED32:
        size = 4
    else:
        raise WireError(f"has a field of wire type {wire_type}")
    end = at + size
    if end > len(data):
        raise WireError("is cut short")
    return at, end


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, end) of each field's content, in order. Raises WireError at a bad field."""
    at = 0
    size = len(data)
    while at < size:
        key, at = read_varint(data, at)
        start, at = value_span(data, at, key & 7)
        yield key >> 3, key & 7, start, at
