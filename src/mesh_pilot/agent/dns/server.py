"""The agent's DNS server: UDP and TCP on the loopback.

Hostile packets, floods and slow clients cost themselves only: a packet is answered at once or given to one of a bounded
number of tasks; TCP connections are bounded, and of too many that which was idle longest is closed.

What needs no name server is answered in the task that reads the socket: a task for each packet would double its cost.
Queries before the first name table wait for it, a few seconds at most, because a name server that is asked for a name
of the mesh says that there is none, and clients remember that.
"""

from __future__ import annotations

import errno
import math
import socket
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address

import attrs
import structlog
import trio
from dns.rcode import Rcode

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.dns.messages import MAX_SIZE, DnsQuery, read_query
from mesh_pilot.agent.dns.name_servers import NameServers
from mesh_pilot.agent.dns.names import MeshNames
from mesh_pilot.agent.dns.resolv_conf import ResolvConf
from mesh_pilot.agent.dns.resolver import AnswerCounts, Resolver
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import AgentError, DnsSettings
from mesh_pilot.net.rpc.errors import AddressError
from mesh_pilot.net.rpc.net import TcpAddress, UnixAddress, parse_address

log = structlog.get_logger(scope="agent.dns")

MAX_WAITING = 1024
"""Queries over UDP that wait for name servers; further ones are dropped, and clients ask again."""
MAX_CONNECTIONS = 64
MAX_PIPELINED = 16
"""Queries of one TCP connection in work at a time; it is not read further until one is answered."""
IDLE_SECONDS = 10.0
"""The time in which a whole query must arrive on a TCP connection."""
WRITE_SECONDS = 5.0
NAMES_PATIENCE_SECONDS = 3.0
"""Queries wait this long, from the start on, for the first table: no other server can answer names of the mesh."""
REREAD_SECONDS = 1.0
"""The file of name servers is looked at for changes at most this often, and only when somebody asks."""
FREE_PORT_ATTEMPTS = 10
MAX_LOGGED = 512
_RECEIVE_BUFFER = 1 << 20


@attrs.frozen
class DnsStatistics:
    """The state of the DNS server."""

    names: int
    """Spellings of hosts of the mesh."""
    name_servers: tuple[str, ...]
    cached: int
    cached_bytes: int
    waiting: int
    """Queries over UDP that wait for name servers."""
    connections: int
    dropped: int
    """Queries over UDP that were too many, and connections closed for newer ones."""
    answers: dict[str, int]
    """The fields of ``AnswerCounts``."""
    exchanges: dict[str, int]
    """The fields of ``Exchanges``."""


