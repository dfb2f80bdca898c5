"""h2's connection, adapted to gRPC: it continues after a GOAWAY and parses plain DATA frames itself.

h2 makes an object of each frame, and a hexadecimal picture of it for a log that nobody reads. Nearly all that a gRPC
peer sends are DATA frames without flags on open streams: those are cut out here, and the windows that h2 keeps are
told. All other frames are left to h2, one by one, once the connection's budget has paid for them.

Frames are taken in by slices of bounded work, so that the owner of the connection can let others run in between.
"""

from __future__ import annotations

from typing import NoReturn

import h2.events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection
from h2.exceptions import FrameTooLargeError, ProtocolError
from h2.stream import StreamState
from hyperframe.frame import Frame, GoAwayFrame

from mesh_pilot.net.rpc.budget import SMALL_DATA, EnhanceYourCalm, FrameBudget, FrameKind, price

__all__ = ["GrpcH2Connection"]

_HEADER = 9
_KIND_AND_FLAGS = b"\0\0"
"""Of a DATA frame that neither is padded nor ends its stream."""
_ACK = _END_STREAM = 0x1
_NAMES = {kind.value: kind.name for kind in FrameKind}
_OPEN = (ConnectionState.CLIENT_OPEN, ConnectionState.SERVER_OPEN)
_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)

_MAX_BLOCK = 32 * 1024
"""Bytes of a header block, compressed; uncompressed, MAX_HEADER_LIST_SIZE bounds it."""
_MAX_SETTINGS = 64 * 6
"""Bytes of SETTINGS; there are less than ten settings, nghttp2 takes 32."""
_MAX_OTHER = 16 * 1024
"""Bytes of frames of other types but DATA."""

_PLAIN_WORK = 0.25
_HEADERS_WORK = 6
"""Units of work, as of the budget, that DATA and HEADERS are though they cost nothing."""


