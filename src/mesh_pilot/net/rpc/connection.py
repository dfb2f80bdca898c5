"""One connection of a server: what is called when its socket has something, and a Trio task for each stream.

Why each stream has a cancel scope that the connection holds: a stream may be over before its task first runs (reset at
once, or the deadline has passed), and it may be cut long after. The scope exists as soon as the stream is accepted, so
there is one way to end a handler, whoever ends it.

A stream that its client has reset is counted until its handler is through. Otherwise a client that opens and resets
streams would have any number of handlers ("rapid reset"): the limit of streams is one of work, not of open streams.

The end has three steps, because a GOAWAY and requests cross on the wire: a warning that promises to serve whatever
arrives, a PING that shows when the client must have read it, and only then the last stream that counts (RFC 9113, 6.8).
"""

from __future__ import annotations

import math
import random
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog
import trio
from attrs import frozen
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.metadata import Deadline
from h2.errors import ErrorCodes

from mesh_pilot.net.rpc import http1
from mesh_pilot.net.rpc.admission import FIRST_WORK, SLICE_WORK, Admission
from mesh_pilot.net.rpc.budget import REFUSED_UNITS
from mesh_pilot.net.rpc.calls import CallCounts
from mesh_pilot.net.rpc.http2 import MAX_HEADER_LIST_SIZE, Http2
from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.outbound import Headers
from mesh_pilot.net.rpc.polling import SocketPoller
from mesh_pilot.net.rpc.server_stream import RESPONSE_HEADERS, Peer, ServerStream, status_headers
from mesh_pilot.net.rpc.statistics import ConnectionStatistics
from mesh_pilot.net.rpc.stream import Http2Stream
from mesh_pilot.net.rpc.tls_session import TlsSession
from mesh_pilot.net.rpc.transport import SocketTransport

__all__ = ["ServerConnection"]

log = structlog.get_logger(scope="rpc")

_ANSWER_TURNS = 4
"""Passes of the loop after which the protocol's own frames are sent alone. A stream whose request has arrived with
them answers within that number, and its answer shares their packet."""
_SETTINGS_AFTER_SECONDS = 0.5
"""Delay of our SETTINGS over plaintext, in which an HTTP/1.1 client shows itself."""
_AGE_JITTER = 0.1
"""The part by which ages of connections differ: those that began together do not end together."""
_LAST_STREAM = 2**31 - 1
"""The last stream of a GOAWAY that is a warning: streams on their way are still served (RFC 9113, 6.8)."""
_WARNED_SECONDS = 1.0
"""Time for the client to have read the warning, if it does not answer the PING behind it."""


@frozen
class Outcome:
    """The end of a call."""

    status: Status
    message: str | None = None
    expected: bool = True
    """False for an error of ours, which belongs in the log with its traceback."""


OK = Outcome(Status.OK)


def outcome_of(error: Exception) -> Outcome:
    """The status for an exception of a handler. Of exception groups (nurseries raise them) the members count."""
    errors = list(_leaves(error))
    unexpected = [each for each in errors if not isinstance(each, GRPCError | StreamTerminatedError)]
    if unexpected:
        return Outcome(Status.INTERNAL, "internal error of the server", expected=False)
    for each in errors:
        if isinstance(each, GRPCError):
            return Outcome(each.status, each.message)
    return Outcome(Status.CANCELLED, "the stream is gone")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


@frozen
class SharedParts:
    """The parts that all connections of a server share."""

    methods: Mapping[str, Handler]
    """Handlers by path."""
    calls: Mapping[str, CallCounts]
    limits: Limits
    not_grpc: str
    """The answer to a client of HTTP/1.1."""
    admission: Admission
    poller: SocketPoller
    note_oversized: Callable[[Peer, str], None]
    """Told of a call that was refused for its headers, and why."""