class DnsServer:
    """Serves the names of ``names`` (None before the first table), and forwards all others."""

    def __init__(
        self,
        settings: DnsSettings,
        port: int,
        node: EnvoyNode,
        names: Observable[dict[str, NameRow] | None],
        handover: Handover | None = None,
    ) -> None:
        """Raises AgentError. ``handover``: may have the sockets already."""
        self._hosts = _listen_hosts(settings.listen)
        self.port = port
        """With 0 it is known once ``run`` has started."""
        self._handover, self._address = handover, f"{','.join(self._hosts)} {port}"
        self._node = node
        self._rows = names
        self._fixed = tuple(_name_server(text) for text in settings.upstreams)
        self._resolv_conf = ResolvConf(settings.resolv_conf)
        self.name_servers = NameServers()
        self._resolver: Resolver | None = None
        self._has_names = trio.Event()
        self._looked_at = -math.inf
        self.reread_seconds = REREAD_SECONDS
        self._waiting = 0
        self._dropped = 0
        self._connections: OrderedDict[trio.CancelScope, None] = OrderedDict()
        """The one with the oldest query first."""

    def __repr__(self) -> str:
        return f"<DnsServer on port {self.port}, {self._resolver}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the sockets are open. Raises AgentError."""
        datagrams, listeners = self._open()
        try:
            async with trio.open_nursery() as nursery:
                self._resolver = Resolver(self.name_servers, nursery)
                self._use_name_servers()
                self._index()
                nursery.start_soon(self._rows.follow, self._index)
                nursery.start_soon(self._await_names)
                for sock in datagrams:
                    nursery.start_soon(self._serve_datagrams, sock, self._resolver, nursery)
                nursery.start_soon(trio.serve_listeners, self._serve_connection, listeners)
                log.info("dns serves", addresses=", ".join(str(TcpAddress(h, self.port)) for h in self._hosts))
                task_status.started()
        finally:
            for sock in datagrams:
                sock.close()
            for listener in listeners:
                listener.socket.close()

    def statistics(self) -> DnsStatistics:
        resolver = self._resolver
        return DnsStatistics(
            names=len(resolver.names) if resolver else 0,
            name_servers=self.name_servers.names,
            cached=len(resolver.cache) if resolver else 0,
            cached_bytes=resolver.cache.size if resolver else 0,
            waiting=self._waiting,
            connections=len(self._connections),
            dropped=self._dropped,
            answers=attrs.asdict(resolver.counts if resolver else AnswerCounts()),
            exchanges=attrs.asdict(self.name_servers.counts),
        )

    # -- what answers depend on

    async def _await_names(self) -> None:
        with trio.move_on_after(NAMES_PATIENCE_SECONDS):
            await self._rows.wait_for(lambda rows: rows is not None)
        self._index()
        self._has_names.set()

    def _index(self, _: object = None) -> None:
        if self._resolver is not None:
            node, search = self._node, self._resolv_conf.config.search
            self._resolver.names = MeshNames(self._rows.value or {}, node.namespace, node.domain, search)

    def _use_name_servers(self) -> None:
        found = self._fixed or tuple(TcpAddress(host, 53) for host in self._resolv_conf.config.name_servers)
        self.name_servers.use(found, self.is_own)

    def is_own(self, address: TcpAddress) -> bool:
        """True for an address on which we listen."""
        if address.port != self.port:
            return False
        every = any(ip_address(host).is_unspecified for host in self._hosts)
        return address.host in self._hosts or (every and ip_address(address.host.partition("%")[0]).is_loopback)

    def _reread(self) -> None:
        now = trio.current_time()
        if now >= self._looked_at + self.reread_seconds:
            self._looked_at = now
            if self._resolv_conf.reread():
                self._use_name_servers()
                self._index()

    # -- UDP

    async def _serve_datagrams(self, sock: trio.socket.SocketType, resolver: Resolver, nursery: trio.Nursery) -> None:
        while True:
            try:
                packet, sender = await sock.recvfrom(MAX_SIZE)
            except OSError:  # what an earlier answer met: nobody there any more
                await trio.lowlevel.checkpoint()
                continue
            answer: bytes | None = None
            try:
                query = self._query(packet, socket.SOCK_DGRAM, sender[:2])
                if query is None:
                    continue
                if self._has_names.is_set():
                    answer = resolver.at_once(query, query.udp_size)
            except Exception:  # no packet ends the server, whatever it has found
                log.exception("dns query failed", query=packet[:MAX_LOGGED].hex())
                continue
            if answer is not None:
                await _send(sock, answer, sender)
            elif self._waiting < MAX_WAITING:
                self._waiting += 1
                nursery.start_soon(self._forward, sock, resolver, query, sender)
            else:
                self._dropped += 1

    async def _forward(
        self, sock: trio.socket.SocketType, resolver: Resolver, query: DnsQuery, sender: tuple[str, int]
    ) -> None:
        try:
            await _send(sock, await self._answered(resolver, query, query.udp_size), sender)
        except Exception:  # no packet ends the server, whatever it has found
            log.exception("dns query failed", query=query.packet[:MAX_LOGGED].hex())
        finally:
            self._waiting -= 1

    async def _answered(self, resolver: Resolver, query: DnsQuery, limit: int = MAX_SIZE) -> bytes:
        await self._has_names.wait()
        at_once = resolver.at_once(query, limit)
        return at_once if at_once is not None else await resolver.resolve(query, limit)

    def _query(self, packet: bytes, kind: int, sender: tuple[str, int]) -> DnsQuery | None:
        self._reread()
        query = read_query(packet)
        if query is not None and self.name_servers.notice_loop(kind, sender):
            return attrs.evolve(query, refusal=Rcode.REFUSED)
        return query

    # -- TCP

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        scope = trio.CancelScope()
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest, _ = self._connections.popitem(last=False)
            oldest.cancel()
            self._dropped += 1
        self._connections[scope] = None
        try:
            with scope:
                async with stream, trio.open_nursery() as nursery:
                    await self._pipeline(stream, scope, nursery)
        except* (trio.BrokenResourceError, OSError):
            pass  # the client has gone
        except* Exception:  # no client ends the server, whatever it has found
            log.exception("dns connection failed")
        finally:
            self._connections.pop(scope, None)

    async def _pipeline(self, stream: trio.SocketStream, scope: trio.CancelScope, nursery: trio.Nursery) -> None:
        resolver = self._resolver
        assert resolver is not None, "connections come after the start"
        sender: tuple[str, int] = stream.socket.getpeername()[:2]
        slots, writing = trio.Semaphore(MAX_PIPELINED), trio.Lock()

        async def answer(query: DnsQuery) -> None:
            reply = await self._answered(resolver, query)
            with trio.move_on_after(WRITE_SECONDS) as patience:
                async with writing:
                    await stream.send_all(len(reply).to_bytes(2, "big") + reply)
            if patience.cancelled_caught:
                scope.cancel()
            slots.release()

        while True:
            await slots.acquire()
            packet = None
            with trio.move_on_after(IDLE_SECONDS):
                packet = await _receive_query(stream)
            query = self._query(packet, socket.SOCK_STREAM, sender) if packet else None
            if query is None:
                return
            if scope in self._connections:
                self._connections.move_to_end(scope)
            nursery.start_soon(answer, query)

    # -- sockets

    def _open(self) -> tuple[list[trio.socket.SocketType], list[trio.SocketListener]]:
        """Open the sockets, unless the version before has left them to us."""
        opened = self._handover.sockets("dns", self._address, self._bind) if self._handover else self._bind()
        self.port = opened[0].getsockname()[1]
        datagrams = [trio.socket.from_stdlib_socket(sock) for sock in opened if sock.type == socket.SOCK_DGRAM]
        streams = [sock for sock in opened if sock.type == socket.SOCK_STREAM]
        return datagrams, [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in streams]

    def _bind(self) -> list[socket.socket]:
        """A UDP and a TCP socket at each address; with port 0 all at one free port. Raises AgentError."""
        for attempt in range(FREE_PORT_ATTEMPTS):
            opened: list[socket.socket] = []
            try:
                for host in self._hosts:
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                        sock = _bound(host, opened[0].getsockname()[1] if opened else self.port, kind)
                        if sock is not None:
                            opened.append(sock)
                break
            except OSError as error:
                for sock in opened:
                    sock.close()
                if self.port == 0 and error.errno == errno.EADDRINUSE and attempt < FREE_PORT_ATTEMPTS - 1:
                    continue
                where = TcpAddress(self._hosts[0], self.port)
                raise AgentError(
                    f"dns: cannot listen on {where}: {error.strerror};"
                    " stop what uses it, or choose another with --dns-port"
                ) from error
        if not opened:
            raise AgentError(f"dns: this machine has no address {', '.join(self._hosts)} to listen on")
        return opened