class GrpcH2Connection(H2Connection):
    """One connection's HTTP/2 state."""

    MAX_CLOSED_STREAMS = 1024
    """Streams whose end is remembered, for frames of theirs that were on their way."""

    def __init__(self, config: H2Configuration, budget: FrameBudget | None = None) -> None:
        super().__init__(config)
        self._budget = budget
        self._waiting: bytes | bytearray = b""
        """Bytes fed and not processed: frames from ``_at`` on, the last of them perhaps incomplete."""
        self._at = 0
        self._block_size = 0
        """Of the header block that has begun."""

    def receive_data(self, data: bytes | bytearray) -> list[h2.events.Event]:  # type: ignore[override]
        """The events in the peer's bytes. Raises ProtocolError."""
        self.feed(data)
        events, _ = self.take_in(None, 0.0)
        return events

    def feed(self, data: bytes | bytearray) -> None:
        """Have ``data`` of the peer taken in."""
        if not self._waiting:
            self._waiting = data
        elif isinstance(self._waiting, bytearray):
            self._waiting += data
        else:
            self._waiting = bytearray(self._waiting) + data

    def take_in(self, work: float | None, now: float) -> tuple[list[h2.events.Event], bool]:
        """The events of frames, up to ``work`` units of about 20 µs (None: all), and whether frames are left.

        ``now`` is the time by which the budget counts. Raises ProtocolError, EnhanceYourCalm among them.
        """
        data, at = self._waiting, 0
        left = float("inf") if work is None else work
        events: list[h2.events.Event] = []
        if self.incoming_buffer._preamble_len:
            at = min(self.incoming_buffer._preamble_len, len(data))
            events = super().receive_data(data[:at])
        end = _frame_end(data, at)
        while left > 0 and end <= len(data):
            event = self._plain_data(data, at, end)
            if event is not None:
                size = end - at - _HEADER
                if size < SMALL_DATA:
                    self.spend(1, "small DATA", now)
                left -= _PLAIN_WORK
                events.append(event)
            else:
                left -= self._charge(data, at, end, now)
                events += super().receive_data(data[at:end])
            at, end = end, _frame_end(data, end)
        if not at:
            self._refuse_too_large(data, at)
        more = end <= len(data)
        if at:
            if at == len(data):
                self._waiting = b""
            elif isinstance(data, bytearray):
                del data[:at]
            else:
                self._waiting = data[at:]
        return events, more

    def _refuse_too_large(self, data: bytes | bytearray, at: int) -> None:
        """Refuse a frame that has begun by its size: h2 would take in all of it first, up to 16 MB."""
        if len(data) < at + _HEADER:
            return
        size, kind = _frame_end(data, at) - at - _HEADER, data[at + 3]
        if kind == FrameKind.DATA:
            most = self.max_inbound_frame_size
        elif kind in (FrameKind.HEADERS, FrameKind.CONTINUATION):
            most = _MAX_BLOCK
        else:
            most = _MAX_SETTINGS if kind == FrameKind.SETTINGS else _MAX_OTHER
        if size > most:
            self._refuse(FrameTooLargeError(f"Received overlong frame: length {size}, max {most}"))

    def _refuse(self, error: ProtocolError) -> NoReturn:
        """End the connection with a GOAWAY that says why, and raise ``error``."""
        frame = GoAwayFrame(0)
        frame.last_stream_id = self.highest_inbound_stream_id
        frame.error_code = error.error_code
        if isinstance(error, EnhanceYourCalm):
            frame.additional_data = str(error).encode()
        self.state_machine.process_input(ConnectionInputs.SEND_GOAWAY)
        self._prepare_for_sending([frame])
        raise error

    def spend(self, units: float, what: str, now: float) -> None:
        """Have the budget pay for ``what``. Raises EnhanceYourCalm, with a GOAWAY ready to be sent."""
        if self._budget is not None:
            try:
                self._budget.spend(units, what, now)
            except EnhanceYourCalm as error:
                self._refuse(error)

    def _charge(self, data: bytes | bytearray, at: int, end: int, now: float) -> float:
        """Have the budget pay for the frame that stands here; return how much work it is."""
        self._refuse_too_large(data, at)
        kind, flags, size = data[at + 3], data[at + 4], end - at - _HEADER
        if kind in (FrameKind.HEADERS, FrameKind.CONTINUATION):
            self._block_size = size if kind == FrameKind.HEADERS else self._block_size + size
            if self._block_size > _MAX_BLOCK:
                self._refuse(EnhanceYourCalm(f"a header block of more than {_MAX_BLOCK} bytes"))
        if kind == FrameKind.DATA:
            stream = self.streams.get(_stream_id(data, at))
            ends = flags == _END_STREAM and stream is not None and stream.state_machine.state in _RECEIVING
            units = 0.0 if ends else 1.0
        else:
            units = price(kind, size, ack=bool(flags & _ACK), streams=len(self.streams))
        if units:
            self.spend(units, _NAMES.get(kind, "unknown"), now)
        return (_HEADERS_WORK if kind == FrameKind.HEADERS else 1.0) + units

    def _plain_data(self, data: bytes | bytearray, at: int, end: int) -> h2.events.DataReceived | None:
        """The frame that stands here, if it is one to be taken in without h2, and as it should be."""
        if data[at + 3 : at + 5] != _KIND_AND_FLAGS or self.state_machine.state not in _OPEN:
            return None
        if self.incoming_buffer._headers_buffer:
            return None
        size = end - at - _HEADER
        stream_id = _stream_id(data, at)
        stream = self.streams.get(stream_id)
        if stream is None or stream._expected_content_length is not None:
            return None
        state = stream.state_machine
        if state.state not in _RECEIVING or not state.headers_received:
            return None
        window, stream_window = self._inbound_flow_control_window_manager, stream._inbound_window_manager
        allowed = min(self.max_inbound_frame_size, window.current_window_size, stream_window.current_window_size)
        if not 0 < size <= allowed:
            return None
        window.window_consumed(size)
        stream_window.window_consumed(size)
        event = h2.events.DataReceived(stream_id=stream_id)
        event.data = bytes(data[at + _HEADER : end])
        event.flow_controlled_length = size
        return event

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        """Go on: h2 would end the streams that are open."""
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]


def _frame_end(data: bytes | bytearray, at: int) -> int:
    """The end of the frame that begins here; beyond the data if its size is not known yet."""
    if len(data) < at + _HEADER:
        return len(data) + 1
    return at + _HEADER + int.from_bytes(data[at : at + 3], "big")


def _stream_id(data: bytes | bytearray, at: int) -> int:
    return int.from_bytes(data[at + 5 : at + _HEADER], "big") & 0x7FFFFFFF
