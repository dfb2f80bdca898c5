"""Message types to bytes and back, and the prefix each message travels with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, Self, cast

__all__ = ["PREFIX", "MessageClass", "decoder", "encoder", "frame"]

PREFIX = struct.Struct(">BI")
"""What precedes each message: whether it is compressed, and its length (gRPC over HTTP/2, Length-Prefixed-Message)."""


class MessageClass(Protocol):
    """What protobuf and betterproto2 classes have in common."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...

    def SerializeToString(self) -> bytes: ...


def decoder(message_type: type[Any]) -> Callable[[bytes], Any]:
    """How messages of this type are read; ``bytes`` are left as they are."""
    if message_type is bytes:
        return _same
    return cast(Callable[[bytes], Any], message_type.FromString)


def encoder(message_type: type[Any]) -> Callable[[Any], bytes]:
    """How messages of this type are written; ``bytes`` are encoded already."""
    return _same if message_type is bytes else _serialize


def _same(data: bytes) -> bytes:
    return data


def _serialize(message: MessageClass) -> bytes:
    return message.SerializeToString()


def frame(data: bytes) -> bytes:
    """``data`` with its prefix, not compressed."""
    return PREFIX.pack(0, len(data)) + data
