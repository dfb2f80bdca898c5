"""h2's connection as gRPC needs it: it goes on after a GOAWAY, and takes in plain DATA frames by itself.

h2 makes an object of each frame, and a hexadecimal picture of it for a log that nobody reads. Nearly all that a gRPC
peer sends are DATA frames without flags on open streams: those are cut out here, and the windows that h2 keeps are
told. Whatever else there is about a frame is left to h2, from that frame on.
"""

from __future__ import annotations

import h2.events
from h2.connection import ConnectionState, H2Connection
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

    def receive_data(self, data: bytes) -> list[h2.events.Event]:  # type: ignore[override]
        """What the peer's bytes mean. Raises ProtocolError."""
        begun = self.incoming_buffer
        if begun._data or begun._headers_buffer:
            return super().receive_data(data)
        events: list[h2.events.Event] = []
        at = 0
        while (event := self._plain_data(data, at)) is not None:
            events.append(event)
            at += _HEADER + event.flow_controlled_length
        return events + super().receive_data(data[at:]) if at < len(data) else events

    def _plain_data(self, data: bytes, at: int) -> h2.events.DataReceived | None:
        """The frame that begins here, if it is one to be taken in without h2: all here, and as it should be."""
        if data[at + 3 : at + 5] != _KIND_AND_FLAGS or self.state_machine.state not in _OPEN:
            return None
        size = int.from_bytes(data[at : at + 3], "big")
        stream_id = int.from_bytes(data[at + 5 : at + _HEADER], "big") & 0x7FFFFFFF
        stream = self.streams.get(stream_id)
        if stream is None or stream._expected_content_length is not None:
            return None
        state = stream.state_machine
        if state.state not in _RECEIVING or not state.headers_received:
            return None
        window, stream_window = self._inbound_flow_control_window_manager, stream._inbound_window_manager
        allowed = min(self.max_inbound_frame_size, window.current_window_size, stream_window.current_window_size)
        end = at + _HEADER + size
        if not size or size > allowed or end > len(data):
            return None
        window.window_consumed(size)
        stream_window.window_consumed(size)
        event = h2.events.DataReceived(stream_id=stream_id)
        event.data = data[at + _HEADER : end]
        event.flow_controlled_length = size
        return event

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        """Go on: h2 would end the streams that are open."""
        event = h2.events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]
