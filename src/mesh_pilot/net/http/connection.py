"""One HTTP/1.1 connection of the web or metrics port: requests in, an ASGI app's responses out.

h11 knows the protocol; this file moves the bytes, and bounds what a client can cost: the size of a request, the time
it takes to arrive, and the time a response waits for a client that does not read.

Why not a server from a package: those that run on Trio bound neither the bytes of all bodies together nor the time to
read a response, cannot tell a connection that waits from one that works (which decides who gives way at the limit), and
answer a gRPC client on the wrong port with nothing that it could show. A request is read whole before the app is
called, as no page takes more than a small body: so an app waits for its client in one place, ``_write``.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs
import h11
import trio

from mesh_pilot.net.http.tls import TlsStream
from mesh_pilot.net.http.wrong_port import PREFACE, linger, refuse_http2
from mesh_pilot.net.rpc.net import uid_of

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
"""An ASGI application."""

_READ_SIZE = 16 * 1024
_WRITE_SIZE = 64 * 1024
"""Bytes passed to the socket at a time; the client has ``stall_seconds`` to read them."""
_LINGER_SECONDS = 2.0
_FIRST_REQUEST_SECONDS = 0.2


PEER_UID = "mesh_pilot.peer_uid"
"""The extension in scopes of a Unix socket with the user id of the client; None where it is not known."""
PEER_NAMES = "mesh_pilot.peer_names"
"""The extension in scopes with the names in the client's verified certificate."""
PEER_IDENTITIES = "mesh_pilot.peer_identities"
"""The extension with the SPIFFE ids among them."""


@attrs.frozen
class HttpLimits:
    """Limits of a server and of each connection. Sizes are in bytes, times in seconds."""

    connections: int = 500
    """At this limit one is closed for a new one; see ``net.rpc.shares``. A server has fewer where the process may open
    few files."""
    head_bytes: int = 16 * 1024
    """Request line and headers together."""
    body_bytes: int = 64 * 1024
    """No page takes a body."""
    all_bodies_bytes: int = 64 * 1024 * 1024
    """The bodies of all requests that are being received or answered."""
    request_seconds: float = 10.0
    """From the first byte of a request, or the start of the connection, to the end of the request."""
    idle_seconds: float = 75.0
    """Between two requests; a little more than Prometheus' longest usual interval."""
    stall_seconds: float = 30.0
    """Time for a client to read the next 64 KiB of a response."""


@attrs.define
class HttpCounts:
    """Counters over all connections of a server."""

    requests: Counter[int] = attrs.field(factory=Counter)
    """Responses by status code."""
    timeouts: int = 0
    """Connections closed because a request did not arrive, or a response was not read, in time."""
    malformed: int = 0
    """Requests that are not HTTP/1.1, or exceed the limits."""
    http2: int = 0
    """HTTP/2 connections, which were answered with the right port."""
    body_bytes: int = 0
    """Bytes of bodies that are held now."""


