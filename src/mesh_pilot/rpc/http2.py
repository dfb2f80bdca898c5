"""h2's connection as gRPC needs it: it goes on after a GOAWAY, and takes in plain DATA frames by itself.

h2 makes an object of each frame, and a hexadecimal picture of it for a log that nobody reads. Nearly all that a gRPC
peer sends are DATA frames without flags on open streams: those are cut out here, and the windows that h2 keeps are
told. All other frames are left to h2, one by one.
"""

from __future__ import annotations

import h2.events
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.exceptions import FrameTooLargeError
from h2.stream import StreamState
from hyperframe.frame import Frame, GoAwayFrame

__all__ = ["GrpcH2Connection"]

_HEADER = 9
_KIND_AND_FLAGS = b"\0\0"
"""Of a DATA frame that neither is padded nor ends its stream."""
_OPEN = (ConnectionState.CLIENT_OPEN, ConnectionState.SERVER_OPEN)
_RECEIVING = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)


class GrpcH2Connection(H2Connection):
    """One connection's HTTP/2 state."""

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self._begun = bytearray()
        """The beginning of a frame."""

    def receive_data(self, data: bytes | bytearray) -> list[h2.events.Event]:  # type: ignore[override]
        """What the peer's bytes mean. Raises ProtocolError."""
        if self._begun:
            self._refuse_too_large()
            self._begun += data
            data = self._begun
        at = self.incoming_buffer._preamble_len
        events = super().receive_data(data[:at]) if at else []
        while (end := _frame_end(data, at)) <= len(data):
            event = self._plain_data(data, at, end)
            if event is not None:
                events.append(event)
            else:
                events += super().receive_data(data[at:end])
            at = end
        if data is self._begun:
            del self._begun[:at]
        else:
            self._begun = bytearray(data[at:])
        return events

    def _refuse_too_large(self) -> None:
        """Refuse a frame that has begun by its size: h2 would take in all of it first, up to 16 MB."""
        size, most = _frame_end(self._begun, 0) - _HEADER, self.max_inbound_frame_size
        if len(self._begun) >= _HEADER and size > most:
            self._terminate_connection(FrameTooLargeError.error_code)
            raise FrameTooLargeError(f"Received overlong frame: length {size}, max {most}")

    def _plain_data(self, data: bytes | bytearray, at: int, end: int) -> h2.events.DataReceived | None:
        """The frame that stands here, if it is one to be taken in without h2, and as it should be."""
        if data[at + 3 : at + 5] != _KIND_AND_FLAGS or self.state_machine.state not in _OPEN:
            return None
        if self.incoming_buffer._headers_buffer:
            return None
        size = end - at - _HEADER
        stream_id = int.from_bytes(data[at + 5 : at + _HEADER], "big") & 0x7FFFFFFF
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
    """Where a frame ends that begins here; beyond the data where its size is not known yet."""
    if len(data) < at + _HEADER:
        return len(data) + 1
    return at + _HEADER + int.from_bytes(data[at : at + 3], "big")
