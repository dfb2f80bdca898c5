"""Errors of connections and calls that are not gRPC statuses."""

from __future__ import annotations

from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes

__all__ = ["AddressError", "ConnectionLost", "RpcError", "StreamReset", "TlsError"]


class RpcError(Exception):
    """Base of this room's own errors; its text is one line for an operator."""


class AddressError(RpcError):
    """An address that cannot be parsed, listened on or connected to. The text names the address."""


class TlsError(RpcError):
    """Certificate files that cannot be loaded, or a failed handshake. The text names the file or the peer.

    ``reason`` is a stable code for metrics.
    """

    def __init__(self, message: str, *, reason: str = "handshake") -> None:
        super().__init__(message)
        self.reason = reason


class ConnectionLost(RpcError, StreamTerminatedError):
    """The connection under a call is gone. The text says why."""


class StreamReset(StreamTerminatedError):
    """The other side reset the stream, or broke its protocol."""

    def __init__(self, code: int) -> None:
        name = ErrorCodes(code).name if code in _KNOWN_CODES else f"code {code}"
        super().__init__(f"the stream was reset by the peer: {name}")
        self.code = code


_KNOWN_CODES = frozenset(ErrorCodes)