def _bound(host: str, port: int, kind: socket.SocketKind) -> socket.socket | None:
    """A socket; None if this machine has no IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.socket(family, kind)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT and family == socket.AF_INET6:
            return None
        raise
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(MAX_CONNECTIONS)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL and host == "::1":
            return None
        raise
    return sock


async def _send(sock: trio.socket.SocketType, answer: bytes, receiver: tuple[str, int]) -> None:
    # An answer that cannot be sent is lost, as any datagram may be.
    with suppress(OSError):
        await sock.sendto(answer, receiver)


async def _receive_query(stream: trio.SocketStream) -> bytes | None:
    """The next message of a connection; None at its end."""
    buffer = bytearray()
    size = 2
    while len(buffer) < size:
        more = await stream.receive_some(size - len(buffer))
        if not more:
            return None
        buffer += more
        if len(buffer) == 2:
            size += int.from_bytes(buffer, "big")
    return bytes(buffer[2:])


def _listen_hosts(listen: str) -> tuple[str, ...]:
    if listen in ("localhost", "127.0.0.1"):
        return ("127.0.0.1", "::1")
    try:
        return (str(ip_address(listen)),)
    except ValueError:
        raise AgentError(f"dns: {listen!r} is not an IP address to listen on; write 127.0.0.1") from None


def _name_server(text: str) -> TcpAddress:
    try:
        if text.count(":") != 1 and not text.startswith("["):
            return TcpAddress(str(ip_address(text)), 53)
        address = parse_address(text)
        if isinstance(address, UnixAddress):
            raise ValueError(text)
        return TcpAddress(str(ip_address(address.host)), address.port)
    except (AddressError, ValueError):
        raise AgentError(f"dns: {text!r} is not a name server; write its IP address with port, 10.0.0.2:53") from None
