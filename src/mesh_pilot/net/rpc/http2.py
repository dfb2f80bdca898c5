"""HTTP/2 for gRPC: bytes of the peer in; streams, and the owner of the connection, are told what they mean.

Why h2 does not see DATA
========================

h2 knows HTTP/2 by heart: which frame may follow which, header blocks, settings, how streams end, what to answer to one
that does not. All that is left to it, once the connection's budget has paid. But it makes objects and an event of each
frame, runs two state machines, and draws a hexadecimal picture for an unused log: 6 µs for a DATA frame that says no
more than "these bytes are that stream's", which takes 1 µs here. A turn with a proxy is one DATA frame out and one in,
and 12 of its 18 µs are the kernel's and Trio's. So DATA and WINDOW_UPDATE of streams that have an owner are ours, and
no object is made of them.

Two states of one connection may drift apart, so each fact has one home. The *inbound* windows are ours: h2 is shown no
payload, and its own inbound windows stay as they began. The *outbound* windows are h2's, because SETTINGS change them:
we subtract what we send, and add what WINDOW_UPDATE says (``outbound_flow_control_window`` of connection and stream).
Whether a stream is open is h2's: a DATA frame that ends its stream, or is for none that has an owner, is shown to h2
without its payload. A GOAWAY is never shown, because h2 ends all streams at it; gRPC continues with them (RFC 9113,
6.8). ``tests/rpc/test_rpc_h2.py`` lists what this needs of h2's inside and names what a new version has changed.

Alternatives lose: with all of it left to h2 a turn costs half as much again; without h2, on hpack and hyperframe alone,
there would be 500 lines more of the kind that others' security advisories are about.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Protocol

import h2.events
import trio
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, FlowControlError, FrameTooLargeError, ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings

from mesh_pilot.net.rpc.budget import MAX_BLOCK, SMALL_DATA, EnhanceYourCalm, FrameKind, largest, price
from mesh_pilot.net.rpc.errors import ConnectionLost, StreamReset
from mesh_pilot.net.rpc.inbox import Inbox, Signal
from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.outbound import Headers, Outbound
from mesh_pilot.net.rpc.statistics import ConnectionStatistics
from mesh_pilot.net.rpc.stream import Http2Stream
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["MAX_HEADER_LIST_SIZE", "Http2", "Owner"]

_HEAD = struct.Struct(">HBBBL")
"""The head of a frame: its size in two parts, type, flags, and stream behind a reserved bit."""
_HEAD_SIZE = _HEAD.size
_MAX_31 = 2**31 - 1
_PREFACE_SIZE = 24
_ACK = _END_STREAM = 0x1
_END_HEADERS, _PADDED = 0x4, 0x8
_LARGEST_DATA = largest(FrameKind.DATA)
_NAMES = {kind.value: kind.name for kind in FrameKind}
_BLOCK_KINDS = (FrameKind.HEADERS, FrameKind.PUSH_PROMISE, FrameKind.CONTINUATION)

_USEFUL_CREDIT = 1024
"""Bytes that are handed back at once to a peer whose window is closed."""

MAX_HEADER_LIST_SIZE = 16 * 1024
"""Bytes of the headers of one request, uncompressed, with 32 for each of them; gRPC's own default is 8 KB."""

_MAX_DECODED_HEADERS = 64 * 1024
"""Bytes of headers, likewise, that end the connection. Fewer are taken in, so that their call can be refused."""

_PLAIN_WORK = 0.25
_HEADERS_WORK = 6
_MESSAGE_WORK = 2
"""Units of work, as of the budget, that DATA, HEADERS and messages taken at once are though they cost nothing."""


class Owner(Protocol):
    """Whoever is told what does not concern one stream alone."""

    def accept(self, stream: Http2Stream, headers: Headers) -> None:
        """The peer has opened a stream, which must be released in the end."""

    def goaway(self, last_stream_id: int) -> None:
        """The peer wants no more streams, and answers none of ours above ``last_stream_id``."""


