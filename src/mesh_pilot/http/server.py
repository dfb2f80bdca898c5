"""Serves an ASGI app over HTTP/1.1 on Trio, on sockets that are already open.

Anyone who monitors the mesh can connect, and the process serves all proxies. So errors of a connection stay within it,
and the number of connections is limited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.http.connection import App, HttpConnection, HttpCounts, HttpLimits
from mesh_pilot.http.tls import TlsStream, over_tls
from mesh_pilot.http.wrong_port import linger
from mesh_pilot.rpc.errors import TlsError
from mesh_pilot.rpc.rate_limits import LogLimiter
from mesh_pilot.rpc.tls import TlsSource

log = structlog.get_logger(scope="ops")


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
    """Idle connections closed in favour of new ones at the connection limit."""
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
        self._counts = HttpCounts()
        self._total = self._failures = self._displaced = self._refused = 0
        self._handshakes = 0
        self._limiter = LogLimiter()

    def __repr__(self) -> str:
        return f"<HttpServer of the {self.port} port, {len(self._connections)} connections>"

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies of requests that are being received or answered."""
        return self._counts.body_bytes

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(
            port=self.port,
            connections_open=len(self._connections),
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
                connection.stop(new_too=False)
            connections.cancel_scope.deadline = trio.current_time() + grace_seconds

    async def _converse(self, stream: trio.SocketStream) -> None:
        self._total += 1
        if len(self._connections) >= self._limits.connections and not self._displace():
            self._refused += 1
            await trio.aclose_forcefully(stream)
            return
        secured = stream if self._tls is None else await self._secured(stream, self._tls)
        if secured is None:
            return
        connection = HttpConnection(
            self._app, secured, self._limits, self._counts, self._wrong_port, keeps=lambda: self.keeps_connections
        )
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception as error:
            self._failed(error)
        finally:
            self._connections.discard(connection)

    async def _secured(self, stream: trio.SocketStream, tls: TlsSource) -> TlsStream | None:
        """The connection after its handshake, within the time for a request; None: it is closed."""
        if self._handshakes >= self._limits.connections:
            self._refused += 1
            await trio.aclose_forcefully(stream)
            return None
        self._handshakes += 1
        try:
            with trio.move_on_after(self._limits.request_seconds):
                secured = await over_tls(stream, tls)
                if secured is not None:
                    return secured
                self._counts.malformed += 1
                await linger(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            self._counts.malformed += 1
        except TlsError as error:
            self._failed(error)
        finally:
            self._handshakes -= 1
        await trio.aclose_forcefully(stream)
        return None

    def _displace(self) -> bool:
        """Close the connection that has been idle longest; true if there was one."""
        waiting = [(c.waiting_since, c) for c in self._connections if c.waiting_since is not None]
        if not waiting:
            return False
        min(waiting, key=lambda pair: pair[0])[1].stop()
        self._displaced += 1
        return True

    def _failed(self, error: Exception) -> None:
        """Count an internal error; log it at most once a minute for each type."""
        self._failures += 1
        if self._limiter.admit(type(error).__name__, trio.current_time()) is not None:
            log.error("internal error in an HTTP request", port=self.port, failures=self._failures, exc_info=error)