class _Refused(Exception):
    """A request that is refused before the app sees it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpConnection:
    """Serves ``app`` on one stream. State: h11's, and the progress of the current response."""

    def __init__(
        self,
        app: App,
        stream: trio.SocketStream | TlsStream,
        limits: HttpLimits,
        counts: HttpCounts,
        wrong_port: str,
        *,
        keeps: Callable[[], bool] = lambda: True,
        on_wait: Callable[[bool], None] = lambda _: None,
        turn: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        """``keeps``: whether another request may follow the one that is answered. ``on_wait`` is told when the
        connection begins (True) and ends to wait for its client: for a request, or that it reads an answer. ``turn``
        is awaited before each request, told whether the client has already sent more."""
        self._app = app
        self._stream = stream
        self._peer_names = stream.peer_names if isinstance(stream, TlsStream) else ()
        self._peer_identities = stream.peer_identities if isinstance(stream, TlsStream) else ()
        self._limits = limits
        self._counts = counts
        self._wrong_port = wrong_port
        self._keeps = keeps
        self._on_wait = on_wait
        self._turn = turn
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._receiving: trio.CancelScope | None = None
        self._stopping = False
        self._is_spared = True
        """True until the first bytes have come, or the wait for them is over."""
        self._gone = False
        """True once the client is gone: later exceptions of the app are not errors of ours."""
        self._unread = False
        """True if the client may have sent bytes that will not be read."""
        self._held = 0
        """Bytes of the current request's body."""
        self._pending = b""
        """The head of a response, sent with the first bytes of the body."""
        self._is_waiting = False
        """True while it waits for its client."""

    def __repr__(self) -> str:
        state = "waiting" if self._is_waiting else "busy"
        return f"<HttpConnection {state}, client {self._h11.their_state}, server {self._h11.our_state}>"

    def stop(self) -> None:
        """Close the connection: at once if it is idle, else after the current response.

        One that was just accepted has a short time for its first request, which is on its way.
        """
        self._stopping = True
        if self._receiving is not None:
            self._end_waiting(self._receiving)

    async def run(self) -> None:
        """Serve until either side closes. Re-raises exceptions of the app, after answering 500."""
        try:
            first = await self._first_bytes()
            if first is not None:
                self._counts.http2 += 1
                seconds = self._limits.request_seconds
                with self._request_expected(2 * seconds):
                    await refuse_http2(self._stream, first, self._wrong_port, seconds=seconds)
                return
            while await self._exchange():
                pass
            if self._unread:
                with trio.move_on_after(_LINGER_SECONDS):
                    await linger(self._stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone
        finally:
            await trio.aclose_forcefully(self._stream)

    # -- requests

    async def _first_bytes(self) -> bytes | None:
        """Wait for the client's first bytes; returns them if they are HTTP/2, else passes them to h11."""
        data = b""
        with self._request_expected(self._limits.request_seconds):
            while True:
                more = await self._stream.receive_some(_READ_SIZE)
                data += more
                if data.startswith(PREFACE):
                    return data
                if not more or not PREFACE.startswith(data):
                    break
        self._is_spared = False
        self._h11.receive_data(data)
        return None

    def _request_expected(self, seconds: float) -> trio.CancelScope:
        """A scope for receiving, cancelled by ``stop`` and after ``seconds``."""
        self._receiving = trio.CancelScope(deadline=trio.current_time() + seconds)
        if self._stopping:
            self._end_waiting(self._receiving)
        self._wait(True)
        return self._receiving

    def _wait(self, is_waiting: bool) -> None:
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self._on_wait(is_waiting)

    def _end_waiting(self, receiving: trio.CancelScope) -> None:
        soon = trio.current_time() + _FIRST_REQUEST_SECONDS if self._is_spared else trio.current_time()
        receiving.deadline = min(receiving.deadline, soon)

    async def _exchange(self) -> bool:
        """Serve one request; true if another may follow."""
        try:
            return await self._exchanged()
        finally:
            self._counts.body_bytes -= self._held
            self._held = 0

    async def _exchanged(self) -> bool:
        try:
            request = await self._next_request()
            if request is None:
                return False
            body = await self._body(request)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, f"no valid HTTP/1.1: {error}")
            return False
        except _Refused as refused:
            await self._refuse(refused.status, str(refused))
            return False
        # Whoever has sent the next request already may read no answers: it is waited for until it has.
        asks_ahead = bool(self._h11.trailing_data[0])
        self._wait(asks_ahead)
        if self._turn is not None:
            await self._turn(asks_ahead)
        await self._respond(request, body)
        if self._stopping or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def _next_request(self) -> h11.Request | None:
        """The head of the next request; None at the end of the connection."""
        partial = bool(self._h11.trailing_data[0]) or self._h11.their_state is not h11.IDLE
        limits = self._limits
        with self._request_expected(limits.request_seconds if partial else limits.idle_seconds) as scope:
            while True:
                event = self._h11.next_event()
                if isinstance(event, h11.Request):
                    if event.http_version not in (b"1.0", b"1.1"):
                        raise _Refused(505, "this port speaks HTTP/1.1")
                    return event
                if isinstance(event, h11.ConnectionClosed):
                    return None
                data = await self._stream.receive_some(_READ_SIZE)
                if not partial:
                    partial = True
                    scope.deadline = trio.current_time() + limits.request_seconds
                self._h11.receive_data(data)
        if partial and not self._stopping:
            self._counts.timeouts += 1
            raise _Refused(408, f"the request did not arrive within {limits.request_seconds:g} s")
        return None

    async def _body(self, request: h11.Request) -> bytes:
        """The body of a request."""
        limit = self._limits.body_bytes
        too_large = _Refused(413, f"the body is larger than {limit} bytes")
        if int(dict(request.headers).get(b"content-length", b"0")) > limit:
            raise too_large
        body = bytearray()
        with self._request_expected(self._limits.request_seconds):
            while True:
                if self._h11.they_are_waiting_for_100_continue:
                    await self._write(self._send(h11.InformationalResponse(status_code=100, headers=[])))
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    self._h11.receive_data(await self._stream.receive_some(_READ_SIZE))
                elif isinstance(event, h11.Data):
                    body += event.data
                    self._held += len(event.data)
                    self._counts.body_bytes += len(event.data)
                    if len(body) > limit:
                        raise too_large
                    if self._counts.body_bytes > self._limits.all_bodies_bytes:
                        raise _Refused(503, "too many large requests at once: try again")
                else:
                    return bytes(body)
        self._counts.timeouts += 1
        raise _Refused(408, f"the body did not arrive within {self._limits.request_seconds:g} s")

    # -- responses

    async def _respond(self, request: h11.Request, body: bytes) -> None:
        """Call the app. Its exceptions are raised again, after answering 500 if nothing was sent yet."""
        requested = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if requested:
                return requested.pop()
            await self._wait_closed()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await self._take(request, message)

        try:
            await self._app(self._scope(request), receive, send)
        except Exception:
            if self._gone:
                return
            await self._complete()
            raise
        await self._complete()

    async def _wait_closed(self) -> None:
        """Wait until the client has closed its side; forever if it sends another request first."""
        try:
            if not await self._stream.socket.recv(1, socket.MSG_PEEK):
                return
        except (OSError, trio.ClosedResourceError):
            return
        await trio.sleep_forever()

    async def _complete(self) -> None:
        """Answer 500 if the app has not begun a response."""
        if self._h11.our_state is h11.SEND_RESPONSE:
            await self._refuse(500, "internal error")

    def _scope(self, request: h11.Request) -> Message:
        path, _, query = request.target.partition(b"?")
        return {
            "type": "http",
            "extensions": self._extensions(),
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "https" if isinstance(self._stream, TlsStream) else "http",
            "path": _unquoted(path),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": _tcp_address(self._stream, peer=True),
            "server": _tcp_address(self._stream),
        }

    def _extensions(self) -> Message:
        if self._stream.socket.family == socket.AF_UNIX:
            return {PEER_UID: uid_of(self._stream.socket)}
        return {PEER_NAMES: self._peer_names, PEER_IDENTITIES: self._peer_identities}

    async def _take(self, request: h11.Request, message: Message) -> None:
        """Send a message of the app. A response to HEAD has no body, even if the app gives one."""
        if message["type"] == "http.response.start":
            status = message["status"]
            self._counts.requests[status] += 1
            self._pending = self._send(h11.Response(status_code=status, headers=self._headers(message["headers"])))
        elif message["type"] == "http.response.body":
            if request.method != b"HEAD":
                await self._send_body(memoryview(message.get("body", b"")))
            if not message.get("more_body", False):
                self._pending += self._send(h11.EndOfMessage())
            await self._flush()

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        more = [(b"date", formatdate(usegmt=True).encode()), (b"x-content-type-options", b"nosniff")]
        if self._stopping or not self._keeps():
            more.append((b"connection", b"close"))
        return [*headers, *more]

    async def _send_body(self, body: memoryview) -> None:
        for start in range(0, len(body), _WRITE_SIZE):
            self._pending += self._send(h11.Data(data=bytes(body[start : start + _WRITE_SIZE])))
            await self._flush()

    async def _refuse(self, status: int, text: str) -> None:
        """Answer with a plain text and end the connection."""
        self._unread = True
        if status < 500:
            self._counts.malformed += status != 408
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        self._counts.requests[status] += 1
        body = f"{text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        answer = self._send(h11.Response(status_code=status, headers=self._headers(headers)))
        await self._write(answer + self._send(h11.Data(data=body)) + self._send(h11.EndOfMessage()))

    def _send(self, event: h11.Event) -> bytes:
        return self._h11.send(event) or b""

    async def _flush(self) -> None:
        data, self._pending = self._pending, b""
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        was_waiting = self._is_waiting
        self._wait(True)
        try:
            with trio.fail_after(self._limits.stall_seconds):
                await self._stream.send_all(data)
            self._wait(was_waiting)
        except trio.TooSlowError as error:
            self._gone = True
            self._counts.timeouts += 1
            raise trio.BrokenResourceError("the client does not read") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._gone = True
            raise


def _unquoted(path: bytes) -> str:
    return unquote_to_bytes(path).decode("utf-8", "replace")


def _tcp_address(stream: trio.SocketStream | TlsStream, *, peer: bool = False) -> tuple[str, int] | None:
    """Host and port of our side, or of the client; an IPv4 address on a socket of both families is written as such."""
    if stream.socket.family == socket.AF_UNIX:
        return None
    try:
        name = stream.socket.getpeername() if peer else stream.socket.getsockname()
    except OSError:
        return None
    return name[0].removeprefix("::ffff:"), name[1]
