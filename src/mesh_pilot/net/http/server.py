"""Serves an ASGI app over HTTP/1.1 on Trio, on sockets that are already open.

Anyone who monitors the mesh can connect, and the process serves all proxies. So errors of a connection stay within it,
and the number of connections is limited.
"""

from __future__ import annotations

import socket
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.net.http.connection import App, HttpConnection, HttpCounts, HttpLimits
from mesh_pilot.net.http.tls import TlsStream, over_tls
from mesh_pilot.net.http.wrong_port import linger
from mesh_pilot.net.rpc.descriptors import within_descriptors
from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.net.rpc.shares import Shares
from mesh_pilot.net.rpc.tls import TlsSource

log = structlog.get_logger(scope="ops")

_PASSES = 10
"""Passes of the loop for each request while others wait."""


@attrs.frozen
class HttpStatistics:
    """Counters of an HTTP server."""

    port: str
    """``web`` or ``metrics``."""
    connections_open: int
    connections_total: int
    requests: Mapping[int, int]
    """Responses by status code."""
    failures: int
    """Requests whose handler raised an exception: internal errors."""
    timeouts: int
    """Connections closed because a request did not arrive, or a response was not read, in time."""
    malformed: int
    """Requests that are not HTTP/1.1, or too large."""
    http2: int
    """HTTP/2 clients, such as gRPC clients with a wrong address, that were answered with the right port."""
    displaced: int
    """Connections closed in favour of new ones at the connection limit: stalled ones, or of whoever had most."""
    refused: int
    """New connections closed at the limit because all others were busy."""


