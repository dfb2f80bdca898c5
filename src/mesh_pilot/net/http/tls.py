"""TLS below HTTP/1.1: a session as on gRPC's ports, in a stream with what ``connection`` needs of a socket's stream."""

from __future__ import annotations

import socket
import ssl

import trio

from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.net import release_socket
from mesh_pilot.net.rpc.tls_session import TlsSession, handshake

HANDSHAKE = 0x16
"""The first byte of every TLS client."""

_NO_TLS = b"""\
HTTP/1.1 400 Bad Request\r
content-type: text/plain\r
connection: close\r
content-length: 35\r
\r
this port speaks TLS: use https://
"""


class TlsStream(trio.abc.AsyncResource):
    """A connection over TLS; has the methods of ``trio.SocketStream`` that are used here."""

    def __init__(self, stream: trio.SocketStream, session: TlsSession) -> None:
        self._stream = stream
        self._session = session
        self.socket = stream.socket
        self.peer_names = session.peer_names()
        """The names in the verified certificate of the client."""
        self.peer_identities, _ = session.spiffe_ids_and_end()
        """The ``spiffe://`` names among them that are its URIs."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        received, plain = b"", None
        while not self._session.ended:
            try:
                plain, answer = self._session.decrypt(received)
            except TlsError as error:
                raise trio.BrokenResourceError(str(error)) from error
            if answer:
                await self._stream.send_all(answer)
            if plain is not None:
                return plain
            if not (received := bytes(await self._stream.receive_some(max_bytes))):
                break
        return b""

    async def send_all(self, data: bytes) -> None:
        try:
            records = self._session.encrypt(data)
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(str(error)) from error
        await self._stream.send_all(records)

    async def send_eof(self) -> None:
        """Nothing: TLS has no half-closed connections in Python."""

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def over_tls(stream: trio.SocketStream, context: ssl.SSLContext, *, seconds: float) -> TlsStream | None:
    """The connection once the handshake is done; None for a client that does not speak TLS, which is told so.

    ``stream`` is of use only after None. Raises TlsError for a handshake that fails or takes longer than ``seconds``.
    """
    first = await stream.socket.recv(1, socket.MSG_PEEK)
    if first and first[0] != HANDSHAKE:
        await stream.send_all(_NO_TLS)
        await stream.send_eof()
        return None
    context.set_alpn_protocols(["http/1.1"])
    session = TlsSession(context, server_side=True)
    sock = release_socket(stream)
    try:
        await handshake(session, sock, timeout_seconds=seconds)
    except BaseException:
        sock.close()
        raise
    return TlsStream(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), session)
