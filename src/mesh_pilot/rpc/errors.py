"""What can go wrong around a call, besides the gRPC statuses themselves."""

from __future__ import annotations

__all__ = ["AddressError", "ConnectionLost", "RpcError", "TlsError"]


class RpcError(Exception):
    """Base of this room's own errors; its text is one line for an operator."""


class AddressError(RpcError):
    """An address that cannot be parsed, listened on or connected to. The text names the address."""


class TlsError(RpcError):
    """Certificate files that cannot be loaded, or a failed handshake. The text names the file or the peer."""


class ConnectionLost(RpcError):
    """The connection under a call is gone, or was never made. The text says why."""
