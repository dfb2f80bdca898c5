"""A gRPC server on Trio."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
import trio
from attrs import evolve, frozen
from grpclib.const import Handler

from mesh_pilot.rpc.admission import Admission, PacedListener
from mesh_pilot.rpc.calls import CallCounts, CallStatistics, call_kind
from mesh_pilot.rpc.connection import ServerConnection
from mesh_pilot.rpc.errors import TlsError
from mesh_pilot.rpc.limits import SERVER_LIMITS, Limits
from mesh_pilot.rpc.net import address_of, release_socket, uid_of
from mesh_pilot.rpc.rate_limits import LogLimiter
from mesh_pilot.rpc.server_stream import Peer
from mesh_pilot.rpc.statistics import ConnectionStatistics, ServerStatistics
from mesh_pilot.rpc.tls import TlsSession, TlsSource, handshake

__all__ = ["Servable", "Server", "serve"]

log = structlog.get_logger(scope="rpc")

_CONNECTIONS_A_TURN = 50
"""Connections whose certificates are looked up before others have their turn."""

_CUT_GRACE_SECONDS = 1.0
"""Time for streams cut by a drain to send their status."""


_LOG_SECONDS = 10.0
"""Seconds between log lines about connections that end for the same reason."""

NOT_GRPC = "this port speaks gRPC, which is HTTP/2"
"""The default answer to an HTTP/1.1 client."""


class Servable(Protocol):
    """Method paths (``/package.Service/Method``) and their handlers; grpclib's IServable."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


