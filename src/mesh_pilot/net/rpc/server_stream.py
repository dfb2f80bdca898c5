"""One call on the server's side: the object that a handler gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar

import trio
from attrs import field, frozen
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError
from grpclib.metadata import Deadline, decode_metadata, encode_grpc_message
from grpclib.metadata import _Metadata as Metadata
from h2.errors import ErrorCodes

from mesh_pilot.net.rpc.calls import CallCounts
from mesh_pilot.net.rpc.codec import decoder, encoder, frame
from mesh_pilot.net.rpc.stream import Http2Stream

__all__ = ["RESPONSE_HEADERS", "Peer", "ServerStream", "status_headers"]

Request = TypeVar("Request")
Reply = TypeVar("Reply")

RESPONSE_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


def status_headers(status: Status, message: str | None) -> list[tuple[str, str]]:
    """The trailers that carry a status."""
    headers = [("grpc-status", str(status.value))]
    if message:
        headers.append(("grpc-message", encode_grpc_message(message)))
    return headers


@frozen(kw_only=True)
class Peer:
    """The other side of a connection: address and verified identity."""

    address: str
    """``host:port`` or ``unix:///path``."""
    tls: bool = False
    """True if the connection is encrypted."""
    since: datetime = field(factory=partial(datetime.now, UTC), eq=False)
    """When the connection began."""
    certificate: bytes | None = None
    """The verified certificate in DER; None without one."""
    certificate_end: float = math.inf
    """The end of that certificate in Unix time; the connection ends with it."""
    spiffe_ids: tuple[str, ...] = ()
    """The ``spiffe://`` names of that certificate."""
    uid: int | None = None
    """The user that the process runs as, over a Unix socket; else None."""
    proven: set[str] = field(factory=set, eq=False, repr=False)
    """The identities that its calls have proven so far; whoever finds one out adds it."""


class ServerStream(Generic[Request, Reply]):
    """One call: receive requests, send replies. Its methods are those of grpclib's server Stream that handlers need.

    ``recv_message`` and ``send_message`` may be used from two tasks; each of them by one task at a time. All raise
    StreamTerminatedError once the client has gone (the handler is cancelled then, so only cleanups see it).
    """

    def __init__(
        self,
        stream: Http2Stream,
        method: Handler,
        headers: list[tuple[str, str]],
        peer: Peer,
        deadline: Deadline | None,
        counts: CallCounts,
    ) -> None:
        fields = dict(headers)
        self._stream = stream
        self._cardinality: Cardinality = method.cardinality
        self._is_streaming = method.cardinality.server_streaming
        self._decode = decoder(method.request_type)
        self._encode = encoder(method.reply_type)
        self._sending = False
        self._message_received = False
        self._message_sent = False
        self.path: str = fields[":path"]
        self.metadata: Metadata = decode_metadata(headers)
        self.deadline = deadline
        self.peer = peer
        self.counts = counts

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled else "open" if self._stream.sends else "ended"
        return f"<ServerStream {self.path} of {self.peer.address}, {state}>"

    @property
    def cancelled(self) -> bool:
        """True if the stream is gone: reset by the client, or its connection lost."""
        return self._stream.terminated is not None

    @property
    def has_message(self) -> bool:
        """True if a request is there: ``recv_message`` does not wait for the client."""
        return self._stream.inbox.has_message

    async def recv_message(self) -> Request | None:
        """The next request, None once the client has half-closed.

        Raises GRPCError when it cannot be decoded, is too large, or is missing in a unary call. If cancelled, nothing
        is lost.
        """
        data = await self._stream.inbox.read_message()
        if data is None:
            if not self._cardinality.client_streaming and not self._message_received:
                raise GRPCError(Status.UNIMPLEMENTED, "the call needs a request, and none came")
            return None
        self._message_received = True
        self.counts.received += 1
        self._stream.connection.note_received()
        try:
            message: Request = self._decode(data)
        except Exception as error:
            raise GRPCError(Status.INTERNAL, f"the request cannot be decoded: {error}") from error
        return message

    @property
    def is_readable(self) -> bool:
        """True if ``recv_message`` does not wait for the client: a request is there, the end, or an error."""
        return self._stream.inbox.is_readable

    def receive_at_once(self, take: Callable[[Request], bool], on_news: Callable[[], None]) -> None:
        """Give requests to ``take`` as they arrive, from where the socket is read: no task is woken for them.

        A request for which it returns False waits for ``recv_message``, and ``on_news`` is called; so it is at the end
        of the requests, and when the client is gone. Neither may wait or raise: what they do holds up all connections.
        """
        decode, counts, connection = self._decode, self.counts, self._stream.connection

        def taken(data: bytes) -> bool:
            try:
                message: Request = decode(data)
            except Exception:
                return False  # whoever reads it has the error
            if not take(message):
                return False
            counts.received += 1
            connection.note_received()
            return True

        self._stream.inbox.receive_at_once(taken, on_news)

    def when_retiring(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the connection is to end: what is left of the call should end soon, on its own.

        A call that does not is cut after the connection's grace. Without a callback it ends when it ends.
        """
        if self._stream.is_retiring:
            callback()
        else:
            self._stream.on_retiring = callback

    def __aiter__(self) -> ServerStream[Request, Reply]:
        return self

    async def __anext__(self) -> Request:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def send_message(self, message: Reply) -> None:
        """Send one reply; waits while the client's windows or the socket are full.

        If cancelled while waiting, part of it may be sent, and the stream can only be reset.
        """
        if self._message_sent and not self._is_streaming:
            raise ProtocolError("a unary reply is exactly one message")
        data, stream = self._encode(message), self._stream
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        if not self._message_sent:
            stream.send_headers(RESPONSE_HEADERS)
            self._message_sent = True
        if not stream.send_at_once(data, flush=self._is_streaming):
            self._sending = True
            try:
                await stream.send_data(frame(data), flush=self._is_streaming)
            finally:
                self._sending = False
        self.counts.sent += 1
        stream.connection.note_sent()

    def send_at_once(self, message: Reply) -> bool:
        """Send one reply if that needs no waiting, after the first; False: nothing was done."""
        stream = self._stream
        if self._sending or not self._message_sent or not self._is_streaming:
            return False
        if not stream.send_at_once(self._encode(message), flush=True):
            return False
        self.counts.sent += 1
        stream.connection.note_sent()
        return True

    def finish(self, status: Status, message: str | None) -> None:
        """Queue the status and flush, without waiting: a status is small, and it must not get stuck.

        A stream that stopped in the middle of a message is reset instead. Raises StreamTerminatedError.
        """
        if self._stream.mid_message:
            self._stream.reset_if_open(ErrorCodes.INTERNAL_ERROR)
        else:
            self._stream.answer([*([] if self._message_sent else RESPONSE_HEADERS), *status_headers(status, message)])

    @property
    def lacks_reply(self) -> bool:
        """True if a unary call has not got its reply."""
        return not (self._is_streaming or self._message_sent)
