"""Peers of UDP: servers that answer each datagram with their name, and clients that ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import trio

from tests.support.echo import Backend

_PATIENCE = 0.5
"""Seconds until a client asks again: a datagram may be lost, and nothing says so."""


@asynccontextmanager
async def udp_backend(name: str, *, host: str = "127.0.0.1") -> AsyncIterator[DatagramBackend]:
    """A server that answers ``NAME PEER_PORT TEXT``."""
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
        await sock.bind((host, 0))
        backend = DatagramBackend(name, host, sock.getsockname()[1])

        async def serve() -> None:
            while True:
                data, peer = await sock.recvfrom(65536)
                backend.peers.append(peer[1])
                await sock.sendto(f"{name} {peer[1]} ".encode() + data, peer)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield backend
            nursery.cancel_scope.cancel()


@attrs.define
class DatagramBackend(Backend):
    """A UDP server."""

    peers: list[int] = attrs.field(factory=list)
    """The port of each datagram's sender: an Envoy has one for each session."""


@attrs.frozen
class Reply:
    name: str
    """The server's."""
    session: int
    """The port that the server was asked from."""
    text: str


@contextmanager
def udp_clients(port: int, count: int, *, host: str = "127.0.0.1") -> Iterator[list[DatagramClient]]:
    """Clients of a server, each with its own port."""
    clients = [DatagramClient(port, host) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


class DatagramClient:
    """A client with its own port."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._to = (host, port)
        family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
        self._sock = trio.socket.socket(family, trio.socket.SOCK_DGRAM)
        self._asked = 0

    async def ask(self) -> Reply:
        """The reply to a datagram, which is sent again until there is one."""
        self._asked += 1
        while True:
            reply = await self.try_once(f"#{self._asked}")
            if reply is not None and reply.text == f"#{self._asked}":
                return reply

    async def try_once(self, text: str = "once") -> Reply | None:
        """The reply to one datagram; None: there is none in time."""
        await self._sock.sendto(text.encode(), self._to)
        with trio.move_on_after(_PATIENCE):
            data = await self._sock.recv(65536)
            name, session, text = data.decode().split(" ", 2)
            return Reply(name, int(session), text)
        return None

    def close(self) -> None:
        self._sock.close()