async def serve(
    services: Sequence[Servable],
    listeners: Sequence[trio.SocketListener],
    *,
    tls: TlsSource | None = None,
    limits: Limits = SERVER_LIMITS,
    not_grpc: str = NOT_GRPC,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained; reports the running :class:`Server`. ``not_grpc`` is the answer to an HTTP/1.1 request.

    If cancelled, every stream is reset, every handler has ended, and listeners and connections are closed.
    """
    server = Server(services, listeners, tls, limits, not_grpc)
    await server._run(task_status)


class Server:
    """A running server; made by :func:`serve`.

    Mutable state: the connections, the totals of those that are gone, and how far the end has come.
    """

    def __init__(
        self,
        services: Sequence[Servable],
        listeners: Sequence[trio.SocketListener],
        tls: TlsSource | None,
        limits: Limits,
        not_grpc: str = NOT_GRPC,
    ) -> None:
        self._methods: dict[str, Handler] = {}
        for service in services:
            self._methods.update(service.__mapping__())
        self._calls = {path: CallCounts(call_kind(handler.cardinality)) for path, handler in self._methods.items()}
        self._listeners = listeners
        self._tls = tls
        self._limits = limits
        self._not_grpc = not_grpc
        self._admission = Admission(limits)
        self._logged = LogLimiter(seconds=_LOG_SECONDS)
        self.addresses: list[str] = [address_of(listener.socket) for listener in listeners]
        """Where the server listens, with the actual ports."""
        self._connections: set[ServerConnection] = set()
        self._handshaking: set[trio.CancelScope] = set()
        self._handshakes = trio.CapacityLimiter(limits.max_handshakes)
        self._of_hosts: Counter[str] = Counter()
        self._retired: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._failed_handshakes: Counter[str] = Counter()
        self._oversized_headers = 0
        self._past = ServerStatistics()
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._stopped = trio.Event()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped.is_set() else "draining" if self.draining else "serving"
        return f"<Server at {', '.join(self.addresses)}, {state}, {len(self._connections)} connections>"

    @property
    def draining(self) -> bool:
        """Whether no more connections and streams are accepted."""
        return self._accepting.cancel_called

    def connections(self) -> list[ConnectionStatistics]:
        """How each open connection is doing."""
        return [connection.statistics() for connection in self._connections]

    def calls(self) -> dict[str, CallStatistics]:
        """The calls of each method, by its path."""
        return {path: counts.statistics() for path, counts in self._calls.items()}

    def statistics(self) -> ServerStatistics:
        """How the server is doing: what is open, and totals since it started."""
        total = self._past
        for each in self.connections():
            total = _add(total, each)
        return evolve(
            total,
            connections_open=len(self._connections) + len(self._handshaking),
            connections_retired=dict(self._retired),
            connections_refused=dict(self._refused),
            failed_handshakes=dict(self._failed_handshakes),
            oversized_headers=self._oversized_headers,
            draining=self.draining,
        )

    async def drain(self, timeout_seconds: float) -> None:
        """Stop: refuse connections and streams (GOAWAY), wait for the streams that run, cut them after the timeout.

        Cut streams end with UNAVAILABLE. Returns when everything is closed. If cancelled, the drain goes on without the
        cut: call it again, or cancel the server.
        """
        self._accepting.cancel()
        for scope in self._handshaking:
            scope.cancel()
        for connection in list(self._connections):
            connection.drain()
        with trio.move_on_after(timeout_seconds):
            await self._stopped.wait()
            return
        for connection in list(self._connections):
            connection.cut()
        with trio.move_on_after(_CUT_GRACE_SECONDS):
            await self._stopped.wait()
            return
        self._serving.cancel()
        await self._stopped.wait()

    async def end_revoked(self, is_revoked: Callable[[Peer], bool]) -> None:
        """End the connections whose client is revoked. If cancelled, some may stay."""
        for number, connection in enumerate(list(self._connections)):
            if not number % _CONNECTIONS_A_TURN:
                await trio.lowlevel.checkpoint()
            peer = connection.peer
            if connection.retired != "revoked" and is_revoked(peer):
                self._log_some("a connection was ended", peer, "its client is revoked", kind="revoked")
                connection.revoke()

    async def _run(self, task_status: trio.TaskStatus[Server]) -> None:
        try:
            with self._serving:
                async with trio.open_nursery() as connections:
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            await accepting.start(self._accept, connections)
                            task_status.started(self)
        finally:
            self._stopped.set()

    async def _accept(self, connections: trio.Nursery, task_status: trio.TaskStatus[object]) -> None:
        listeners = [PacedListener(listener, self._admission) for listener in self._listeners]
        await trio.serve_listeners(self._handle, listeners, handler_nursery=connections, task_status=task_status)

    async def _handle(self, stream: trio.SocketStream) -> None:
        """One accepted connection, from the handshake to its end; whatever happens to it stays with it."""
        sock = release_socket(stream)
        peer = Peer(address=address_of(sock, peer=True), uid=uid_of(sock))
        host = _host(sock, peer)
        limit = self._limit_reached(host)
        if limit is not None:
            self._refused[limit.name] += 1
            self._log_some("a connection was refused", peer, str(limit), kind=limit.name)
            sock.close()
            return
        self._of_hosts[host] += 1
        self._past = evolve(self._past, connections_total=self._past.connections_total + 1)
        try:
            tls = None
            with trio.CancelScope() as scope:
                self._handshaking.add(scope)
                if self.draining:
                    scope.cancel()
                try:
                    tls = await self._handshake(sock)
                finally:
                    self._handshaking.discard(scope)
            if scope.cancelled_caught:
                return  # by a drain
            if tls is not None:
                peer = evolve(
                    peer,
                    tls=True,
                    certificate=tls.peer_certificate(),
                    certificate_end=tls.peer_certificate_end(),
                    spiffe_ids=tls.spiffe_ids(),
                )
            await self._serve(sock, tls, peer)
        except TlsError as error:
            self._failed_handshakes[error.reason] += 1
            self._log_some("a connection was refused", peer, str(error), kind=str(error))
        except Exception:
            log.exception("a gRPC connection failed", peer=peer.address)
        finally:
            sock.close()
            self._of_hosts[host] -= 1
            if not self._of_hosts[host]:
                del self._of_hosts[host]

    def _limit_reached(self, host: str) -> _LimitReached | None:
        """The limit that one more connection from ``host`` would exceed."""
        limits = self._limits
        if len(self._connections) + len(self._handshaking) >= limits.max_connections:
            return _LimitReached("total", f"{limits.max_connections:g} connections are open", "--max-connections")
        if host and self._of_hosts[host] >= limits.max_connections_per_peer:
            most = limits.max_connections_per_peer
            return _LimitReached("peer", f"{host} has {most:g} connections", "--max-connections-per-peer")
        return None

    def _log_some(self, event: str, peer: Peer, reason: str, *, kind: str) -> None:
        """Log the first event of a kind, then one every ten seconds: a thousand connections may have it at once."""
        left_out = self._logged.admit(kind, trio.current_time())
        if left_out is not None:
            log.info(event, peer=peer.address, reason=reason, **({"more_since_last": left_out} if left_out else {}))

    def _note_oversized(self, peer: Peer, reason: str) -> None:
        self._oversized_headers += 1
        self._log_some("a call was refused", peer, reason, kind="oversized headers")

    async def _handshake(self, sock: socket.socket) -> TlsSession | None:
        if self._tls is None:
            return None
        seconds = self._limits.handshake_timeout_seconds
        with trio.move_on_after(seconds) as patience:
            await self._handshakes.acquire()
        if patience.cancelled_caught:  # who connected so long ago has given up
            most = f"{self._limits.max_handshakes:g} are under way (--max-handshakes)"
            raise TlsError(f"no turn for the TLS handshake within {seconds:g} s: {most}", reason="no_turn")
        try:
            session = TlsSession(self._tls.context(), server_side=True)
            await handshake(session, sock, timeout_seconds=seconds, turn=self._admission.turn)
        finally:
            self._handshakes.release()
        return session

    async def _serve(self, sock: socket.socket, tls: TlsSession | None, peer: Peer) -> None:
        connection = None
        try:
            async with trio.open_nursery() as nursery:
                connection = ServerConnection(
                    sock,
                    nursery,
                    tls,
                    peer,
                    self._methods,
                    self._calls,
                    self._limits,
                    self._not_grpc,
                    self._admission,
                    self._note_oversized,
                )
                self._connections.add(connection)
                if self.draining:
                    connection.drain()
                await connection.run()
        finally:
            if connection is not None:
                self._connections.discard(connection)
                connection.abort()
                if connection.retired:
                    self._retired[connection.retired] += 1
                self._past = _add(self._past, connection.statistics())
                if connection.fault:
                    self._past = evolve(self._past, connections_cut=self._past.connections_cut + 1)
                    self._log_some("a connection was cut off", peer, connection.fault, kind="cut off")


@frozen
class _LimitReached:
    """A limit on connections."""

    name: str
    found: str
    flag: str

    def __str__(self) -> str:
        return f"{self.found}, the most that there may be ({self.flag})"


def _host(sock: socket.socket, peer: Peer) -> str:
    """The IP address of a peer; empty for one of a Unix socket."""
    return "" if sock.family == socket.AF_UNIX else peer.address.rpartition(":")[0]


def _add(total: ServerStatistics, one: ConnectionStatistics) -> ServerStatistics:
    return evolve(
        total,
        streams_open=total.streams_open + one.streams_open,
        streams_total=total.streams_total + one.streams_total,
        messages_received=total.messages_received + one.messages_received,
        messages_sent=total.messages_sent + one.messages_sent,
        bytes_received=total.bytes_received + one.bytes_received,
        bytes_sent=total.bytes_sent + one.bytes_sent,
    )
