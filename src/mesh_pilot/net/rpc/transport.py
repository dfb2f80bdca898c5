"""A socket that is written to without waiting, and read by one Trio task, or by a poller for many.

``write()`` tries the socket at once and leaves what does not fit to a flusher task, which exists only while there is
something to flush. Whoever has more to send waits for ``writable`` while more than the high mark is left. A Trio stream
would not do: its ``send_all`` waits, and what ends a call, a status or a reset, must never get stuck.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import trio

from mesh_pilot.net.rpc.errors import TlsError
from mesh_pilot.net.rpc.inbox import Signal
from mesh_pilot.net.rpc.polling import SocketPoller
from mesh_pilot.net.rpc.tls_session import TlsSession

__all__ = ["SocketTransport"]

_READ_SIZES = 4 * 1024, 64 * 1024
"""Bytes that a read asks for: few at first, as the kernel is given room of that size, which is then cut to what came;
many after a read that got all of it."""
_CLOSE_GRACE_SECONDS = 5.0
"""The time for which a closing transport tries to hand its last bytes to a peer that does not read."""

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1024 * 1024
"""The time in which a peer that was told why its connection closes has to hang up, and the bytes of it then dropped."""


class SocketTransport:
    """A connected, non-blocking stream socket; with ``tls``, encrypted by a session whose handshake is done.

    It owns the socket. Everything but :meth:`read` and the flusher is synchronous. ``write_buffer`` is the high mark in
    bytes. A peer that makes us queue ``overflow`` bytes beyond it (only answers to its control frames can) is cut off.

    Mutable state: what the socket has not taken, and how far the end has come: ``is_closing`` (nothing more is
    written), lingering (the peer is told, and read until it hangs up), closed.
    """

    overflow = 4 * 1024 * 1024

    def __init__(
        self, sock: socket.socket, nursery: trio.Nursery, *, tls: TlsSession | None, write_buffer: int
    ) -> None:
        self._socket = sock
        self._nursery = nursery
        self._tls = tls
        self._high = write_buffer
        self._low = write_buffer // 4
        self._backlog = bytearray()
        self.is_closing = False
        """True once nothing more may be written."""
        self._lingering = False
        self._dropped = 0
        self._closed = False
        self.is_paused = False
        """True while the peer does not read what there is for it."""
        self.writable = Signal(is_set=True)
        self.on_pause: Callable[[], None] = _nothing
        """Called when ``is_paused`` has changed."""
        self.on_close: Callable[[], None] = _nothing
        """Called when the socket is closed."""
        self._poller: SocketPoller | None = None
        self._read_size = _READ_SIZES[0]
        self.bytes_sent = 0
        self.bytes_received = 0
        self.close_reason = ""
        self.fault = ""
        """The reason why the peer was cut off; empty if it was not."""

    def __repr__(self) -> str:
        states = ((self._closed, "closed"), (self.is_closing, "closing"), (self.is_paused, "paused"), (True, "open"))
        return f"<SocketTransport {next(name for is_so, name in states if is_so)}, {len(self._backlog)} bytes waiting>"

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return len(self._backlog)

    def write(self, data: bytes) -> None:
        """Send ``data``, now or as soon as the peer takes it; dropped when closing."""
        if not self.is_closing:
            self._send(data if self._tls is None else self._tls.encrypt(data))

    def _send(self, data: bytes) -> None:
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
        self._backlog += memoryview(data)[sent:]
        if len(self._backlog) > self._high and not self.is_paused:
            self._pause(True)
        if len(self._backlog) > self._high + self.overflow:
            self.cut("the peer does not read our answers")

    def _pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        if is_paused:
            self.writable.clear()
        else:
            self.writable.set()
        self.on_pause()

    async def _flush(self) -> None:
        while self._backlog:
            try:
                await trio.lowlevel.wait_writable(self._socket)
                if self._closed:  # by the reader, in the pass in which this task became ready
                    return
                sent = self._socket.send(self._backlog)
            except (BlockingIOError, InterruptedError):
                continue
            except (trio.ClosedResourceError, OSError) as error:
                self._fail(error)
                return
            self.bytes_sent += sent
            del self._backlog[:sent]
            if self.is_paused and len(self._backlog) <= self._low:
                self._pause(False)
        if self._lingering:
            self._shut_down()
        elif self.is_closing:
            self._close_socket()

    def receive(self) -> bytes | None:
        """The next bytes of the peer: None while there are none to take in, b"" at its end or once the connection
        failed or was closed by us.

        While it is closing, what is returned is to be dropped.
        """
        tls = self._tls
        if self._closed or (tls is not None and tls.ended):
            return b""
        try:
            data = self._socket.recv(self._read_size)
        except (BlockingIOError, InterruptedError):
            return self._decrypt(tls, b"") if tls is not None and tls.has_unread else None
        except OSError as error:
            self._fail(error)
            return b""
        self.bytes_received += len(data)
        self._read_size = _READ_SIZES[len(data) == self._read_size]
        if self.is_closing:
            self._dropped += len(data)
            if self._dropped > _LINGER_BYTES:
                self._close_socket()
        elif tls is not None and data:
            plain = self._decrypt(tls, data)
            if plain is None:  # a record is incomplete
                return None
            data = plain
        if not data:
            self.close_reason = self.close_reason or "closed by the peer"
        return data

    async def read(self) -> bytes:
        """Wait for the next bytes of the peer, as `receive` returns them."""
        while not self._closed:
            try:
                if not self.has_unread:
                    await trio.lowlevel.wait_readable(self._socket)
            except (trio.ClosedResourceError, OSError) as error:
                self._fail(error)
            if (data := self.receive()) is not None:
                return data
        return b""

    @property
    def has_unread(self) -> bool:
        """True if there is something to receive that is in the socket no more."""
        return self._tls is not None and self._tls.has_unread

    def start_reading(self, poller: SocketPoller, read: Callable[[], None]) -> None:
        """Have ``read`` called when there is something to receive, until reading is stopped or the socket closed."""
        if not self._closed:
            self._poller = poller
            poller.add(self._socket, read)

    def stop_reading(self) -> None:
        """End, for now, what `start_reading` began."""
        if self._poller is not None:
            self._poller.remove(self._socket)
            self._poller = None

    def _decrypt(self, tls: TlsSession, data: bytes) -> bytes | None:
        """Plain bytes, b"" at the end of the session, None while a record is incomplete."""
        try:
            plain, answer = tls.decrypt(data)
        except TlsError as error:
            self._fail(error)
            return b""
        if answer and not self.is_closing:
            self._send(answer)
        return plain

    def _fail(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        self.abort(reason or type(error).__name__)

    def close(self, reason: str = "closed") -> None:
        """Stop writing, and close the socket once what waits is sent (or 5 seconds later)."""
        if self.is_closing:
            return
        self.close_reason = self.close_reason or reason
        self.is_closing = True
        if self._backlog:
            self._nursery.start_soon(self._close_later, _CLOSE_GRACE_SECONDS, name="rpc closer")
        else:
            self._close_socket()

    def half_close(self, reason: str, *, fault: bool) -> None:
        """Stop writing, tell the peer so once what waits is sent, and close the socket a second later at the latest.

        Until then, what the peer sends must be read, and dropped: a socket that is closed with bytes unread is reset,
        and the peer might never see why. With ``fault``, the connection counts as cut off.
        """
        if self.is_closing:
            return
        self.fault = reason if fault else self.fault
        self.close_reason = self.close_reason or reason
        self.is_closing = self._lingering = True
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
        self.is_closing = True
        if self._closed:
            return
        self._closed = True
        if self._tls is not None and not self._backlog:
            with contextlib.suppress(OSError):
                self._socket.send(self._tls.farewell())
        self.stop_reading()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._backlog.clear()
        if self.is_paused:
            self._pause(False)
        self.on_close()
        self.on_pause = self.on_close = _nothing  # whoever owns it has it, too: a cycle


def _nothing() -> None: ...
