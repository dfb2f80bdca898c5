"""grpclib's HTTP/2 protocol objects, made to wait on Trio.

grpclib drives h2 through small objects that wait on asyncio Events and a Queue. Here the same objects get events and an
inbox that park Trio tasks, so that streams are awaited by Trio tasks directly and no asyncio loop exists. What differs
from grpclib: a GOAWAY does not end the streams that are open (RFC 9113, 6.8), a stream that ends early raises in
whoever waits for it, DATA frames are made without h2 and credited to the peer in batches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import cast

import h2.events
import trio
from grpclib.config import Configuration
from grpclib.exceptions import StreamTerminatedError
from grpclib.protocol import AbstractHandler, Connection, EventsProcessor, H2Protocol, Stream
from grpclib.utils import Wrapper
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamState
from hyperframe.frame import GoAwayFrame

from mesh_pilot.net.rpc.budget import EnhanceYourCalm, FrameBudget
from mesh_pilot.net.rpc.errors import ConnectionLost, StreamReset
from mesh_pilot.net.rpc.http2 import GrpcH2Connection
from mesh_pilot.net.rpc.inbox import TURNS, Inbox, Signal
from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["MAX_HEADER_LIST_SIZE", "Headers", "RpcConnection", "RpcEvents", "RpcHandler", "RpcProtocol", "RpcStream"]

Headers = list[tuple[str, str]]

_CLIENT, _SERVER = Configuration().__for_client__(), Configuration().__for_server__()
"""grpclib's settings of connections; making them takes as long as all the rest of a new connection."""

_MAX_FRAME_SIZE = 1024 * 1024
"""The largest DATA frame we accept: large messages come in few frames."""

_MAY_SEND = frozenset((StreamState.OPEN, StreamState.HALF_CLOSED_REMOTE))

_SEND_CHUNK = 256 * 1024
"""Bytes of one message handed to the transport between looks at its high mark."""

_USEFUL_WINDOW = 1024
"""A window smaller than this and than what is to be sent is not used at once (RFC 9113, 10.5: tiny windows)."""
_TINY_WINDOW_SECONDS = 0.1
"""How long a stream waits for a useful window before it sends as much as a tiny one allows."""

MAX_HEADER_LIST_SIZE = 16 * 1024
"""Bytes of the headers of one request, uncompressed, with 32 for each of them; gRPC's own default is 8 KB."""

_MAX_DECODED_HEADERS = 64 * 1024
"""Bytes of headers, likewise, that end the connection. Fewer are taken in, so that their call can be refused."""


