"""A gRPC client on Trio: one connection, any number of calls on it."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import structlog
import trio
from grpclib.const import Cardinality
from grpclib.metadata import USER_AGENT, Deadline
from grpclib.metadata import _MetadataLike as MetadataLike

from mesh_pilot.net.rpc import http1
from mesh_pilot.net.rpc.client_call import ClientCall
from mesh_pilot.net.rpc.errors import ConnectionLost
from mesh_pilot.net.rpc.http2 import Http2
from mesh_pilot.net.rpc.limits import CLIENT_LIMITS, Limits
from mesh_pilot.net.rpc.net import TcpAddress, connect, parse_address
from mesh_pilot.net.rpc.outbound import Headers
from mesh_pilot.net.rpc.statistics import ConnectionStatistics
from mesh_pilot.net.rpc.stream import Http2Stream
from mesh_pilot.net.rpc.tls import TlsSource
from mesh_pilot.net.rpc.tls_session import TlsSession, handshake
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["Channel", "open_channel"]

log = structlog.get_logger(scope="rpc")

Request = TypeVar("Request")
Reply = TypeVar("Reply")


@asynccontextmanager
async def open_channel(
    address: str,
    *,
    tls: TlsSource | None = None,
    server_hostname: str | None = None,
    local_address: str | None = None,
    limits: Limits = CLIENT_LIMITS,
) -> AsyncGenerator[Channel, None]:
    """Connect to ``address`` (host:port or unix:///path); leaving the block resets the open calls and disconnects.

    ``server_hostname`` is the name asked for and checked with TLS, and the calls' authority; by default the address's
    host. ``local_address`` is the IP address that it comes from. Raises AddressError without an answer, TlsError when
    the handshake fails or takes too long, ConnectionLost when the other side hangs up or does not speak HTTP/2.
    """
    parsed = parse_address(address)
    host = server_hostname or (parsed.host if isinstance(parsed, TcpAddress) else "") or "localhost"
    authority = str(parsed) if isinstance(parsed, TcpAddress) and not server_hostname else host
    with trio.CancelScope() as connecting:
        connecting.deadline = trio.current_time() + limits.handshake_timeout_seconds
        sock = await connect(address, local_address=local_address)
    if connecting.cancelled_caught:
        raise ConnectionLost(f"cannot connect to {address} within {limits.handshake_timeout_seconds:g} s")
    with sock:
        session = None
        if tls is not None:
            session = TlsSession(tls.context(), server_side=False, server_hostname=host)
            await handshake(session, sock, timeout_seconds=limits.handshake_timeout_seconds)
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            channel = Channel(sock, nursery, session, address, authority, limits)
            nursery.start_soon(channel._run)
            try:
                await channel._wait_for_settings()
                yield channel
            except Exception as error:  # not to be wrapped in a group by the nursery
                failure = error
            finally:
                channel._hang_up()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class Channel:
    """A connected client; made by :func:`open_channel`. :meth:`request` has the signature that generated stubs call."""

    def __init__(
        self,
        sock: socket.socket,
        nursery: trio.Nursery,
        tls: TlsSession | None,
        address: str,
        authority: str,
        limits: Limits,
    ) -> None:
        self._address = address
        self._limits = limits
        self._lost: str | None = None
        self._lost_event = trio.Event()
        self._gone_event = trio.Event()
        self._base_headers: Headers = [
            (":method", "POST"),
            (":scheme", "http" if tls is None else "https"),
            (":authority", authority),
        ]
        self._transport = SocketTransport(sock, nursery, tls=tls, write_buffer=limits.write_buffer)
        self._http2 = Http2(self, self._transport, limits, client_side=True)
        self._http2.flush()
        self._nursery = nursery

    def __repr__(self) -> str:
        state = "open" if self._lost is None else self._lost
        return f"<Channel to {self._address}, {state}, {len(self._http2.streams)} calls>"

    @property
    def lost(self) -> str | None:
        """Why no more calls can be made; None while they can."""
        return self._lost

    async def wait_lost(self) -> str:
        """Wait until no more calls can be made; open ones may go on (GOAWAY). Returns the reason."""
        await self._lost_event.wait()
        assert self._lost is not None
        return self._lost

    @property
    def is_gone(self) -> bool:
        """True if the connection is gone, and not only closed to more calls."""
        return self._gone_event.is_set()

    async def wait_gone(self) -> None:
        """Wait until the connection is gone, and all calls with it."""
        await self._gone_event.wait()

    async def wait_idle(self) -> None:
        """Wait until no call is open."""
        while self._http2.streams:
            self._http2.stream_released.clear()
            await self._http2.stream_released.wait()

    def _lose(self, reason: str) -> None:
        """Let no more calls be made; the first reason stands."""
        self._lost = self._lost or reason
        self._lost_event.set()

    def statistics(self) -> ConnectionStatistics:
        """How the connection is doing."""
        return self._http2.statistics(self._address, draining=self._lost is not None)

    def request(
        self,
        path: str,
        cardinality: Cardinality,
        request_type: type[Request],
        reply_type: type[Reply],
        *,
        timeout: float | None = None,
        deadline: Deadline | None = None,
        metadata: MetadataLike | None = None,
    ) -> ClientCall[Request, Reply]:
        """A call, to be used as an async context manager; nothing is sent before its first message.

        ``timeout`` in seconds, or a ``deadline``, bound the whole call and are told to the server.
        """
        return ClientCall(self._open_stream, path, cardinality, request_type, reply_type, timeout, deadline, metadata)

    async def unary(
        self,
        path: str,
        request: Any,
        reply_type: type[Reply],
        *,
        timeout_seconds: float | None = None,
        metadata: MetadataLike | None = None,
    ) -> Reply:
        """One request (a message, or bytes), one reply.

        Raises GRPCError for a status that is not OK, ConnectionLost. If cancelled, the call is reset.
        """
        cardinality = Cardinality.UNARY_UNARY
        call = self.request(path, cardinality, type(request), reply_type, timeout=timeout_seconds, metadata=metadata)
        async with call:
            await call.send_message(request, end=True)
            reply = await call.recv_message()
        assert reply is not None
        return reply

    async def _open_stream(self, path: str, more: Headers, end_stream: bool) -> tuple[Http2Stream, Callable[[], None]]:
        """Open a stream; waits while the server allows no more. If cancelled, nothing was sent."""
        if self._lost is not None:
            raise ConnectionLost(f"{self._address}: {self._lost}")
        headers = [
            *self._base_headers,
            (":path", path),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", USER_AGENT),
            *more,
        ]
        while True:
            await self._transport.writable.wait()
            if self._transport.is_closing:
                raise ConnectionLost("the connection is closed")
            if (stream := self._http2.open(headers, end_stream=end_stream)) is not None:
                return stream, partial(self._http2.release, stream)
            self._http2.stream_released.clear()
            await self._http2.stream_released.wait()

    async def _wait_for_settings(self) -> None:
        """A server begins with its settings, which say how many calls it takes at once."""
        seconds = self._limits.handshake_timeout_seconds
        with trio.move_on_after(seconds):
            await self._http2.settings_received.wait()
            if self._lost is None:
                return
            raise ConnectionLost(f"{self._address}: {self._lost}")
        raise ConnectionLost(f"{self._address}: no HTTP/2 from the server within {seconds:g} s")

    async def _run(self) -> None:
        self._nursery.start_soon(self._http2.keep_alive)
        try:
            data = await self._transport.read()
            if http1.is_response(data):
                self._transport.abort("the server speaks HTTP/1.1, not gRPC: is this a web or metrics port?")
                data = b""
            while data:
                if not self._transport.is_closing:
                    self._http2.feed(data)
                    self._http2.take_in()
                    self._http2.flush()
                data = await self._transport.read()
        except Exception:
            log.exception("a gRPC channel failed", address=self._address)
            self._transport.abort("internal error")
        self._lost = f"the connection is lost: {self._transport.close_reason}"
        self._lose(self._lost)
        self._gone_event.set()
        self._http2.close(f"{self._address}: {self._lost}")

    def _hang_up(self) -> None:
        self._lose("the channel is closed")
        self._gone_event.set()
        self._http2.send_goaway()
        self._http2.close(f"{self._address}: {self._lost}")
        self._transport.abort()

    def goaway(self, last_stream_id: int) -> None:
        """The server wants no more calls; those it did not take are lost, the others go on."""
        self._lose("the server is going away")
        for stream_id, stream in list(self._http2.streams.items()):
            if stream_id > last_stream_id:
                stream.terminate(ConnectionLost(f"{self._address}: the server goes away and did not take this call"))

    def accept(self, stream: Http2Stream, headers: Headers) -> None:
        """Never called: h2 refuses streams that a server opens."""
