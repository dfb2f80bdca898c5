"""Keepalive: detection of dead peers."""

from __future__ import annotations

import trio

from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.protocol import RpcConnection
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["keep_alive"]


async def keep_alive(connection: RpcConnection, transport: SocketTransport, limits: Limits) -> None:
    """Abort ``transport`` when the peer does not begin HTTP/2, or does not answer a PING; else run until cancelled.

    Any bytes from the peer are a sign of life, so a busy connection is never pinged.
    """
    await trio.sleep(limits.handshake_timeout_seconds)
    if not transport.bytes_received:
        transport.cut(f"nothing received in the first {limits.handshake_timeout_seconds:g} s")
        return
    while True:
        seen = transport.bytes_received
        await trio.sleep(limits.keepalive_interval_seconds)
        if transport.bytes_received != seen:
            continue
        connection.ping()
        await trio.sleep(limits.keepalive_timeout_seconds)
        if transport.bytes_received == seen:
            transport.cut(f"the peer did not answer a keepalive ping in {limits.keepalive_timeout_seconds:g} s")
            return