class RpcStream(Stream):
    """One HTTP/2 stream of a connection."""

    connection: RpcConnection
    buffer: Inbox  # type: ignore[assignment]

    def __init__(
        self,
        connection: RpcConnection,
        h2_connection: H2Connection,
        transport: SocketTransport,
        *,
        stream_id: int | None = None,
        wrapper: Wrapper | None = None,
    ) -> None:
        super().__init__(connection, h2_connection, transport, stream_id=stream_id, wrapper=wrapper)
        self.window_updated = Signal()  # type: ignore[assignment]
        self.headers_received = Signal()  # type: ignore[assignment]
        self.trailers_received = Signal()  # type: ignore[assignment]
        self.terminated: StreamTerminatedError | None = None
        self.on_terminated: Callable[[], None] | None = None
        self.on_retiring: Callable[[], None] | None = None
        self.is_retiring = False
        """True once the connection is to end: the call, which may not have begun yet, should end soon."""
        self.mid_message = False
        """True while a message is sent in part: only a reset can follow."""
        self._sends = 0
        self._awaited_window = 1

    def init_stream(self, stream_id: int, connection: Connection) -> None:
        super().init_stream(stream_id, connection)
        limits = self.connection.limits
        self.buffer = Inbox(
            partial(connection.ack, stream_id), limit=limits.max_message_size, batch=limits.stream_window // 8
        )

    @property
    def answered(self) -> bool:
        """True once the peer has half-closed; for a client, once the status has arrived."""
        return self.buffer.ended

    def terminate(self, error: StreamTerminatedError) -> None:
        """Raise ``error`` in the tasks that wait for this stream."""
        if self.terminated is not None:
            return
        self.terminated = error
        self.buffer.fail(error)
        self.window_updated.set()
        self.headers_received.set()
        self.trailers_received.set()
        if self.on_terminated is not None:
            self.on_terminated()

    def retire(self) -> None:
        """Have the call end soon, by itself."""
        self.is_retiring = True
        if self.on_retiring is not None:
            self.on_retiring()

    async def open(self, headers: Headers, processor: RpcEvents, *, end_stream: bool = False) -> Callable[[], None]:
        """As a client, open the stream; waits while the server allows no more. Returns what releases it again.

        ``processor`` belongs to the connection. Raises ConnectionLost. If cancelled, nothing was sent.
        """
        connection = self.connection
        while True:
            await connection.write_ready.wait()
            if connection.is_closing():
                raise ConnectionLost("the connection is closed")
            stream_id = self._h2_connection.get_next_available_stream_id()
            try:
                self._h2_connection.send_headers(stream_id, headers, end_stream=end_stream)
            except TooManyStreamsError:
                connection.stream_close_waiter.clear()
                await connection.stream_close_waiter.wait()
                continue
            self.init_stream(stream_id, connection)
            return processor.register(self)

    def start_headers(self, headers: Headers, *, end_stream: bool = False) -> None:
        """Queue a HEADERS frame, to leave with what is sent next. Raises StreamTerminatedError."""
        if self.terminated is not None:
            raise self.terminated
        if self.id not in self._h2_connection.streams:
            raise StreamTerminatedError("the stream is closed")
        try:
            self._h2_connection.send_headers(self.id, headers, end_stream=end_stream)
        except ProtocolError as error:
            raise StreamTerminatedError("the stream is closed") from error

    def answer(self, headers: Headers) -> None:
        """As a server, end the stream with ``headers``, and have the client stop sending. Never waits.

        Raises StreamTerminatedError.
        """
        self.start_headers(headers, end_stream=True)
        self.connection.flush()
        self.reset_if_open(ErrorCodes.NO_ERROR)

    async def send_data(self, data: bytes, end_stream: bool = False, *, flush: bool = True) -> None:
        """Send ``data`` in as many frames as the windows and the transport take, waiting for them.

        With ``flush`` off the last frames leave with what is sent next. Raises StreamTerminatedError. If cancelled, a
        part of ``data`` may be sent: ``mid_message``.
        """
        self._sends += 1
        if not self._sends % TURNS:
            await trio.lowlevel.checkpoint()
        assert self.id is not None
        connection = self.connection
        rest = memoryview(data)
        tiny = False
        while True:
            while not connection.write_ready.is_set():
                await connection.write_ready.wait()
            if self.terminated is not None:
                raise self.terminated
            window = self._window()
            useful = min(len(rest), _USEFUL_WINDOW)
            if window < useful and not (tiny and window > 0):
                connection.flush()
                tiny = await self._wait_for_window(useful if window > 0 else 1)
                continue
            tiny = False
            budget = min(window, len(rest), _SEND_CHUNK)
            last = budget == len(rest)
            self._queue_data(rest[:budget])
            if end_stream and last:
                self._h2_connection.end_stream(self.id)  # an empty frame: h2 keeps the stream's state
            self.data_sent += budget
            connection.data_sent += budget
            connection.budget.sent(budget)
            self.mid_message = not last
            if flush or not last:
                connection.flush()
            if last:
                return
            rest = rest[budget:]

    async def _wait_for_window(self, size: int) -> bool:
        """Wait until ``size`` bytes may be sent; True when that takes too long, though some may be.

        A closed window (``size`` 1) is waited for as long as it takes.
        """
        self._awaited_window = size
        self.window_updated.clear()
        with trio.move_on_after(math.inf if size == 1 else _TINY_WINDOW_SECONDS) as patience:
            await self.window_updated.wait()
        return patience.cancelled_caught

    def window_changed(self) -> None:
        """Wake the task that waits for the window, if the window is now useful."""
        if not self.window_updated.is_set() and self._window() >= self._awaited_window:
            self.window_updated.set()

    def reset_if_open(self, error_code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Send RST_STREAM unless both sides have ended; never waits."""
        if self.id is not None and self.closable:
            self._h2_connection.reset_stream(self.id, error_code=error_code)
            self.connection.flush()

    def _window(self) -> int:
        assert self.id is not None
        try:
            return self._h2_connection.local_flow_control_window(self.id)
        except ProtocolError as error:
            raise StreamTerminatedError("the stream is closed") from error

    def _queue_data(self, data: memoryview) -> None:
        """Queue ``data``, which fits the windows, in frames of the size the peer accepts.

        The frames are made here, at a tenth of what h2 needs for each; the windows that h2 keeps are told.
        """
        assert self.id is not None
        connection = self._h2_connection
        stream = connection.streams.get(self.id)
        if stream is None or stream.state_machine.state not in _MAY_SEND:
            raise StreamTerminatedError("the stream is closed")
        stream.outbound_flow_control_window -= len(data)
        connection.outbound_flow_control_window -= len(data)
        size = connection.max_outbound_frame_size
        after_size = b"\0\0" + self.id.to_bytes(4, "big")
        pieces: list[bytes | memoryview] = []
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            pieces += (len(piece).to_bytes(3, "big") + after_size, piece)
        self.connection.queue(pieces)


class RpcConnection(Connection):
    """h2's connection joined to the transport; keepalive is the business of whoever owns it."""

    def __init__(
        self,
        connection: GrpcH2Connection,
        transport: SocketTransport,
        *,
        config: Configuration,
        limits: Limits,
        budget: FrameBudget,
    ) -> None:
        super().__init__(connection, transport, config=config)
        self.limits = limits
        self.budget = budget
        self._queued: list[bytes | memoryview] = []
        self.settings_received = Signal()
        self.ping_acknowledged = Signal()
        self.write_ready = Signal(is_set=True)  # type: ignore[assignment]
        self.stream_close_waiter = Signal()  # type: ignore[assignment]

    def create_stream(self, *, stream_id: int | None = None, wrapper: Wrapper | None = None) -> RpcStream:
        transport = cast(SocketTransport, self._transport)
        return RpcStream(self, self._connection, transport, stream_id=stream_id, wrapper=wrapper)

    def initialize(self) -> None:
        pass

    def close(self, reason: str = "closed") -> None:
        cast(SocketTransport, self._transport).close(reason)

    def half_close(self, reason: str, *, fault: bool) -> None:
        """Close, and let the peer read what was sent; with ``fault``, the connection counts as cut off."""
        transport = cast(SocketTransport, self._transport)
        if fault and not transport.is_closing():
            transport.fault = reason
        transport.half_close(reason)

    def queue(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Have the pieces of HTTP/2 frames made outside h2 sent after what h2 has ready, with the next flush."""
        ready = self._connection.data_to_send()
        if ready:
            self._queued.append(ready)
        self._queued += pieces

    @property
    def has_unsent(self) -> bool:
        """Whether anything is ready to be flushed."""
        return bool(self._queued or self._connection._data_to_send)

    def flush(self) -> None:
        """Send all that is ready, in one piece."""
        data = self._connection.data_to_send()
        if self._queued:
            self._queued.append(data)
            data = b"".join(self._queued)
            self._queued.clear()
        if data:
            self._transport.write(data)

    def ping(self) -> None:
        """Send a PING."""
        self._connection.ping(b"mesh-ppl")
        self.flush()

    def send_goaway(self, last_stream_id: int | None = None) -> None:
        """Tell the peer to open no more streams; the open ones go on. h2's own GOAWAY would end them.

        ``last_stream_id`` is the last one that is served; None: the last that has arrived.
        """
        frame = GoAwayFrame(0)
        frame.last_stream_id = self._connection.highest_inbound_stream_id if last_stream_id is None else last_stream_id
        frame.error_code = ErrorCodes.NO_ERROR
        self.flush()
        self._transport.write(frame.serialize())


class RpcEvents(EventsProcessor):
    """Dispatches h2's events to the streams; frames without meaning for gRPC are ignored."""

    handler: RpcHandler
    connection: RpcConnection
    streams: dict[int, RpcStream]  # type: ignore[assignment]

    def process(self, event: h2.events.Event) -> None:
        processor = self.processors.get(event.__class__)
        if processor is not None:
            processor(event)  # type: ignore[operator]

    def close(self, reason: str = "Connection closed") -> None:
        self.connection.close()
        self.handler.close()
        for stream in list(self.streams.values()):
            stream.terminate(ConnectionLost(reason))
        self.connection.stream_close_waiter.set()
        self.connection.settings_received.set()

    def process_remote_settings_changed(self, event: h2.events.RemoteSettingsChanged) -> None:
        self.connection.settings_received.set()

        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            self._windows_changed()

    def process_window_updated(self, event: h2.events.WindowUpdated) -> None:
        if not event.stream_id:
            self._windows_changed()
        elif (stream := self.streams.get(event.stream_id)) is not None:
            self._window_changed(stream)

    def _windows_changed(self) -> None:
        for stream in self.streams.values():
            self._window_changed(stream)

    @staticmethod
    def _window_changed(stream: RpcStream) -> None:
        with suppress(StreamTerminatedError):  # its task learns that by itself
            stream.window_changed()

    def process_stream_reset(self, event: h2.events.StreamReset) -> None:
        assert event.stream_id is not None
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.terminate(StreamReset(event.error_code or 0))

    def process_ping_ack_received(self, event: h2.events.PingAckReceived) -> None:
        self.connection.ping_acknowledged.set()

    def process_connection_terminated(self, event: h2.events.ConnectionTerminated) -> None:
        """A GOAWAY: the owner decides what ends, the rest goes on."""
        self.handler.goaway(event.last_stream_id or 0)


class RpcHandler(AbstractHandler):
    """Callbacks of the connection's owner."""

    @abstractmethod
    def goaway(self, last_stream_id: int) -> None:
        """The peer wants no more streams, and answers none of ours above ``last_stream_id``."""


class RpcProtocol(H2Protocol):
    """One connection's protocol: bytes in through ``data_received``, out through the transport."""

    connection: RpcConnection
    h2_connection: GrpcH2Connection
    processor: RpcEvents

    def __init__(self, handler: RpcHandler, limits: Limits, *, client_side: bool) -> None:
        h2_config = H2Configuration(
            client_side=client_side,
            header_encoding="utf-8",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_inbound_headers=False,
            normalize_outbound_headers=False,
        )
        super().__init__(handler, _CLIENT if client_side else _SERVER, h2_config)
        self.limits = limits
        self.client_side = client_side

    def connection_made(self, transport: SocketTransport) -> None:  # type: ignore[override]
        """Send the preface and settings; a server's are only made ready, because its client may be one of HTTP/1.

        The limits hold from the start, not from the peer's acknowledgement.
        """
        limits = self.limits
        budget = FrameBudget(limits.frame_rate, limits.frame_burst)
        connection = GrpcH2Connection(self.h2_config, budget)
        settings = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window,
            SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME_SIZE,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
        }
        connection.decoder.max_header_list_size = _MAX_DECODED_HEADERS
        connection.local_settings = Settings(client=self.client_side, initial_values=settings)
        connection.max_inbound_frame_size = _MAX_FRAME_SIZE
        connection.initiate_connection()
        # h2 would end the connection for one stream too many; the handler refuses just that stream
        settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2**31 - 1
        connection.local_settings = Settings(client=self.client_side, initial_values=settings)
        initial = connection.inbound_flow_control_window
        if limits.connection_window > initial:
            connection.increment_flow_control_window(limits.connection_window - initial)
        self.h2_connection = connection
        self.connection = RpcConnection(connection, transport, config=self.config, limits=limits, budget=budget)
        if self.client_side:
            self.connection.flush()
        transport.listen_to_pauses(self)
        self.processor = RpcEvents(self.handler, self.connection)

    def data_received(self, data: bytes) -> None:
        """Feed all of the peer's bytes, and answer."""
        self.feed(data)
        self.take_in(None)
        self.connection.flush()

    def feed(self, data: bytes) -> None:
        """Have the peer's bytes taken in."""
        self.h2_connection.feed(data)

    def take_in(self, work: float | None) -> bool:
        """Hand on what was fed, up to ``work`` units or all (see ``budget``); what there is to answer can be flushed.

        Returns whether there is more. What is not HTTP/2, or too much of it, is answered with a GOAWAY and closes the
        connection.
        """
        try:
            events, more = self.h2_connection.take_in(work, trio.current_time())
        except (ProtocolError, UnicodeDecodeError) as error:
            self._end(error)
            return False
        for event in events:
            if self.connection.is_closing():
                return False
            self.processor.process(event)
        return more

    def spend(self, units: float, what: str) -> None:
        """Charge the peer's budget; a peer that exceeds it is sent a GOAWAY, and the connection closes."""
        if not self.connection.is_closing():
            try:
                self.h2_connection.spend(units, what, trio.current_time())
            except EnhanceYourCalm as error:
                self._end(error)

    def _end(self, error: Exception) -> None:
        reason = f"protocol error: {error}"
        self.connection.flush()
        if self.client_side:
            self.connection.close(reason)
        else:
            self.connection.half_close(reason, fault=isinstance(error, EnhanceYourCalm | DenialOfServiceError))
        self.processor.close(reason)
