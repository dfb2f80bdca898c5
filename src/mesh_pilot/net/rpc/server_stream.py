"""One call on the server's side: the object that a handler gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Generic, TypeVar

import trio
from attrs import field, frozen
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError
from grpclib.metadata import Deadline, decode_metadata, encode_grpc_message, encode_metadata
from grpclib.metadata import _Metadata as Metadata
from grpclib.metadata import _MetadataLike as MetadataLike
from h2.errors import ErrorCodes

from mesh_pilot.net.rpc.calls import CallCounts
from mesh_pilot.net.rpc.codec import decoder, encoder, frame
from mesh_pilot.net.rpc.protocol import RpcStream

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
    """Whether the connection is encrypted."""
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
    """One call: receive requests, send replies. Its methods are those of grpclib's server Stream.

    ``recv_message`` and ``send_message`` may be used from two tasks; each of them by one task at a time. All raise
    StreamTerminatedError once the client has gone (the handler is cancelled then, so only cleanups see it).
    """

    def __init__(
        self,
        stream: RpcStream,
        method: Handler,
        headers: list[tuple[str, str]],
        peer: Peer,
        deadline: Deadline | None,
        counts: CallCounts,
    ) -> None:
        fields = dict(headers)
        self._stream = stream
        self._cardinality: Cardinality = method.cardinality
        self._decode = decoder(method.request_type)
        self._encode = encoder(method.reply_type)
        self._sending = False
        self._headers_sent = False
        self._message_received = False
        self._message_sent = False
        self._trailers_sent = False
        self._cancelled_by_handler = False
        self.path: str = fields[":path"]
        self.metadata: Metadata = decode_metadata(headers)
        self.user_agent: str | None = fields.get("user-agent")
        self.deadline = deadline
        self.peer = peer
        self.counts = counts
        self.status: Status | None = None
        """The status that was sent; None before."""

    def __repr__(self) -> str:
        state = "ended" if self._trailers_sent else "cancelled" if self.cancelled else "open"
        return f"<ServerStream {self.path} of {self.peer.address}, {state}>"

    @property
    def cancelled(self) -> bool:
        """Whether the stream is gone: reset by either side, or its connection lost."""
        return self._cancelled_by_handler or self._stream.terminated is not None

    async def recv_message(self) -> Request | None:
        """The next request, None once the client has half-closed.

        Raises GRPCError when it cannot be decoded, is too large, or is missing in a unary call. If cancelled, nothing
        is lost.
        """
        data = await self._stream.buffer.read_message()
        if data is None:
            if not self._cardinality.client_streaming and not self._message_received:
                raise GRPCError(Status.UNIMPLEMENTED, "the call needs a request, and none came")
            return None
        self._message_received = True
        self.counts.received += 1
        connection = self._stream.connection
        connection.messages_received += 1
        connection.budget.received_message()
        try:
            message: Request = self._decode(data)
        except Exception as error:
            raise GRPCError(Status.INTERNAL, f"the request cannot be decoded: {error}") from error
        return message

    def when_retiring(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the connection is to end: what is left of the call should end soon, by itself.

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
        await self.send_messages((message,))

    async def send_messages(self, messages: Sequence[Reply]) -> None:
        """Send several replies, in as few frames and system calls as they fit; else as :meth:`send_message`."""
        if self._trailers_sent:
            raise ProtocolError("the status is sent: no more messages")
        if not self._cardinality.server_streaming and (self._message_sent or len(messages) != 1):
            raise ProtocolError("a unary reply is exactly one message")
        data = b"".join([frame(self._encode(message)) for message in messages])
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            self._start_headers(None)
            self._message_sent = True
            await self._stream.send_data(data, flush=self._cardinality.server_streaming)
        finally:
            self._sending = False
        connection = self._stream.connection
        connection.messages_sent += len(messages)
        self.counts.sent += len(messages)
        connection.budget.sent_messages(len(messages))

    def _start_headers(self, metadata: MetadataLike | None) -> None:
        if not self._headers_sent:
            self._stream.start_headers([*RESPONSE_HEADERS, *encode_metadata(metadata or ())])
            self._headers_sent = True

    async def send_initial_metadata(self, *, metadata: MetadataLike | None = None) -> None:
        """Send the headers now, with ``metadata``; otherwise they leave with the first message."""
        if self._headers_sent:
            raise ProtocolError("the initial metadata is sent already")
        self._start_headers(metadata)
        self._stream.connection.flush()
        await trio.lowlevel.checkpoint()

    async def send_trailing_metadata(
        self,
        *,
        status: Status = Status.OK,
        status_message: str | None = None,
        status_details: object = None,
        metadata: MetadataLike | None = None,
    ) -> None:
        """End the stream with ``status``; done by the server when the handler returns or raises.

        ``status_details`` are not sent: put what a client needs into ``metadata``.
        """
        if self._trailers_sent:
            raise ProtocolError("the status is sent already")
        if status is Status.OK and not self._cardinality.server_streaming and not self._message_sent:
            raise ProtocolError("a unary reply with status OK needs a message")
        self.finish(status, status_message, metadata)
        await trio.lowlevel.checkpoint()

    def finish(self, status: Status, message: str | None, metadata: MetadataLike | None = None) -> None:
        """Queue the status and flush, without waiting: a status is small, and it must not get stuck.

        A stream that stopped in the middle of a message is reset instead. Raises StreamTerminatedError.
        """
        self._trailers_sent = True
        self.status = status
        if self._stream.mid_message:
            self._stream.reset_if_open(ErrorCodes.INTERNAL_ERROR)
            return
        headers = [] if self._headers_sent else list(RESPONSE_HEADERS)
        headers.extend(status_headers(status, message))
        headers.extend(encode_metadata(metadata or ()))
        self._stream.answer(headers)

    @property
    def lacks_reply(self) -> bool:
        """Whether a unary call has not got its reply."""
        return not (self._cardinality.server_streaming or self._message_sent or self._trailers_sent)

    @property
    def finished(self) -> bool:
        """Whether nothing more can be sent: the status is, or the stream is gone."""
        return self._trailers_sent or self.cancelled

    async def cancel(self) -> None:
        """Reset the stream: the client sees CANCELLED."""
        if not self.finished:
            self._cancelled_by_handler = True
            self._stream.reset_if_open()
        await trio.lowlevel.checkpoint()
