"""One call on the client's side."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

import trio
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.metadata import Deadline, decode_grpc_message, encode_metadata, encode_timeout
from grpclib.metadata import _MetadataLike as MetadataLike
from h2.errors import ErrorCodes

from mesh_pilot.net.rpc.codec import decoder, encoder, frame
from mesh_pilot.net.rpc.errors import StreamReset
from mesh_pilot.net.rpc.outbound import Headers
from mesh_pilot.net.rpc.stream import Http2Stream

__all__ = ["ClientCall", "OpenStream"]

OpenStream = Callable[[str, Headers, bool], Awaitable[tuple[Http2Stream, Callable[[], None]]]]
"""Opens a stream on a channel's connection: (path, further headers, whether the request is only headers) to the stream
and the function that releases it. Raises ConnectionLost."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_STATUS_OF_HTTP = {
    "400": Status.INTERNAL,
    "401": Status.UNAUTHENTICATED,
    "403": Status.PERMISSION_DENIED,
    "404": Status.UNIMPLEMENTED,
    "429": Status.UNAVAILABLE,
    "502": Status.UNAVAILABLE,
    "503": Status.UNAVAILABLE,
    "504": Status.UNAVAILABLE,
}
"""Answers that are not gRPC, as from a proxy (gRPC's document HTTP to gRPC Status Code Mapping)."""

_STATUS_OF_RESET = {
    ErrorCodes.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCodes.CANCEL: Status.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}
"""Resets without a status; others are INTERNAL (gRPC over HTTP/2, Errors)."""


