"""Putting encoded pieces together: a protobuf message is the concatenation of its fields.

A repeated or embedded message field is its tag, the length of the embedded message, and its bytes; so a route table
is made from virtual hosts that were encoded before, without building it as a message (Protocol Buffers, "Encoding").
"""

from __future__ import annotations

from collections.abc import Iterable

LENGTH_DELIMITED = 2


def embedded(number: int, data: bytes) -> bytes:
    """A field (by number) that holds an encoded message, text or bytes."""
    return b"".join((_varint(number << 3 | LENGTH_DELIMITED), _varint(len(data)), data))


def repeated(number: int, items: Iterable[bytes]) -> bytes:
    """A repeated field of encoded messages, in order."""
    tag = _varint(number << 3 | LENGTH_DELIMITED)
    return b"".join(part for data in items for part in (tag, _varint(len(data)), data))


def texts(number: int, items: Iterable[str]) -> bytes:
    """A repeated field of texts."""
    return repeated(number, (item.encode() for item in items))


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
