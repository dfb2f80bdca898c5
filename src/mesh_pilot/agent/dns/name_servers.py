"""Asking name servers: one after the other with overlap, over UDP and where that is too small over TCP.

An answer counts if it comes from the address that was asked, to the port that was chosen at random for this query, with
its random id and its question.
"""

from __future__ import annotations

import math
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs
import structlog
import trio
from dns.rcode import Rcode

from mesh_pilot.agent.dns.messages import MAX_SIZE, UPSTREAM_UDP_SIZE, DnsAnswer, MessageError, read_answer
from mesh_pilot.net.rpc.net import TcpAddress

log = structlog.get_logger(scope="agent.dns")

OVERLAP_SECONDS = 0.8
"""After this long without an answer the next name server is asked, too."""
PATIENCE_SECONDS = 4.5
"""The time for all of them: less than the 5 s after which the C library asks again."""
ROUNDS = 2
"""Each name server is asked this often, unless it answers that it cannot."""
MAX_TRIES = 4
MAX_SOCKETS = 512
"""Open at a time, so that other parts of the agent have file descriptors left."""
AVOID_SECONDS = 10.0, 60.0
"""A name server that did not answer comes last for the first of these, doubled each time up to the second."""
_USABLE = (Rcode.NOERROR, Rcode.NXDOMAIN)


class NoAnswer(Exception):
    """No name server answered in time."""


@attrs.define(eq=False)
class NameServer:
    """A name server and how it has done so far."""

    address: TcpAddress
    failures: int = 0
    """Since its last answer."""
    avoid_until: float = -math.inf
    loops: bool = False
    """True if what is sent there comes back to us."""


@attrs.define
class Exchanges:
    """Counts of what was asked of name servers."""

    sent: int = 0
    answered: int = 0
    unanswered: int = 0
    strange: int = 0
    """Packets that were no answer to what was asked: late, broken or forged."""
    over_tcp: int = 0
    looped: int = 0