class ClientCall(Generic[Request, Reply]):
    """One call: send requests, receive replies; an async context manager, made by ``Channel.request``.

    Sending and receiving may be done by two tasks. Leaving the block while the call is open resets it; leaving the
    block of a unary reply waits for the status. Every method raises GRPCError when the server ends the call with a
    status that is not OK, resets it, or the deadline passes; ConnectionLost when the connection is gone.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        path: str,
        cardinality: Cardinality,
        request_type: type[Request],
        reply_type: type[Reply],
        timeout: float | None,
        deadline: Deadline | None,
        metadata: MetadataLike | None,
    ) -> None:
        self.path = path
        self._open_stream = open_stream
        self._cardinality = cardinality
        self._encode = encoder(request_type)
        self._decode = decoder(reply_type)
        if deadline is not None:
            timeout = min(deadline.time_remaining(), math.inf if timeout is None else timeout)
        self._timeout = timeout
        self._deadline = math.inf
        self._metadata = metadata
        self._stream: Http2Stream | None = None
        self._release: Callable[[], None] | None = None
        self._ended = False
        self._headers_seen = False
        self._replies = 0
        self._status_seen = False

    def __repr__(self) -> str:
        state = "new" if self._stream is None else "finished" if self._status_seen else "open"
        return f"<ClientCall {self.path}, {state}>"

    async def __aenter__(self) -> Self:
        if self._timeout is not None:
            self._deadline = trio.current_time() + self._timeout
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._cardinality.server_streaming and self._replies and not self._status_seen:
                await self._finish()
        finally:
            if self._stream is not None and self._release is not None:
                self._stream.reset_if_open(ErrorCodes.CANCEL)
                self._release()

    async def send_request(self, *, end: bool = False) -> None:
        """Open the stream without a message, which :meth:`send_message` otherwise does."""
        if self._stream is not None:
            raise ProtocolError("the request is sent already")
        with self._in_time():
            stream = await self._open(end_stream=end)
            stream.connection.flush()
        self._ended = end

    async def _open(self, *, end_stream: bool = False) -> Http2Stream:
        if self._stream is None:
            more: Headers = []
            if self._timeout is not None:
                more.append(("grpc-timeout", encode_timeout(max(0.0, self._deadline - trio.current_time()))))
            more.extend(encode_metadata(self._metadata or ()))
            self._stream, self._release = await self._open_stream(self.path, more, end_stream)
        return self._stream

    async def send_message(self, message: Request, *, end: bool = False) -> None:
        """Send one request, and with ``end`` half-close; waits while the server's windows or the socket are full.

        If cancelled while waiting, part of it may be sent: leave the block, which resets the call.
        """
        if self._ended:
            raise ProtocolError("the call is half-closed: no more requests")
        end = end or not self._cardinality.client_streaming
        stream = await self._send(frame(self._encode(message)), end=end)
        stream.connection.note_sent()

    async def end(self) -> None:
        """Half-close: no more requests."""
        if not self._ended:
            await self._send(b"", end=True)

    async def _send(self, data: bytes, *, end: bool) -> Http2Stream:
        with self._in_time():
            stream = await self._open()
            try:
                await stream.send_data(data, end_stream=end)
            except StreamTerminatedError:
                if not stream.inbox.ended:  # else the server is done with the call, and its status is what counts
                    raise
        self._ended = end
        return stream

    async def recv_message(self) -> Reply | None:
        """The next reply, None after the last (then the status was OK). Loses nothing if cancelled."""
        stream = self._opened()
        with self._in_time():
            data = await stream.inbox.read_message()
        if not self._headers_seen and stream.headers is not None:
            self._check_headers(dict(stream.headers))
        if data is None:
            self._take_status(stream)
            if not self._cardinality.server_streaming and not self._replies:
                raise GRPCError(Status.INTERNAL, "the server ended the call with OK and no reply")
            return None
        stream.connection.note_received()
        self._replies += 1
        try:
            message: Reply = self._decode(data)
        except Exception as error:
            raise GRPCError(Status.INTERNAL, f"the reply cannot be decoded: {error}") from error
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Reply:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    async def cancel(self) -> None:
        """Reset the call: its handler on the server is cancelled."""
        if self._stream is not None:
            self._stream.reset_if_open(ErrorCodes.CANCEL)
            self._stream.terminate(StreamTerminatedError("the call was cancelled"))
        await trio.lowlevel.checkpoint()

    def _opened(self) -> Http2Stream:
        if self._stream is None:
            raise ProtocolError("nothing is sent yet: send a message, or send_request()")
        return self._stream

    async def _finish(self) -> None:
        if await self.recv_message() is not None:
            raise GRPCError(Status.INTERNAL, "the server sent more than one reply to a unary call")

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Turn the deadline and resets into GRPCErrors."""
        with trio.CancelScope(deadline=self._deadline) as scope:
            try:
                yield
            except StreamReset as error:
                status = _STATUS_OF_RESET.get(error.code, Status.INTERNAL)  # type: ignore[call-overload]
                raise GRPCError(status, str(error)) from error
        if scope.cancelled_caught:
            if self._stream is not None:
                self._stream.reset_if_open(ErrorCodes.CANCEL)
            raise GRPCError(Status.DEADLINE_EXCEEDED, "the deadline has passed")

    def _check_headers(self, fields: dict[str, str]) -> None:
        """Raise GRPCError for an answer that is not of gRPC."""
        self._headers_seen = True
        http_status = fields.get(":status")
        if http_status != "200" and "grpc-status" not in fields:
            status = _STATUS_OF_HTTP.get(http_status or "", Status.UNKNOWN)
            raise GRPCError(status, f"the answer is not gRPC: HTTP status {http_status}")
        if not fields.get("content-type", "").startswith("application/grpc"):
            raise GRPCError(Status.UNKNOWN, f"the answer is not gRPC: content-type {fields.get('content-type')!r}")

    def _take_status(self, stream: Http2Stream) -> None:
        """Raise GRPCError unless the trailers (or headers without a body) say OK."""
        trailers = stream.trailers if stream.trailers is not None else stream.headers or []
        self._status_seen = True
        fields = dict(trailers)
        try:
            status = Status(int(fields["grpc-status"]))
        except KeyError:
            raise GRPCError(Status.UNKNOWN, "the server ended the call without a status") from None
        except ValueError:
            raise GRPCError(Status.UNKNOWN, f"unknown grpc-status {fields['grpc-status']!r}") from None
        if status is not Status.OK:
            raise GRPCError(status, decode_grpc_message(fields.get("grpc-message", "")))