class Http2(Outbound):
    """One connection: whoever reads the transport feeds it.

    Mutable state, on top of the sending half's: the streams that have an owner, the peer's bytes that are not whole
    frames yet, and the inbound window with what the peer is owed of it.
    """

    def __init__(
        self,
        owner: Owner,
        transport: SocketTransport,
        limits: Limits,
        *,
        client_side: bool,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """Make preface and settings ready; a client's are to be flushed, a server's client may be one of HTTP/1.

        The limits hold from the start, not from the peer's acknowledgement.
        """
        super().__init__(transport, limits, client_side=client_side)
        self.streams: dict[int, Http2Stream] = {}
        self.streams_started = 0
        self.stream_released = Signal()
        self.settings_received = Signal()
        self.ping_acknowledged = Signal()
        self._owner = owner
        self._clock = clock
        self._client_side = client_side
        self._window = limits.connection_window
        self._owed = 0
        # What all inboxes together may owe must stay below the window, or the peer would wait forever.
        share = limits.connection_window // (4 * limits.max_concurrent_streams)
        self._credit_batch = max(1, min(limits.stream_window // 8, share))
        self._waiting: bytes | bytearray = b""
        self._preface_left = 0 if client_side else _PREFACE_SIZE
        self._in_block = False
        """True between HEADERS and the end of their block."""
        self._block_size = 0
        self._seen = 0
        """Bytes that had come when life was looked for last."""
        self._is_pinged = False
        self._begin()

    def __repr__(self) -> str:
        return f"<Http2 on {self.transport!r}, {len(self.streams)} streams>"

    def _begin(self) -> None:
        sent, in_force = _settings(self.limits, self._client_side)
        self.h2.decoder.max_header_list_size = _MAX_DECODED_HEADERS
        self.h2.local_settings = sent
        self.h2.remote_settings = _peer_settings(not self._client_side, ())
        self.h2.max_inbound_frame_size = largest(FrameKind.DATA)
        self.h2.initiate_connection()
        self.h2.local_settings = in_force
        initial = self.h2.inbound_flow_control_window
        if self._window > initial:
            self.h2.increment_flow_control_window(self._window - initial)
        self.take_from_h2()

    def statistics(self, peer: str, *, draining: bool) -> ConnectionStatistics:
        """How the connection is doing."""
        return ConnectionStatistics(
            peer=peer,
            streams_open=len(self.streams),
            streams_total=self.streams_started,
            messages_received=self.messages_received,
            messages_sent=self.messages_sent,
            bytes_received=self.transport.bytes_received,
            bytes_sent=self.transport.bytes_sent,
            bytes_waiting=self.transport.waiting_bytes,
            draining=draining,
        )

    def feed(self, data: bytes) -> None:
        """Have ``data`` of the peer taken in."""
        if not self._waiting:
            self._waiting = data
        elif isinstance(self._waiting, bytearray):
            self._waiting += data
        else:
            self._waiting = bytearray(self._waiting) + data

    def take_in(self, work: float = math.inf) -> bool:
        """Take in frames that are whole, up to ``work`` units of about 20 µs; True if more are left.

        What there is to answer is to be flushed then. What is not HTTP/2, or too much of it, is answered with a GOAWAY
        and closes the connection.
        """
        data, at, total = self._waiting, 0, len(self._waiting)
        is_whole = False
        try:
            if self._preface_left and data:
                at = min(self._preface_left, total)
                self._preface_left -= at
                self._show_h2(data[:at])
            while at + _HEAD_SIZE <= total:
                high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
                size = high << 8 | low
                if size > (largest(kind) if kind else _LARGEST_DATA):  # said by the head: what follows may be 16 MB
                    raise FrameTooLargeError(f"Received overlong frame: length {size}, max {largest(kind)}")
                end = at + _HEAD_SIZE + size
                is_whole = end <= total
                if not is_whole or work <= 0:
                    break
                payload = bytes(data[at + _HEAD_SIZE : end])
                if kind or self._in_block:
                    work -= self._take_frame(kind, flags, stream_id & _MAX_31, payload, data[at : at + _HEAD_SIZE])
                else:
                    work -= self._take_data(flags, stream_id & _MAX_31, payload)
                if self.transport.is_closing:
                    return False
                at, is_whole = end, False
        except (ProtocolError, UnicodeDecodeError) as error:
            self._fail(error)
            return False
        if at == total:
            self._waiting = b""
        elif isinstance(data, bytearray):
            del data[:at]
        elif at:
            self._waiting = data[at:]
        return is_whole

    def _take_data(self, flags: int, stream_id: int, payload: bytes) -> float:
        """Take in a DATA frame; returns its work."""
        size = len(payload)
        self._window -= size
        stream = self.streams.get(stream_id)
        if self._window < 0:
            raise FlowControlError("Flow control window shrunk below 0")
        if stream is None or not stream.receives:
            return self._take_stray_data(flags, stream_id, size)
        stream.window -= size
        if stream.window < 0:
            raise FlowControlError("Flow control window shrunk below 0")
        if flags or stream.has_length:
            return self._take_special_data(flags, stream, payload)
        if size < SMALL_DATA:
            self._charge(1, "small DATA" if size else "DATA")
        return _PLAIN_WORK + stream.inbox.add(payload, size) * _MESSAGE_WORK

    def _take_special_data(self, flags: int, stream: Http2Stream, payload: bytes) -> float:
        """DATA that is padded, or ends its stream, or whose length the headers have said."""
        data, units = payload, 0.0 if flags == _END_STREAM else 1.0
        if units:
            self._charge(units, "DATA")
        if flags & _PADDED:
            if not payload or payload[0] >= len(payload):
                raise ProtocolError("Received frame with invalid padding.")
            data = payload[1 : len(payload) - payload[0]]
        stream.h2._track_content_length(len(data), bool(flags & _END_STREAM))
        taken = stream.inbox.add(data, len(payload))
        if flags & _END_STREAM:
            self._show_h2(_empty_data(_END_STREAM, stream.id))
        return 1.0 + units + taken * _MESSAGE_WORK

    def _take_stray_data(self, flags: int, stream_id: int, size: int) -> float:
        """DATA for no stream that takes it: h2 knows if it was on its way when the stream ended, and answers, or else
        raises."""
        self._charge(1, "DATA")
        self._show_h2(_empty_data(flags & _END_STREAM, stream_id))
        self._credit(stream_id, size)
        return 2.0

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes, head: bytes | bytearray) -> float:
        """Take in another frame, or what stands amid a header block where it may not; returns its work."""
        size = len(payload)
        if kind in _BLOCK_KINDS:
            self._block_size = size + (self._block_size if kind == FrameKind.CONTINUATION else 0)
            if self._block_size > MAX_BLOCK:
                raise EnhanceYourCalm(f"a header block of more than {MAX_BLOCK} bytes")
        units = price(kind, size, ack=bool(flags & _ACK), streams=len(self.h2.streams))
        if units:
            self._charge(units, _NAMES.get(kind, "unknown"))
        # Amid a header block any other frame is an error (RFC 9113, 6.2), so h2 must see even those that are ours.
        if kind == FrameKind.WINDOW_UPDATE and not self._in_block and self._widen(stream_id, payload):
            pass
        elif kind == FrameKind.GOAWAY and not (self._in_block or stream_id or size < 8):
            self._owner.goaway(int.from_bytes(payload[:4], "big") & _MAX_31)
        elif kind == FrameKind.SETTINGS and not flags & _ACK and not self._in_block:
            self._take_settings(head + payload)
        else:
            self._show_h2(head + payload)
        if kind in _BLOCK_KINDS:
            self._in_block = not flags & _END_HEADERS
        return units + (_HEADERS_WORK if kind == FrameKind.HEADERS else 1)

    def _take_settings(self, frame: bytes | bytearray) -> None:
        """Have h2 change the peer's settings, of which most peers have the same: those are shared."""
        is_client = not self._client_side
        self.h2.remote_settings = _new_settings(is_client, tuple(self.h2.remote_settings.items()))
        self._show_h2(frame)
        self.h2.remote_settings = _peer_settings(is_client, tuple(self.h2.remote_settings.items()))

    def _widen(self, stream_id: int, payload: bytes) -> bool:
        """Open an outbound window. False leaves it to h2: the frame is wrong, or for no stream with an owner."""
        increment = int.from_bytes(payload, "big") & _MAX_31
        stream = self.streams.get(stream_id)
        if len(payload) != 4 or not increment or (stream_id and (stream is None or stream.h2.closed)):
            return False
        widened = self.h2 if stream is None else stream.h2
        if widened.outbound_flow_control_window + increment > _MAX_31:
            return False
        widened.outbound_flow_control_window += increment
        self._windows_changed(self.streams.values() if stream is None else (stream,))
        return True

    @staticmethod
    def _windows_changed(streams: Iterable[Http2Stream]) -> None:
        for stream in streams:
            stream.window_changed()

    def _show_h2(self, data: bytes | bytearray) -> None:
        """Have h2 take in a frame, and tell of what it means. Raises ProtocolError; h2 has made a GOAWAY then."""
        events = self.h2.receive_data(data)
        self.take_from_h2()
        for event in events:
            self._tell(event)

    def _tell(self, event: h2.events.Event) -> None:
        """Pass an event to whom it concerns; events without meaning for gRPC are dropped."""
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        headers: Headers = getattr(event, "headers", [])
        match event:
            case h2.events.RequestReceived():
                stream = self._register(event.stream_id)
                self._receive_headers(stream, headers)
                self._owner.accept(stream, headers)
            case h2.events.RemoteSettingsChanged():
                self.settings_received.set()
                if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
                    self._windows_changed(self.streams.values())
            case h2.events.PingAckReceived():
                self.ping_acknowledged.set()
            case _ if stream is None:
                pass
            case h2.events.ResponseReceived():
                stream.headers = headers
                self._receive_headers(stream, headers)
            case h2.events.TrailersReceived():
                stream.trailers = headers
            case h2.events.StreamEnded():
                stream.receives = False
                stream.inbox.eof()
            case h2.events.StreamReset():
                stream.terminate(StreamReset(event.error_code or 0))

    @staticmethod
    def _receive_headers(stream: Http2Stream, headers: Headers) -> None:
        stream.receives = True
        stream.has_length = any(name == "content-length" for name, _ in headers)

    def _charge(self, units: float, what: str) -> None:
        self.budget.spend(units, what, self._clock())

    def spend(self, units: float, what: str) -> None:
        """Charge the peer's budget; a peer that exceeds it is sent a GOAWAY, and the connection closes."""
        if not self.transport.is_closing:
            try:
                self._charge(units, what)
            except EnhanceYourCalm as error:
                self._fail(error)

    def _credit(self, stream_id: int, size: int) -> None:
        """Let the peer send ``size`` bytes more. It is told when they are half a window, or its window is closed."""
        self._owed += size
        if self._owed >= self.limits.connection_window // 2 or (self._window <= 0 and self._owed > _USEFUL_CREDIT):
            self.send_window_update(0, self._owed)
            self._window, self._owed = self._window + self._owed, 0
        stream = self.streams.get(stream_id)
        if stream is not None and stream.receives:
            stream.owed += size
            if stream.owed >= self.limits.stream_window // 2 or (stream.window <= 0 and stream.owed > _USEFUL_CREDIT):
                self.send_window_update(stream_id, stream.owed)
                stream.window, stream.owed = stream.window + stream.owed, 0

    def open(self, headers: Headers, *, end_stream: bool) -> Http2Stream | None:
        """As a client, open a stream, with HEADERS that wait for a flush; None while the server allows no more."""
        stream_id = self.h2.get_next_available_stream_id()
        try:
            self.send_headers(stream_id, headers, end_stream=end_stream)
        except TooManyStreamsError:
            return None
        stream = self._register(stream_id)
        stream.sends = not end_stream
        return stream

    def _register(self, stream_id: int) -> Http2Stream:
        credit = partial(self._credit, stream_id)
        inbox = Inbox(credit, limit=self.limits.max_message_size, batch=self._credit_batch)
        stream = self.streams[stream_id] = Http2Stream(self, stream_id, inbox)
        self.streams_started += 1
        return stream

    def release(self, stream: Http2Stream) -> None:
        """A stream has no owner any more: what the peer still sends on it is h2's business."""
        del self.streams[stream.id]
        stream.inbox.release()
        self.stream_released.set()
        if not self.transport.is_closing:
            self._credit(0, stream.inbox.unacked_size())

    def _fail(self, error: ProtocolError | UnicodeDecodeError) -> None:
        """End the connection with a GOAWAY that says why."""
        if self.h2.state_machine.state is not ConnectionState.CLOSED:  # ours: h2 has found no error
            calm = str(error).encode() if isinstance(error, EnhanceYourCalm) else None
            self.h2.close_connection(getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR), calm)
        self.take_from_h2()
        self.flush()
        reason = f"protocol error: {error}"
        if not self._client_side:
            self.transport.half_close(reason, fault=isinstance(error, EnhanceYourCalm | DenialOfServiceError))
        self.close(reason)

    def close(self, reason: str) -> None:
        """Close the connection: whoever waits for it gets ConnectionLost."""
        self.transport.close(reason)
        for stream in list(self.streams.values()):
            stream.terminate(ConnectionLost(reason))
        self.stream_released.set()
        self.settings_received.set()

    async def keep_alive(self) -> None:
        """See whether the peer lives, from the start until cancelled."""
        at = self._clock() + self.limits.handshake_timeout_seconds
        while True:
            await trio.sleep_until(at)
            at = self.see_life(self._clock())

    def see_life(self, now: float) -> float:
        """Cut the connection when the peer has not begun HTTP/2, or did not answer a PING; send one if it is silent.

        Returns when to look again. Any bytes from the peer are a sign of life, so a busy connection is never pinged.
        """
        limits, transport = self.limits, self.transport
        seen, self._seen = self._seen, transport.bytes_received
        if not self._seen:
            transport.cut(f"nothing received in the first {limits.handshake_timeout_seconds:g} s")
            return math.inf
        if self._seen != seen:
            self._is_pinged = False
            return now + limits.keepalive_interval_seconds
        if self._is_pinged:
            transport.cut(f"the peer did not answer a keepalive ping in {limits.keepalive_timeout_seconds:g} s")
            return math.inf
        self._is_pinged = True
        self.ping()
        return now + limits.keepalive_timeout_seconds


@cache
def _settings(limits: Limits, client_side: bool) -> tuple[Settings, Settings]:
    """Our settings as they are sent, and as they hold. All connections share them: they take 5 KB and never change.

    h2 would end the connection for one stream too many; the owner refuses just that stream.
    """
    settings = {
        SettingCodes.ENABLE_PUSH: 0,
        SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
        SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
        SettingCodes.MAX_FRAME_SIZE: largest(FrameKind.DATA),
        SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
    }
    sent = Settings(client=client_side, initial_values=settings)
    settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _MAX_31
    return sent, Settings(client=client_side, initial_values=settings)


def _new_settings(is_client: bool, values: tuple[tuple[SettingCodes | int, int], ...]) -> Settings:
    return Settings(client=is_client, initial_values=dict(values))  # type: ignore[arg-type]


_peer_settings = lru_cache(maxsize=64)(_new_settings)
"""Settings of a peer, in force, which all connections with the same share until theirs change: they take 4 KB."""


def _empty_data(flags: int, stream_id: int) -> bytes:
    """A DATA frame without payload."""
    return bytes((0, 0, 0, FrameKind.DATA, flags)) + stream_id.to_bytes(4, "big")
