"""Messages of MCP (v1alpha1) as values, free of protobuf and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import Protocol

import attrs

from mesh_pilot.model.config import EPOCH


@attrs.frozen
class McpResource:
    """One object: an encoded body with its metadata."""

    name: str
    """``namespace/name``; a bare name for cluster-scoped objects."""
    version: str = ""
    """Opaque; changes with the content."""
    type_url: str = ""
    body: bytes = attrs.field(default=b"", repr=False)
    """The encoded message of that type."""
    created: datetime = EPOCH
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def equals_except_version(self, other: McpResource) -> bool:
        return attrs.evolve(self, version=other.version) == other


class ErrorCode(IntEnum):
    """The gRPC status codes of a NACK."""

    INVALID_ARGUMENT = 3
    UNIMPLEMENTED = 12


@attrs.frozen
class ErrorDetail:
    """The reason of a NACK: why a response was refused, as a whole or in part."""

    code: ErrorCode
    message: str


@attrs.frozen
class McpRequest:
    """From client to server: the first request for a collection subscribes, each later one is an ACK or a NACK."""

    collection: str
    nonce: str = ""
    """Nonce of the acknowledged response; empty on the first request."""
    versions: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    """On the first request: the resources that the client has already, name to version."""
    error: ErrorDetail | None = None
    """Set: a NACK."""
    incremental: bool = False
    """The next response may be incremental."""


@attrs.frozen
class McpResponse:
    """From server to client: a whole collection, or with ``incremental`` its changes."""

    collection: str
    resources: tuple[McpResource, ...] = ()
    removed: tuple[str, ...] = ()
    """Names; only if incremental."""
    nonce: str = ""
    version: str = ""
    """Version of the server's whole state; informational."""
    incremental: bool = False


class MessageStream(Protocol):
    """A bidirectional gRPC stream of encoded messages, seen from either end."""

    async def recv_message(self) -> bytes | None:
        """The next message; None at the end of the stream."""

    async def send_message(self, message: bytes, /) -> None: ...