class NameServers:
    """The name servers in force. ``ask`` may be called by many tasks."""

    def __init__(self) -> None:
        self._servers: list[NameServer] = []
        self._sockets: dict[tuple[int, str, int], NameServer] = {}
        """The sockets that wait for an answer, by kind and local address."""
        self._open = trio.CapacityLimiter(MAX_SOCKETS)
        self.counts = Exchanges()

    def __repr__(self) -> str:
        return f"<NameServers {', '.join(self.names) or 'none'}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(server.address) for server in self._servers)

    def use(self, addresses: Iterable[TcpAddress], is_own: Callable[[TcpAddress], bool]) -> None:
        """Replace the name servers. Those that are in both keep what is known of them; our own address is left out."""
        known = {server.address: server for server in self._servers}
        wanted = list(dict.fromkeys(addresses))
        own = [address for address in wanted if is_own(address)]
        self._servers = [known.get(a) or NameServer(a) for a in wanted if a not in own]
        for address in own:
            log.warning("name server is this agent", address=str(address), action="it is not asked")
        if self._servers:
            log.info("name servers in use", addresses=", ".join(self.names))
        else:
            log.warning("no name server", action="names outside the mesh are not resolved; name one in resolv.conf")

    def notice_loop(self, kind: int, sender: tuple[str, int]) -> bool:
        """True if a query that we received, from a socket of this kind, is one that we sent to a name server."""
        server = self._sockets.get((kind, *sender))
        if server is None:
            return False
        self.counts.looped += 1
        if not server.loops:
            server.loops = True
            log.warning(
                "queries to a name server come back",
                address=str(server.address),
                action="it is asked last; exclude the agent's user from the redirection, or name another",
            )
        return True

    async def ask(self, query: bytes) -> DnsAnswer:
        """The first usable answer; else the last one by which a name server refused. Raises NoAnswer.

        If cancelled nothing is left open.
        """
        refusal: DnsAnswer | None = None
        refused: set[NameServer] = set()
        asked: dict[NameServer, None] = {}
        tries = iter(self._tries())
        running = 0
        send, outcomes = trio.open_memory_channel[tuple[NameServer, DnsAnswer | None]](MAX_TRIES)
        with trio.move_on_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                while True:
                    server = next((each for each in tries if each not in refused), None)
                    if server is not None:
                        asked[server] = None
                        nursery.start_soon(self._try, server, query, send)
                        running += 1
                    elif not running:
                        break
                    with trio.move_on_after(OVERLAP_SECONDS if server else math.inf):
                        answering, answer = await outcomes.receive()
                        running -= 1
                        if answer is None:
                            continue
                        self._answered(answering)
                        asked.pop(answering, None)
                        if answer.code in _USABLE:
                            answering.loops = False
                            nursery.cancel_scope.cancel()
                            self._failed(asked)
                            return answer
                        refused.add(answering)
                        refusal = answer
        self._failed(asked)
        if refusal is None:
            raise NoAnswer
        return refusal

    def _tries(self) -> list[NameServer]:
        """Whom to ask, in this order: as they are named, those last that failed."""
        now = trio.current_time()
        order = sorted(self._servers, key=lambda server: server.loops or now < server.avoid_until)
        return (order * ROUNDS)[:MAX_TRIES]

    def _answered(self, server: NameServer) -> None:
        self.counts.answered += 1
        if server.failures:
            log.info("name server answers again", address=str(server.address))
        server.failures, server.avoid_until = 0, -math.inf

    def _failed(self, servers: Iterable[NameServer]) -> None:
        """Name servers that gave no answer are asked last for a while."""
        now = trio.current_time()
        for server in servers:
            self.counts.unanswered += 1
            if now < server.avoid_until:
                continue
            if not server.failures:
                log.warning("name server does not answer", address=str(server.address), action="others are asked first")
            first, longest = AVOID_SECONDS
            server.avoid_until = now + min(first * 2**server.failures, longest)
            server.failures = min(server.failures + 1, 16)

    async def _try(
        self, server: NameServer, query: bytes, outcomes: trio.MemorySendChannel[tuple[NameServer, DnsAnswer | None]]
    ) -> None:
        answer = None
        try:
            async with self._open:
                if len(query) <= UPSTREAM_UDP_SIZE:
                    answer = await self._over_udp(server, query)
                if answer is None or answer.is_truncated:
                    answer = await self._over_tcp(server, query)
        except (OSError, MessageError, trio.BrokenResourceError):
            pass  # nobody there, or not a name server: as good as no answer
        await outcomes.send((server, answer))

    async def _over_udp(self, server: NameServer, query: bytes) -> DnsAnswer:
        family, address = _socket_address(server.address)
        with trio.socket.socket(family, socket.SOCK_DGRAM) as sock:
            await sock.connect(address)
            with self._waiting(sock, server):
                id_ = secrets.randbits(16)
                self.counts.sent += 1
                await sock.send(id_.to_bytes(2, "big") + query[2:])
                while True:
                    try:
                        return read_answer(await sock.recv(MAX_SIZE), query, id_)
                    except MessageError:
                        self.counts.strange += 1

    async def _over_tcp(self, server: NameServer, query: bytes) -> DnsAnswer:
        self.counts.over_tcp += 1
        family, address = _socket_address(server.address)
        with trio.socket.socket(family, socket.SOCK_STREAM) as sock:
            await sock.connect(address)
            with self._waiting(sock, server):
                id_ = secrets.randbits(16)
                stream = trio.SocketStream(sock)
                await stream.send_all(len(query).to_bytes(2, "big") + id_.to_bytes(2, "big") + query[2:])
                size = int.from_bytes(await _exactly(stream, 2), "big")
                return read_answer(await _exactly(stream, size), query, id_)

    @contextmanager
    def _waiting(self, sock: trio.socket.SocketType, server: NameServer) -> Iterator[None]:
        local: tuple[int, str, int] = (sock.type, *sock.getsockname()[:2])
        self._sockets[local] = server
        try:
            yield
        finally:
            del self._sockets[local]


def _socket_address(address: TcpAddress) -> tuple[int, tuple[object, ...]]:
    if ":" not in address.host:
        return socket.AF_INET, (address.host, address.port)
    host, _, scope = address.host.partition("%")
    number = 0
    if scope:
        number = int(scope) if scope.isdigit() else socket.if_nametoindex(scope)
    return socket.AF_INET6, (host, address.port, 0, number)


async def _exactly(stream: trio.SocketStream, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        more = await stream.receive_some(size - len(received))
        if not more:
            raise MessageError("the connection ended early")
        received += more
    return bytes(received)
