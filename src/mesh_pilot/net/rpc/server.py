"""A gRPC server on Trio.

Why a full server closes connections instead of refusing them: whoever fills it would keep all others out for as long as
the connections stay open. So each accepted connection has a place among ``shares`` before anything is read from it, and
a place is a cancel scope: cancelling it ends the connection in whatever state it is, TLS handshake or calls.

Handshakes are the expensive part (a signature each, a millisecond) and the part that a client can draw out, so only so
many run at once, in line, and a silent one loses its place. A client that waits too long for its turn has given up.

Whatever happens to a connection stays with it: each has a nursery for its tasks, and no exception leaves ``_handle``.
Totals of connections that are gone are one value, to which those of the open ones are added when somebody asks, so that
a message costs no count of the server's.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import structlog
import trio
from attrs import evolve
from grpclib.const import Handler

from mesh_pilot.net.rpc.admission import Admission, PacedListener
from mesh_pilot.net.rpc.calls import CallCounts, CallStatistics, call_kind
from mesh_pilot.net.rpc.connection import ServerConnection, SharedParts
from mesh_pilot.net.rpc.descriptors import GRPC_SHARE, within_descriptors
from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.limits import SERVER_LIMITS, Limits
from mesh_pilot.net.rpc.net import address_of, release_socket, uid_of
from mesh_pilot.net.rpc.polling import SocketPoller, open_poller
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.net.rpc.server_stream import Peer
from mesh_pilot.net.rpc.shares import Shares
from mesh_pilot.net.rpc.statistics import ConnectionStatistics, ServerStatistics
from mesh_pilot.net.rpc.tls import TlsSource
from mesh_pilot.net.rpc.tls_session import TlsSession, handshake

__all__ = ["Servable", "Server", "connection_shares", "serve"]

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
    shares: Shares[trio.CancelScope] | None = None,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until drained; reports the running :class:`Server`. ``not_grpc`` is the answer to an HTTP/1.1 request.

    ``shares`` are those of several servers whose connections are limited together; by default this one's alone.

    If cancelled, every stream is reset, every handler has finished, and listeners and connections are closed.
    """
    async with trio.open_nursery() as polling:
        server = Server(services, listeners, tls, limits, not_grpc, shares, open_poller(polling))
        await server._run(task_status)
        polling.cancel_scope.cancel()


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
        not_grpc: str,
        shares: Shares[trio.CancelScope] | None,
        poller: SocketPoller,
    ) -> None:
        methods = {path: handler for service in services for path, handler in service.__mapping__().items()}
        self._calls = {path: CallCounts(call_kind(handler.cardinality)) for path, handler in methods.items()}
        self._listeners = listeners
        self._tls = tls
        self._limits = limits
        self._admission = Admission(limits)
        self._shared = SharedParts(
            methods, self._calls, limits, not_grpc, self._admission, poller, self._note_oversized
        )
        self._logged = LogLimiter(seconds=_LOG_SECONDS)
        self.addresses: list[str] = [address_of(listener.socket) for listener in listeners]
        """Where the server listens, with the actual ports."""
        self._connections: set[ServerConnection] = set()
        self._handshaking: set[trio.CancelScope] = set()
        self._shares = shares if shares is not None else connection_shares(limits)
        self._handshakes = trio.CapacityLimiter(limits.max_handshakes)
        self._handshake_line = trio.Lock()
        self._silent: Shares[trio.CancelScope] = Shares()
        """The handshakes that have a place among `_handshakes`, by how long their peers have been silent."""
        self._retired: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._failed_handshakes: Counter[str] = Counter()
        self._oversized_headers = 0
        self._accepted = 0
        self._past = ServerStatistics()
        self._accepting = trio.CancelScope()
        self._serving = trio.CancelScope()
        self._stopped = trio.Event()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped.is_set() else "draining" if self.draining else "serving"
        return f"<Server at {', '.join(self.addresses)}, {state}, {len(self._connections)} connections>"

    @property
    def draining(self) -> bool:
        """True if no more connections and streams are accepted."""
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
            connections_total=self._accepted,
            connections_retired=dict(self._retired),
            connections_refused=dict(self._refused),
            failed_handshakes=dict(self._failed_handshakes),
            oversized_headers=self._oversized_headers,
            draining=self.draining,
        )

    async def drain(self, timeout_seconds: float) -> None:
        """Stop: refuse connections and streams (GOAWAY), wait for the streams that run, cut them after the timeout.

        Cut streams end with UNAVAILABLE. Returns when everything is closed. If cancelled, the drain continues without
        the cut: call it again, or cancel the server.
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
                self._log_some("a connection was ended", peer, "the client is revoked", kind="revoked")
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
        owner = _host(sock, peer)
        if self._shares.is_full and not self._has_made_room(owner, peer):
            sock.close()
            return
        self._accepted += 1
        with trio.CancelScope() as scope:
            self._shares.add(scope, owner)
            self._shares.stall(scope, trio.current_time())
            try:
                await self._converse(sock, peer, scope)
            except TlsError as error:
                self._failed_handshakes[error.reason] += 1
                self._log_some("a connection was refused", peer, str(error), kind=str(error))
            except Exception:
                log.exception("a gRPC connection failed", peer=peer.address)
            finally:
                sock.close()
                self._shares.remove(scope)

    async def _converse(self, sock: socket.socket, peer: Peer, place: trio.CancelScope) -> None:
        """A connection that has a ``place`` among the shares."""
        session = None
        if (tls := self._tls) is not None:
            with trio.CancelScope() as scope:
                self._handshaking.add(scope)
                if self.draining:
                    scope.cancel()
                try:
                    session = await self._handshake(tls, sock, scope, place)
                finally:
                    self._handshaking.discard(scope)
            if session is None:
                return  # by a drain, or for another handshake
            ids, end = session.spiffe_ids_and_end()
            peer = evolve(peer, tls=True, certificate=session.peer_certificate(), certificate_end=end, spiffe_ids=ids)
            if peer.spiffe_ids:
                self._shares.add(place, peer.spiffe_ids)
        await self._serve(sock, session, peer, place)

    def _has_made_room(self, owner: Hashable, peer: Peer) -> bool:
        """End a connection for one more of ``owner``; False if the new one is refused."""
        shares = self._shares
        limit = f"{shares.limit:g} connections are open, the most that there may be (--max-connections)"
        place = shares.giving_way(owner)
        if place is None:
            self._refused["total"] += 1
            self._log_some("a connection was refused", peer, limit, kind="total")
            return False
        kind = "stalled" if shares.is_stalled(place) else "share"
        self._refused[kind] += 1
        found = "the one stalled longest" if kind == "stalled" else "the newest of whoever has more than half"
        reason = f"{limit}: {found} was closed, of {_shown(shares.owner_of(place))}"
        self._log_some("a connection was closed to make room for another", peer, reason, kind=kind)
        shares.remove(place)
        place.cancel()
        return True

    def _log_some(self, event: str, peer: Peer, reason: str, *, kind: str) -> None:
        """Log the first event of a kind, then one every ten seconds: a thousand connections may have it at once."""
        left_out = self._logged.admit(kind, trio.current_time())
        if left_out is not None:
            log.info(event, peer=peer.address, reason=reason, **({"more_since_last": left_out} if left_out else {}))

    def _note_oversized(self, peer: Peer, reason: str) -> None:
        self._oversized_headers += 1
        self._log_some("a call was refused", peer, reason, kind="oversized headers")

    async def _handshake(
        self, tls: TlsSource, sock: socket.socket, scope: trio.CancelScope, place: trio.CancelScope
    ) -> TlsSession:
        seconds = self._limits.handshake_timeout_seconds
        with trio.move_on_after(seconds) as patience:
            await self._wait_for_handshake()
        if patience.cancelled_caught:  # who connected so long ago has given up
            most = f"{self._limits.max_handshakes:g} are under way (--max-handshakes)"
            raise TlsError(f"no turn for the TLS handshake within {seconds:g} s: {most}", reason="no_turn")

        def is_silent_from_now_on() -> None:
            """Each step of the handshake is a separate wait; a handshake has three at most."""
            for shares, entry in ((self._silent, scope), (self._shares, place)):
                shares.resume(entry)
                shares.stall(entry, trio.current_time())

        try:
            self._silent.add(scope, None)
            is_silent_from_now_on()
            session = TlsSession(tls.context(), server_side=True)
            turn = self._admission.turn
            await handshake(session, sock, timeout_seconds=seconds, turn=turn, on_answer=is_silent_from_now_on)
        finally:
            self._silent.remove(scope)
            self._handshakes.release()
        return session

    async def _wait_for_handshake(self) -> None:
        """Wait for a place among the handshakes, in line. The first gets that of a peer that has been silent."""
        patience = self._limits.silence_seconds
        async with self._handshake_line:
            while True:
                longest = self._silent.longest_stalled()
                with trio.move_on_at((longest[1] if longest else trio.current_time()) + patience):
                    await self._handshakes.acquire()
                    return
                longest = self._silent.longest_stalled()
                if longest is not None and longest[1] + patience <= trio.current_time():
                    scope, _ = longest
                    self._failed_handshakes["silent"] += 1
                    self._silent.remove(scope)
                    scope.cancel()
                    await self._handshakes.acquire()  # the place that this one leaves in a moment
                    return

    async def _serve(self, sock: socket.socket, tls: TlsSession | None, peer: Peer, place: trio.CancelScope) -> None:
        def on_wait(is_waiting: bool) -> None:
            if is_waiting:
                self._shares.stall(place, trio.current_time())
            else:
                self._shares.resume(place)

        connection = None
        try:
            async with trio.open_nursery() as nursery:
                connection = ServerConnection(sock, nursery, tls, peer, self._shared, on_wait)
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


def connection_shares(limits: Limits) -> Shares[trio.CancelScope]:
    """The shares of one server's connections, or of those of several; fewer than the limit where files are few."""
    return Shares(within_descriptors(limits.max_connections, GRPC_SHARE))


def _host(sock: socket.socket, peer: Peer) -> str:
    """The IP address of a peer; ``unix`` for one of a Unix socket."""
    return "unix" if sock.family == socket.AF_UNIX else peer.address.rpartition(":")[0]


def _shown(owner: Hashable) -> str:
    return ", ".join(owner) if isinstance(owner, tuple) else str(owner)


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
