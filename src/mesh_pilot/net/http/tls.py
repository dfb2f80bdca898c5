"""TLS below HTTP/1.1: a stream with what ``connection`` needs of a socket's stream."""

from __future__ import annotations

import socket
from typing import Any

import trio

from mesh_pilot.net.rpc.tls import TlsSource

HANDSHAKE = 0x16
"""The first byte of every TLS client."""


class TlsStream(trio.abc.AsyncResource):
    """A connection over TLS; has the methods of ``trio.SocketStream`` that are used here."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream], socket_: trio.socket.SocketType) -> None:
        self._stream = stream
        self.socket = socket_

    def peer_names(self) -> tuple[str, ...]:
        """The names in the verified certificate of the client: URIs, DNS names, addresses and the common name."""
        found: Any = self._stream.getpeercert()
        if not found:
            return ()
        names = [str(value) for _, value in found.get("subjectAltName", ())]
        names += [str(value) for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        return tuple(dict.fromkeys(names))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def send_eof(self) -> None:
        """Nothing: TLS has no half-closed connections in Python."""

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def over_tls(stream: trio.SocketStream, source: TlsSource) -> TlsStream | None:
    """The connection once the handshake is done; None for a client that does not speak TLS, which is told so.

    Raises trio.BrokenResourceError for a handshake that fails, and TlsError where there is no certificate.
    """
    first = await stream.socket.recv(1, socket.MSG_PEEK)
    if first and first[0] != HANDSHAKE:
        body = b"this port speaks TLS: use https://\n"
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        )
        await stream.send_all(head % len(body) + body)
        await stream.send_eof()
        return None
    context = source.context()
    context.set_alpn_protocols(["http/1.1"])
    tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    await tls.do_handshake()
    return TlsStream(tls, stream.socket)