class HttpServer:
    """Serves ``app``. ``port`` is its name in logs and metrics, ``right_port`` the address for gRPC clients."""

    def __init__(
        self,
        app: App,
        *,
        port: str = "web",
        right_port: str = "",
        limits: HttpLimits | None = None,
        tls: TlsSource | None = None,
    ) -> None:
        """``tls``: None for plaintext."""
        self.port = port
        self._tls = tls
        self.keeps_connections = True
        """False: each answer is its connection's last, and says so. To be set a while before the end, so that clients
        that ask again and again go by themselves."""
        self._app = app
        self._limits = limits or HttpLimits()
        self._wrong_port = f"this is the {port} port of mesh-pilot, which speaks HTTP/1.1"
        if right_port:
            self._wrong_port += f"; gRPC (xDS, MCP) is served on {right_port}"
        self._connections: set[HttpConnection] = set()
        self._shares: Shares[trio.CancelScope] = Shares(within_descriptors(self._limits.connections))
        """The scope that ends each connection, from its accept on."""
        self._turn = trio.Lock()
        self._lines: dict[Hashable, trio.Lock] = {}
        self._counts = HttpCounts()
        self._total = self._failures = self._displaced = self._refused = 0
        self._limiter = LogLimiter()

    def __repr__(self) -> str:
        return f"<HttpServer of the {self.port} port, {len(self._shares)} connections>"

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies of requests that are being received or answered."""
        return self._counts.body_bytes

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(
            port=self.port,
            connections_open=len(self._shares),
            connections_total=self._total,
            requests=dict(sorted(self._counts.requests.items())),
            failures=self._failures,
            timeouts=self._counts.timeouts,
            malformed=self._counts.malformed,
            http2=self._counts.http2,
            displaced=self._displaced,
            refused=self._refused,
        )

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        stop: trio.Event,
        *,
        grace_seconds: float,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until ``stop``; then close idle connections and give busy ones ``grace_seconds``.

        Cancelled, it closes everything at once. The listeners are closed in any case.
        """
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, self._converse, list(listeners), handler_nursery=connections)
                )
                task_status.started()
                await stop.wait()
                accepting.cancel_scope.cancel()
            for connection in self._connections:
                connection.stop()
            connections.cancel_scope.deadline = trio.current_time() + grace_seconds

    async def _converse(self, stream: trio.SocketStream) -> None:
        self._total += 1
        owner = _host_of(stream)
        if self._shares.is_full and not self._has_made_room(owner):
            await trio.aclose_forcefully(stream)
            return
        with trio.CancelScope() as scope:
            self._shares.add(scope, owner)
            self._shares.stall(scope, trio.current_time())
            try:
                await self._serve(stream, scope)
            finally:
                self._shares.remove(scope)
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        """One connection, whose place in the shares is that of ``scope``, from the handshake on."""
        secured = stream if self._tls is None else await self._secured(stream, self._tls)
        if secured is None:
            return
        if isinstance(secured, TlsStream) and secured.peer_names:
            self._shares.add(scope, secured.peer_names)

        def on_wait(is_waiting: bool) -> None:
            if is_waiting:
                self._shares.stall(scope, trio.current_time())
            else:
                self._shares.resume(scope)

        connection = HttpConnection(
            self._app,
            secured,
            self._limits,
            self._counts,
            self._wrong_port,
            keeps=lambda: self.keeps_connections,
            on_wait=on_wait,
            turn=lambda asks_ahead: self._wait_for_turn((self._shares.owner_of(scope), asks_ahead)),
        )
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception as error:
            self._failed(error)
        finally:
            self._connections.discard(connection)

    async def _wait_for_turn(self, line: Hashable) -> None:
        """While others wait, too, one request begins in some passes of the loop, the first of each line in turn.

        A page may take 20 ms, and 500 clients that ask at once would hold up all else for ten seconds. Each owner has a
        line, and another one for those of its clients that ask ahead. In the passes between two requests connections
        are accepted, one in each, and proxies are served.
        """
        own = self._lines.setdefault(line, trio.Lock())
        try:
            async with own, self._turn:
                if own.statistics().tasks_waiting:
                    for _ in range(_PASSES):
                        await trio.lowlevel.checkpoint()
        finally:
            if not own.locked():
                self._lines.pop(line, None)

    async def _secured(self, stream: trio.SocketStream, tls: TlsSource) -> TlsStream | None:
        """The connection after its handshake, within the time for a request; None: it is to be closed."""
        try:
            context = tls.context()
        except TlsError as error:
            self._failed(error)
            return None
        seconds = self._limits.request_seconds
        with trio.move_on_after(seconds):
            try:
                secured = await over_tls(stream, context, seconds=seconds)
                if secured is not None:
                    return secured
                self._counts.malformed += 1
                await linger(stream)
            except (TlsError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                self._counts.malformed += 1
        return None

    def _has_made_room(self, owner: Hashable) -> bool:
        """Close a connection for one more of ``owner``; False if the new one is refused."""
        scope = self._shares.giving_way(owner)
        if scope is None:
            self._refused += 1
            self._say("a connection was refused: all others are busy", owner)
            return False
        self._displaced += 1
        self._say("a connection was closed to make room for another", owner)
        self._shares.remove(scope)
        scope.cancel()
        return True

    def _say(self, event: str, owner: Hashable) -> None:
        """Log the first of a kind in a minute."""
        left_out = self._limiter.admit(event, trio.current_time())
        if left_out is not None:
            more = {"more_since_last": left_out} if left_out else {}
            log.warning(event, port=self.port, limit=self._shares.limit, new_from=owner, **more)

    def _failed(self, error: Exception) -> None:
        """Count an internal error; log it at most once a minute for each type."""
        self._failures += 1
        if self._limiter.admit(type(error).__name__, trio.current_time()) is not None:
            log.error("internal error in an HTTP request", port=self.port, failures=self._failures, exc_info=error)


def _host_of(stream: trio.SocketStream) -> str:
    """The IP address of a client; ``unix`` for one of a Unix socket, and empty for one that is gone."""
    if stream.socket.family == socket.AF_UNIX:
        return "unix"
    try:
        return str(stream.socket.getpeername()[0]).removeprefix("::ffff:")
    except OSError:
        return ""
