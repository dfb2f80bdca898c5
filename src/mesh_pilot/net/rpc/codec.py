"""Message types to bytes and back, and the prefix each message travels with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, Self, cast

__all__ = ["PREFIX", "MessageClass", "decoder", "encoder", "frame"]

PREFIX = struct.Struct(">BI")
"""The prefix of each message: compressed flag, length (gRPC over HTTP/2, Length-Prefixed-Message)."""


class MessageClass(Protocol):
    """The methods that protobuf and betterproto2 classes share."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...

    def SerializeToString(self) -> bytes: ...


def decoder(message_type: type[Any]) -> Callable[[bytes], Any]:
    """The function that decodes messages of this type; for ``bytes`` the identity."""
    if message_type is bytes:
        return _same
    return cast(Callable[[bytes], Any], message_type.FromString)


def encoder(message_type: type[Any]) -> Callable[[Any], bytes]:
    """The function that encodes messages of this type; for ``bytes`` the identity."""
    return _same if message_type is bytes else _serialize


def _same(data: bytes) -> bytes:
    return data


def _serialize(message: MessageClass) -> bytes:
    return message.SerializeToString()


def frame(data: bytes) -> bytes:
    """``data`` with its prefix, not compressed."""
    return PREFIX.pack(0, len(data)) + data
