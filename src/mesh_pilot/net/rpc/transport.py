"""A socket in the shape of asyncio's Transport, moved by Trio tasks.

``write()`` tries the socket at once and leaves what does not fit to a flusher task, which exists only while there is
something to flush. The protocol on top is paused while more than the high mark waits. No asyncio loop is involved: the
shape is what grpclib's protocol objects write to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import trio

from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.tls import TlsSession

__all__ = ["SocketTransport", "WriteListener"]

_READ_SIZE = 64 * 1024
_CLOSE_GRACE_SECONDS = 5.0
"""How long a closing transport tries to hand its last bytes to a peer that does not read."""

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024 * 1024
"""How long a peer that was told why its connection closes has to hang up, and how much of what it sends is dropped."""


class WriteListener(Protocol):
    """The part of asyncio's Protocol that a transport calls."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class SocketTransport(asyncio.Transport):
    """A connected, non-blocking stream socket; with ``tls``, encrypted by a session whose handshake is done.

    It owns the socket. Everything but :meth:`read` and the flusher is synchronous. ``write_buffer`` is the high mark in
    bytes. A peer that makes us queue ``overflow`` bytes beyond it (only answers to its control frames can) is cut off.
    """

    overflow = 4 * 1024 * 1024

    def __init__(
        self, sock: socket.socket, nursery: trio.Nursery, *, tls: TlsSession | None, write_buffer: int
    ) -> None:
        super().__init__()
        self._socket = sock
        self._nursery = nursery
        self._tls = tls
        self._high = write_buffer
        self._low = write_buffer // 4
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0
        self._closing = False
        self._lingering = False
        self._dropped = 0
        self._closed = False
        self._paused = False
        self._listener: WriteListener | None = None
        self.on_pause: Callable[[], None] = lambda: None
        """Called when ``is_paused`` has changed."""
        self.bytes_sent = 0
        self.bytes_received = 0
        self.close_reason = ""
        self.fault = ""
        """The reason why the peer was cut off; empty if it was not."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "closing" if self._closing else "paused" if self._paused else "open"
        return f"<SocketTransport {state}, {self._backlog_size} bytes waiting>"

    def listen_to_pauses(self, listener: WriteListener) -> None:
        """Tell ``listener`` when to stop and resume writing."""
        self._listener = listener

    @property
    def is_paused(self) -> bool:
        """True while the peer does not read what there is for it."""
        return self._paused

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._backlog_size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``socket`` is the one thing known by name; see asyncio's BaseTransport."""
        return self._socket if name == "socket" else default

    def is_closing(self) -> bool:
        """True once nothing more may be written."""
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``, now or as soon as the peer takes it; dropped when closing."""
        if self._closing:
            return
        if self._tls is not None:
            data = self._tls.encrypt(data)
        self._send(data)

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        sent = 0
        if not self._backlog:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._fail(error)
                return
            self.bytes_sent += sent
            if sent == len(data):
                return
            self._nursery.start_soon(self._flush, name="rpc flusher")
        rest = memoryview(data)[sent:]
        self._backlog.append(rest)
        self._backlog_size += len(rest)
        if self._backlog_size > self._high and not self._paused:
            self._paused = True
            self.on_pause()
            if self._listener is not None:
                self._listener.pause_writing()
        if self._backlog_size > self._high + self.overflow:
            self.cut("the peer does not read our answers")

    async def _flush(self) -> None:
        while self._backlog:
            try:
                await trio.lowlevel.wait_writable(self._socket)
                if self._closed:  # by the reader, in the pass in which this task became ready
                    return
                sent = self._socket.send(self._backlog[0])
            except (BlockingIOError, InterruptedError):
                continue
            except (trio.ClosedResourceError, OSError) as error:
                self._fail(error)
                return
            self._sent(sent)
        if self._lingering:
            self._shut_down()
        elif self._closing:
            self._close_socket()

    def _sent(self, size: int) -> None:
        self.bytes_sent += size
        self._backlog_size -= size
        if size == len(self._backlog[0]):
            self._backlog.popleft()
        else:
            self._backlog[0] = self._backlog[0][size:]
        if self._paused and self._backlog_size <= self._low:
            self._paused = False
            self.on_pause()
            if self._listener is not None:
                self._listener.resume_writing()

    async def read(self) -> bytes:
        """The next bytes of the peer, b"" at its end or once the connection failed or was closed by us.

        While it is closing, what is returned is to be dropped.
        """
        while not self._closed and not (self._tls is not None and self._tls.ended):
            try:
                await trio.lowlevel.wait_readable(self._socket)
                data = self._socket.recv(_READ_SIZE)
            except (BlockingIOError, InterruptedError):
                continue
            except (trio.ClosedResourceError, OSError) as error:
                self._fail(error)
                break
            self.bytes_received += len(data)
            if self._closing:
                self._dropped += len(data)
                if self._dropped > _LINGER_BYTES:
                    self._close_socket()
            if self._tls is None or self._closing or not data:
                return self._ended(data)
            plain = self._decrypt(self._tls, data)
            if plain is not None:
                return self._ended(plain)
        return b""

    def _ended(self, data: bytes) -> bytes:
        if not data:
            self.close_reason = self.close_reason or "closed by the peer"
        return data

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes | None:
        """Plain bytes, b"" at the end of the session, None while a record is incomplete."""
        try:
            plain, answer = tls.decrypt(data)
        except TlsError as error:
            self._fail(error)
            return b""
        if answer and not self._closing:
            self._send(answer)
        return plain

    def _fail(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self.close_reason = self.close_reason or reason or type(error).__name__
        self._close_socket()

    def close(self, reason: str = "closed") -> None:
        """Stop writing, and close the socket once what waits is sent (or 5 seconds later)."""
        if self._closing:
            return
        self.close_reason = self.close_reason or reason
        self._closing = True
        if self._backlog:
            self._nursery.start_soon(self._close_later, _CLOSE_GRACE_SECONDS, name="rpc closer")
        else:
            self._close_socket()

    def half_close(self, reason: str) -> None:
        """Stop writing, tell the peer so once what waits is sent, and close the socket a second later at the latest.

        Meanwhile what the peer sends must be read, and dropped: a socket that is closed with bytes unread is reset, and
        the peer might never see why.
        """
        if self._closing:
            return
        self.close_reason = self.close_reason or reason
        self._closing = self._lingering = True
        if not self._backlog:
            self._shut_down()
        self._nursery.start_soon(self._close_later, _LINGER_SECONDS, name="rpc closer")

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                self._socket.send(self._tls.farewell())
            self._socket.shutdown(socket.SHUT_WR)

    async def _close_later(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._close_socket()

    def cut(self, reason: str) -> None:
        """Close the socket now, through a fault of the peer."""
        self.fault = self.fault or reason
        self.abort(reason)

    def abort(self, reason: str = "aborted") -> None:
        """Close the socket now and drop what waits. Safe to call again, and from a cleanup."""
        self.close_reason = self.close_reason or reason
        self._close_socket()

    def _close_socket(self) -> None:
        self._closing = True
        if self._closed:
            return
        self._closed = True
        if self._tls is not None and not self._backlog:
            with contextlib.suppress(OSError):
                self._socket.send(self._tls.farewell())
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._backlog.clear()
        self._backlog_size = 0
        if self._paused and self._listener is not None:
            self._paused = False
            self._listener.resume_writing()