class ServerConnection:
    """Serves one connected socket, whose TLS handshake is done.

    Mutable state: the streams with the scope that cancels each, how many of them the client abandoned while their
    handlers still end, and how far the end of the connection has come.
    """

    def __init__(
        self,
        sock: socket.socket,
        nursery: trio.Nursery,
        tls: TlsSession | None,
        peer: Peer,
        shared: SharedParts,
        on_wait: Callable[[bool], None],
    ) -> None:
        """``on_wait`` is told whether the connection waits for its client, which has opened no stream or does not
        read."""
        self.peer = peer
        self._on_wait = on_wait
        self._nursery = nursery
        self._shared = shared
        self._limits = shared.limits
        self._entry = trio.Lock()
        self._streams: dict[Http2Stream, trio.CancelScope] = {}
        self._abandoned = 0
        self._retired = ""
        self._draining = False
        self._cut = False
        self._has_begun = False
        """True once the client has sent something."""
        self._is_over = False
        """True once there is nothing to be read any more."""
        self._waiting = trio.CancelScope()
        self._failure: Exception | None = None
        self._transport = SocketTransport(sock, nursery, tls=tls, write_buffer=self._limits.write_buffer)
        self._transport.on_pause = self._tell_wait
        self._transport.on_close = self._end
        self._http2 = Http2(weakref.proxy(self), self._transport, self._limits, client_side=False)
        if tls is not None:
            # The handshake may have brought the client's first bytes: the socket may never become readable again.
            self._http2.flush()

    def __repr__(self) -> str:
        state = "draining" if self.draining else "open"
        return f"<ServerConnection of {self.peer.address}, {state}, {len(self._streams)} streams>"

    def statistics(self) -> ConnectionStatistics:
        """How the connection is doing."""
        return self._http2.statistics(self.peer.address, draining=self.draining)

    async def run(self) -> None:
        """Serve until the connection ends, then cancel the nursery, which is this connection's own.

        What has its time is done here, by one task with one scope: the sleeps of several functions would take 3 KB of
        each connection. If cancelled, the client is told to go away; its streams are reset as their handlers end.
        """
        since = trio.current_time()
        certificate = max(0.0, self.peer.certificate_end - time.time())
        age = self._limits.max_connection_age_seconds * random.uniform(1 - _AGE_JITTER, 1 + _AGE_JITTER)
        speak_at, look_at = since + _SETTINGS_AFTER_SECONDS, since + self._limits.handshake_timeout_seconds
        retire_at = since + min(certificate, age)
        try:
            self._transport.start_reading(self._shared.poller, self._read)
            if self._transport.has_unread:
                self._read()
            while True:
                with trio.move_on_at(min(speak_at, look_at, retire_at)) as self._waiting:
                    if not self._is_over:
                        await trio.sleep_forever()
                if self._is_over:
                    break
                now = trio.current_time()
                if now >= speak_at:
                    speak_at = math.inf
                    if not self._has_begun:  # some wait for our SETTINGS, which an HTTP/1 client must not get
                        self._http2.flush()
                if now >= look_at:
                    look_at = self._http2.see_life(now)
                if now >= retire_at:
                    retire_at = math.inf
                    reason = "age" if age < certificate else "certificate"
                    self._nursery.start_soon(self._retire, reason, since + certificate)
            if self._failure is not None:
                raise self._failure
            self._http2.close(f"the connection is lost: {self._transport.close_reason}")
        finally:
            self._start_draining()
            self._transport.stop_reading()
            self._nursery.cancel_scope.cancel()

    def _read(self) -> None:
        """Take in what has arrived. What goes wrong ends this connection, and only this."""
        try:
            data = self._transport.receive()
            if data is None:
                return
            if not self._has_begun:
                self._has_begun = True
                if http1.is_request(data):
                    self._transport.write(http1.answer(self._shared.not_grpc))
                    self._transport.close("the client speaks HTTP/1.1")
                    data = b""
            if not data:
                self._stop_reading()
            elif not self._transport.is_closing:  # else it is only read until it has taken our last bytes
                self._http2.feed(data)
                if (more := self._http2.take_in(FIRST_WORK)) or self._http2.has_unsent:
                    self._transport.stop_reading()
                    self._nursery.start_soon(self._go_on, more)
        except Exception as error:
            self._failure = error
            self._stop_reading()

    def _stop_reading(self) -> None:
        self._transport.stop_reading()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._waiting.cancel()

    async def _go_on(self, more: bool) -> None:
        """Process the rest of what the client sent in turns. Then send the protocol's own frames, together with the
        answers of streams that are ready at once, and read on."""
        while more:
            async with self._shared.admission.turn():
                more = self._http2.take_in(SLICE_WORK)
        for _ in range(_ANSWER_TURNS):
            if not self._http2.has_unsent:
                break
            await trio.lowlevel.checkpoint()
        self._http2.flush()
        if not self._is_over:
            self._transport.start_reading(self._shared.poller, self._read)

    @property
    def fault(self) -> str:
        """The reason why the peer was cut off; empty if it was not."""
        return self._transport.fault

    def abort(self) -> None:
        """Close the socket, in any state."""
        self._transport.abort()

    @property
    def draining(self) -> bool:
        """True if the client was told to open no more streams."""
        return bool(self._retired) or self._draining

    @property
    def retired(self) -> str:
        """The reason why the connection ends: ``age``, ``certificate`` or ``revoked``; empty if for none of them."""
        return self._retired

    async def _retire(self, reason: str, certificate_ends_at: float) -> None:
        """End a connection that is too old, or whose client's certificate ended.

        As gRPC's servers do it: warn the client, so that it opens its next streams elsewhere; refuse streams once it
        must have read the warning; let those that run end; cut those that are left after the grace.
        """
        if reason == "age":
            with trio.move_on_at(certificate_ends_at) as patience:
                await self._shared.admission.retirement()
            reason = "certificate" if patience.cancelled_caught else "age"
        if self._draining:
            return
        self._retired = reason
        grace = self._limits.max_connection_age_grace_seconds
        log.debug("connection retired", peer=self.peer.address, reason=reason, streams=len(self._streams))
        cut_at = trio.current_time() + grace
        with trio.move_on_after(min(grace, _WARNED_SECONDS)):
            await self._warn()
        self.drain()
        await trio.sleep_until(cut_at)
        self.cut()

    async def _warn(self) -> None:
        """Announce the end to the client and to the handlers; wait until the client has read it."""
        self._http2.ping_acknowledged.clear()
        self._http2.send_goaway(_LAST_STREAM)
        self._http2.ping()
        for stream in list(self._streams):
            stream.retire()
        await self._http2.ping_acknowledged.wait()

    def _start_draining(self) -> None:
        if not self._draining:
            self._draining = True
            self._http2.send_goaway()

    def drain(self) -> None:
        """Refuse new streams, let those that run end, then close."""
        self._start_draining()
        self._close_if_drained()

    def cut(self) -> None:
        """Drain, ending the streams that run with UNAVAILABLE."""
        self._cut = True
        for scope in self._streams.values():
            scope.cancel()
        self.drain()

    def revoke(self) -> None:
        """Cut: the client's certificate is revoked."""
        self._retired = "revoked"
        self.cut()

    def _close_if_drained(self) -> None:
        if self._draining and not self._streams:
            self._transport.close("drained")

    def goaway(self, last_stream_id: int) -> None:
        """Nothing: we open no streams on a client's connection, and the client closes it when it is done."""

    def accept(self, stream: Http2Stream, headers: Headers) -> None:
        """Start a task for a new stream, or refuse it."""
        if self._draining or self._is_full():
            stream.reset_if_open(ErrorCodes.REFUSED_STREAM)
            self._http2.release(stream)
            self._http2.spend(REFUSED_UNITS, "refused streams")
            return
        if self._retired:
            stream.retire()
        scope = self._streams[stream] = trio.CancelScope()
        self._tell_wait()
        stream.on_terminated = partial(self._abandon, scope)
        self._nursery.start_soon(self._serve, stream, scope, headers, name="rpc stream")

    def _tell_wait(self) -> None:
        self._on_wait(not self._streams or self._transport.is_paused)

    def _is_full(self) -> bool:
        """True at the limit of open streams, or of reset streams whose handlers still run."""
        limit = self._limits.max_concurrent_streams
        return len(self._streams) - self._abandoned >= limit or self._abandoned >= limit

    def _abandon(self, scope: trio.CancelScope) -> None:
        """The stream is gone: end its handler."""
        self._abandoned += 1
        scope.cancel()

    async def _serve(self, stream: Http2Stream, scope: trio.CancelScope, headers: Headers) -> None:
        try:
            call = self._open(stream, headers)
            del headers  # else kept for as long as the stream lasts
            if call is None:
                self._http2.spend(REFUSED_UNITS, "refused calls")
            else:
                await self._run(call, scope)
        except StreamTerminatedError:
            pass
        finally:
            stream.on_terminated = stream.on_retiring = None
            if stream.terminated is not None:
                self._abandoned -= 1
                stream.terminated.__traceback__ = None  # its frames have the stream: a cycle
            stream.reset_if_open(ErrorCodes.CANCEL)
            self._http2.release(stream)
            del self._streams[stream]
            self._tell_wait()
            self._close_if_drained()

    async def _run(self, call: ServerStream[object, object], scope: trio.CancelScope) -> None:
        """One call from its first to its last, counted."""
        counts, began, status = call.counts, trio.current_time(), Status.CANCELLED
        counts.started += 1
        try:
            outcome = await self._handle(call, self._shared.methods[call.path], scope)
            if not call.cancelled:
                status = outcome.status
                call.finish(outcome.status, outcome.message)
        except StreamTerminatedError:
            status = Status.CANCELLED
            raise
        finally:
            counts.ended(status, trio.current_time() - began)

    def _open(self, stream: Http2Stream, headers: Headers) -> ServerStream[object, object] | None:
        """The call that ``headers`` ask for; None when they were answered with a refusal."""
        size = sum(len(name) + len(value) + 32 for name, value in headers)
        fields = dict(headers)
        if size > MAX_HEADER_LIST_SIZE:
            most = f"at most {MAX_HEADER_LIST_SIZE} are read; is its token too long?"
            reason = f"the headers of the call have {size} bytes: {most}"
            self._shared.note_oversized(self.peer, reason)
            _refuse(stream, Status.RESOURCE_EXHAUSTED, reason)
        elif fields.get(":method") != "POST":
            stream.answer([(":status", "405"), ("allow", "POST")])
        elif not fields.get("content-type", "").startswith("application/grpc"):
            stream.answer([(":status", "415")])
        else:
            method = self._shared.methods.get(fields.get(":path", ""))
            if method is None:
                _refuse(stream, Status.UNIMPLEMENTED, f"there is no method {fields.get(':path')}")
                return None
            try:
                deadline = Deadline.from_headers(headers)
                return ServerStream(stream, method, headers, self.peer, deadline, self._shared.calls[fields[":path"]])
            except ValueError as error:
                _refuse(stream, Status.INVALID_ARGUMENT, f"bad request headers: {error}")
        return None

    async def _handle(self, call: ServerStream[object, object], method: Handler, scope: trio.CancelScope) -> Outcome:
        if call.deadline is not None:
            scope.deadline = trio.current_time() + call.deadline.time_remaining()
        try:
            with scope:
                await self._shared.admission.stream(self._entry)
                await method.func(call)
        except Exception as error:
            outcome = outcome_of(error)
            if not outcome.expected:
                log.exception("a gRPC handler failed", path=call.path, peer=self.peer.address)
            return outcome
        if scope.cancelled_caught:
            if self._cut:
                return Outcome(Status.UNAVAILABLE, "the server is going away")
            return Outcome(Status.DEADLINE_EXCEEDED, "the deadline has passed")
        if call.lacks_reply:
            log.error("a gRPC handler returned without a reply", path=call.path, peer=self.peer.address)
            return Outcome(Status.INTERNAL, "internal error of the server")
        return OK


def _refuse(stream: Http2Stream, status: Status, message: str) -> None:
    stream.answer([*RESPONSE_HEADERS, *status_headers(status, message)])
