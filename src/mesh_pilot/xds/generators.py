"""Streams on ADS that want something else than Envoy's resources: node metadata ``GENERATOR`` says what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from google.protobuf.message import DecodeError

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.rpc import ServerStream
from mesh_pilot.xds.decode import delta_request, sotw_request
from mesh_pilot.xds.messages import Variant

RawStream = ServerStream[bytes, bytes]


@attrs.define
class Replayed:
    """A stream whose first message was read already, and is given again."""

    call: RawStream
    first: bytes | None

    async def recv_message(self) -> bytes | None:
        first, self.first = self.first, None
        return first if first is not None else await self.call.recv_message()

    async def send_message(self, message: bytes, /) -> None:
        await self.call.send_message(message)


Generator = Callable[[Replayed, str, Variant], Awaitable[None]]
"""Serves one stream until it ends, given also its peer's address. Raises GRPCError."""


def generator_of(first: bytes, variant: Variant, bounds: Bounds = DEFAULT_BOUNDS) -> str:
    """What the first request of a stream says it wants; empty for Envoy's resources, and for what is no request.

    Raises BoundError.
    """
    try:
        request = sotw_request(first, bounds) if variant is Variant.SOTW else delta_request(first, bounds)
    except (DecodeError, UnicodeDecodeError):
        return ""
    value = request.node.metadata.get("GENERATOR") if request.node else None
    return value if isinstance(value, str) else ""
