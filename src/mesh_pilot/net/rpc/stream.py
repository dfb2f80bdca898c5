"""One HTTP/2 stream that has an owner: the handler of a server's call, or a client's call."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from mesh_pilot.net.rpc.inbox import TURNS, Inbox, Signal
from mesh_pilot.net.rpc.outbound import Headers, Outbound

__all__ = ["Http2Stream"]

_SEND_CHUNK = 256 * 1024
"""Bytes of one message handed to the transport between looks at its high mark."""

_USEFUL_WINDOW = 1024
"""A window smaller than this and than what is to be sent is not used at once (RFC 9113, 10.5: tiny windows)."""
_TINY_WINDOW_SECONDS = 0.1
"""The time that a stream waits for a useful window before it sends as much as a tiny one allows."""


class Http2Stream:
    """The wire of one call.

    Mutable state: what either side may still do (``receives``, ``sends``), what has arrived, and how it ended.
    """

    def __init__(self, connection: Outbound, stream_id: int, inbox: Inbox) -> None:
        self.id = stream_id
        self.connection = connection
        self.h2 = connection.h2.streams[stream_id]
        self.inbox = inbox
        self.receives = False
        """True while the peer may send DATA: its HEADERS have come and its end has not."""
        self.sends = True
        """True while we may."""
        self.window = connection.limits.stream_window
        """Bytes of DATA that the peer may send as far as it knows."""
        self.owed = 0
        """Bytes that it may send on top, and has not been told of."""
        self.has_length = False
        """True if the peer's headers say how many bytes of DATA follow."""
        self.headers: Headers | None = None
        """The headers that answered ours."""
        self.trailers: Headers | None = None
        self.terminated: StreamTerminatedError | None = None
        self.on_terminated: Callable[[], None] | None = None
        self.on_retiring: Callable[[], None] | None = None
        self.is_retiring = False
        """True once the connection is to end: the call, which may not have begun yet, should end soon."""
        self.mid_message = False
        """True while a message is sent in part: only a reset can follow."""
        self._sends = 1
        self._awaited_window = 1
        self._window_updated = Signal()

    def __repr__(self) -> str:
        may = [name for name, does in (("receives", self.receives), ("sends", self.sends)) if does]
        return f"<Http2Stream {self.id}, {self.terminated or ' and '.join(may) or 'ended'}>"

    def terminate(self, error: StreamTerminatedError) -> None:
        """Raise ``error`` in the tasks that wait for this stream."""
        if self.terminated is not None:
            return
        self.terminated = error
        self.receives = self.sends = False
        self.inbox.fail(error)
        self._window_updated.set()
        if self.on_terminated is not None:
            self.on_terminated()

    def retire(self) -> None:
        """Have the call end soon, on its own."""
        self.is_retiring = True
        if self.on_retiring is not None:
            self.on_retiring()

    def send_headers(self, headers: Headers, *, end_stream: bool = False) -> None:
        """Queue a HEADERS frame, to leave with what is sent next. Raises StreamTerminatedError."""
        if not self.sends:
            raise self._closed()
        try:
            self.connection.send_headers(self.id, headers, end_stream=end_stream)
        except ProtocolError as error:
            raise self._closed() from error
        self.sends = not end_stream

    def answer(self, headers: Headers) -> None:
        """As a server, end the stream with ``headers``, and have the client stop sending. Never waits.

        Raises StreamTerminatedError.
        """
        self.send_headers(headers, end_stream=True)
        self.reset_if_open(ErrorCodes.NO_ERROR)
        self.connection.flush()

    def reset_if_open(self, error_code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Send RST_STREAM unless both sides have ended; never waits."""
        self.sends = self.receives = False
        if not self.connection.transport.is_closing and not self.h2.closed:
            self.connection.reset(self.id, error_code)

    def send_at_once(self, message: bytes, *, flush: bool) -> bool:
        """Send a message if that needs no waiting; False: nothing was done, and it is for :meth:`send_data`."""
        connection = self.connection
        if (
            not (self.sends and self._sends % TURNS)
            or len(message) > _SEND_CHUNK
            or connection.transport.is_paused
            or not connection.send_message(self.h2, message)
        ):
            return False
        self._sends += 1
        if flush:
            connection.flush()
        return True

    async def send_data(self, data: bytes, *, end_stream: bool = False, flush: bool = True) -> None:
        """Send ``data`` in as many frames as the windows and the transport take, waiting for them.

        With ``flush`` off the last frames leave with what is sent next. Raises StreamTerminatedError. If cancelled, a
        part of ``data`` may be sent: ``mid_message``.
        """
        if not self._sends % TURNS:
            await trio.lowlevel.checkpoint()
        self._sends += 1
        connection = self.connection
        rest: bytes | memoryview = data
        tiny = False
        while True:
            while connection.transport.is_paused:
                await connection.transport.writable.wait()
            if not self.sends:
                raise self._closed()
            size, window = len(rest), connection.window_for(self.h2)
            if size <= window and size <= _SEND_CHUNK:
                break
            useful = min(size, _USEFUL_WINDOW)
            if window < useful and not (tiny and window > 0):
                connection.flush()
                tiny = await self._wait_for_window(useful if window > 0 else 1)
                continue
            tiny = False
            rest, count = memoryview(rest), min(window, _SEND_CHUNK)
            connection.send_data(self.h2, rest[:count])
            connection.flush()
            self.mid_message = True
            rest = rest[count:]
        connection.send_data(self.h2, rest)
        self.mid_message = False
        if end_stream:
            self.sends = False
            connection.end_stream(self.id)
        if flush:
            connection.flush()

    async def _wait_for_window(self, size: int) -> bool:
        """Wait until ``size`` bytes may be sent; True when that takes too long, though some may be.

        The wait for a closed window (``size`` 1) takes as long as it takes.
        """
        self._awaited_window = size
        self._window_updated.clear()
        with trio.move_on_after(math.inf if size == 1 else _TINY_WINDOW_SECONDS) as patience:
            await self._window_updated.wait()
        return patience.cancelled_caught

    def window_changed(self) -> None:
        """Wake the task that waits for the window, if the window is now useful."""
        if self.connection.window_for(self.h2) >= self._awaited_window:
            self._window_updated.set()

    def _closed(self) -> StreamTerminatedError:
        return self.terminated or StreamTerminatedError("the stream is closed")
