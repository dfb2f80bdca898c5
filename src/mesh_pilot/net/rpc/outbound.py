"""The sending half of an HTTP/2 connection: frames in the order in which they were made, in as few writes as may be.

h2 makes all frames but those of DATA, WINDOW_UPDATE and GOAWAY (``http2`` says why). What it has made is taken from it
at once, so that one queue has the order on which HPACK's tables and the peer rely. A frame waits there until somebody
flushes: headers leave with the first message, and the answer to a SETTINGS frame with the reply to what came behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.stream import H2Stream
from hyperframe.frame import Frame, GoAwayFrame, WindowUpdateFrame

from mesh_pilot.net.rpc.budget import BYTES_PER_UNIT, UNITS_PER_MESSAGE, UNITS_PER_RECEIVED, FrameBudget
from mesh_pilot.net.rpc.codec import PREFIX
from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["Headers", "Outbound"]

Headers = list[tuple[str, str]]
Receive = Callable[..., Any]

_CONFIGURATIONS = {
    client_side: H2Configuration(
        client_side=client_side,
        header_encoding="utf-8",
        validate_inbound_headers=False,
        validate_outbound_headers=False,
        normalize_inbound_headers=False,
        normalize_outbound_headers=False,
    )
    for client_side in (True, False)
}


class _H2(H2Connection):
    MAX_CLOSED_STREAMS = 1024
    """Streams whose end is remembered, for frames of theirs that were on their way."""

    @property
    def _frame_dispatch_table(self) -> dict[type[Frame], Receive]:
        """The method for each kind of frame that h2 is shown. Kept, as h2 does, it takes 1.4 KB, and is a cycle that
        keeps a closed connection until a collection."""
        return _Receivers(self)

    @_frame_dispatch_table.setter
    def _frame_dispatch_table(self, table: dict[type[Frame], Receive]) -> None:
        if not _RECEIVERS:
            _RECEIVERS.update((kind, method.__name__) for kind, method in table.items())


_RECEIVERS: dict[type[Frame], str] = {}
"""The names of these methods, which are the same for all connections."""


class _Receivers(dict[type[Frame], Receive]):
    """The methods of a connection by kind of frame, each bound when looked up. Raises KeyError, as a table does."""

    def __init__(self, connection: _H2) -> None:
        self._connection = connection

    def __missing__(self, kind: type[Frame]) -> Receive:
        method: Receive = getattr(self._connection, _RECEIVERS[kind])
        return method


class Outbound:
    """The sending half of a connection. Mutable state: h2's, the frames for the next write, and counts."""

    def __init__(self, transport: SocketTransport, limits: Limits, *, client_side: bool) -> None:
        self.transport = transport
        self.limits = limits
        self.budget = FrameBudget(limits.frame_rate, limits.frame_burst)
        """The peer's: what we send to it earns what its answers cost."""
        self.messages_received = self.messages_sent = 0
        self.h2 = _H2(_CONFIGURATIONS[client_side])
        self._queued: list[bytes | memoryview] = []

    def send_headers(self, stream_id: int, headers: Headers, *, end_stream: bool) -> None:
        """Queue HEADERS. Raises ProtocolError."""
        self.h2.send_headers(stream_id, headers, end_stream=end_stream)
        self.take_from_h2()

    def window_for(self, stream: H2Stream) -> int:
        """Bytes that may be sent on a stream; less than 0 after some changes of settings."""
        return min(self.h2.outbound_flow_control_window, stream.outbound_flow_control_window)

    def send_data(self, stream: H2Stream, data: bytes | memoryview) -> None:
        """Queue ``data``, which fits the windows, in frames of the size that the peer accepts."""
        size, most = len(data), self.h2.max_outbound_frame_size
        stream.outbound_flow_control_window -= size
        self.h2.outbound_flow_control_window -= size
        self.budget.sent(size)
        if size <= most:
            if size:
                self._queued += (_data_head(size, stream.stream_id), data)
            return
        rest = memoryview(data)
        for start in range(0, size, most):
            piece = rest[start : start + most]
            self._queued += (_data_head(len(piece), stream.stream_id), piece)

    def send_message(self, stream: H2Stream, message: bytes) -> bool:
        """Queue a message with its prefix as one frame; False if it does not fit a frame, or the windows."""
        h2, length = self.h2, len(message)
        size = length + PREFIX.size
        if size > min(stream.outbound_flow_control_window, h2.outbound_flow_control_window, h2.max_outbound_frame_size):
            return False
        stream.outbound_flow_control_window -= size
        h2.outbound_flow_control_window -= size
        self.budget.tokens += size / BYTES_PER_UNIT  # as ``sent`` does, which nearly each message would call
        # The frame's size, type and flags, stream; not compressed, the message's length: 3, 2, 4; 1, 4 bytes.
        head = size << 88 | stream.stream_id << 40 | length
        self._queued += (head.to_bytes(14, "big"), message)
        return True

    def end_stream(self, stream_id: int) -> None:
        """Queue an empty DATA frame that ends a stream."""
        self.h2.end_stream(stream_id)
        self.take_from_h2()

    def send_window_update(self, stream_id: int, increment: int) -> None:
        """Let the peer send more."""
        self._queued.append(WindowUpdateFrame(stream_id, increment).serialize())
        self.flush()

    def reset(self, stream_id: int, error_code: ErrorCodes) -> None:
        """Reset a stream that is open."""
        self.h2.reset_stream(stream_id, error_code=error_code)
        self.take_from_h2()
        self.flush()

    def ping(self) -> None:
        """Send a PING."""
        self.h2.ping(b"mesh-ppl")
        self.take_from_h2()
        self.flush()

    def send_goaway(self, last_stream_id: int | None = None) -> None:
        """Tell the peer to open no more streams; the open ones go on.

        ``last_stream_id`` is the last one that is served; None: the last that has arrived.
        """
        last = self.h2.highest_inbound_stream_id if last_stream_id is None else last_stream_id
        self._queued.append(GoAwayFrame(0, last_stream_id=last, error_code=ErrorCodes.NO_ERROR).serialize())
        self.flush()

    def take_from_h2(self) -> None:
        """Queue what h2 has made."""
        if made := self.h2.data_to_send():
            self._queued.append(made)

    def note_sent(self) -> None:
        """A message was sent whole."""
        self.messages_sent += 1
        self.budget.tokens += UNITS_PER_MESSAGE

    def note_received(self) -> None:
        """A message was received whole."""
        self.messages_received += 1
        self.budget.tokens += UNITS_PER_RECEIVED

    @property
    def has_unsent(self) -> bool:
        """True if anything is ready to be flushed."""
        return bool(self._queued)

    def flush(self) -> None:
        """Send all that is ready, in one piece."""
        if self._queued:
            data = b"".join(self._queued)
            self._queued.clear()
            self.transport.write(data)


def _data_head(size: int, stream_id: int) -> bytes:
    """The head of a DATA frame without flags: size, type, flags and stream are 3, 1, 1 and 4 bytes."""
    return (size << 48 | stream_id).to_bytes(9, "big")
