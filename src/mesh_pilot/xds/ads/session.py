"""One stream on the wire: the call's own task reads requests, another one sends the responses of the state machine.

The sending task sleeps until a request comes or the proxy's resources wake it. A client that does not read holds up
that task only: what changes meanwhile is merged in the state machine.

Two tasks, because either side may be silent for hours while the other has much to say; one that does both would have to
wait for two things at once, which is a nursery for each message. A switch of tasks costs as much as a decision, so the
sender is roused only when there may be something to send: most ACKs end in the receiver.

All state is in objects that belong to one of them, or that are only touched between two waits: `Stream` (what to send),
`SessionObserver` (who learns of it), `NackPauses`, `Patience` and `Convergence` (times), `WarmingFollower`. A session
that generates much takes turns with all others, in slices: the event loop belongs to thousands of streams, and the
first push of one may take a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Protocol

import trio
from google.protobuf.message import DecodeError

from mesh_pilot.model.bounds import BoundError
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.net.rpc import StreamTerminatedError
from mesh_pilot.net.rpc.rate_limits import TokenBucket
from mesh_pilot.xds.ads.context import SessionContext
from mesh_pilot.xds.ads.messages import Code, Request, Response, StreamError
from mesh_pilot.xds.ads.observing import SessionObserver
from mesh_pilot.xds.ads.status import Connection
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.waits import Convergence, NackPauses, Patience
from mesh_pilot.xds.ads.warming_follower import WarmingFollower

SLICE_SECONDS = 0.005
"""Time for which a session generates resources before others get their turn."""

BYTES_PER_REQUEST = 64 * 1024
"""A larger request counts as one more for each so many bytes."""


class Call(Protocol):
    """The side of an ``net.rpc.ServerStream`` that a session uses, with encoded messages."""

    @property
    def has_message(self) -> bool: ...

    async def recv_message(self) -> bytes | None: ...

    async def send_message(self, message: bytes, /) -> None: ...


class Session:
    """One stream with its tasks.

    Mutable state: the sender while it sleeps, and until when, whether it has to look again before it does, whether the
    stream is up to date for the first time yet, and whether and how it is to end.
    """

    def __init__(
        self,
        call: Call,
        context: SessionContext,
        connection: Connection,
        *,
        only: str | None = None,
        admit: Callable[[Proxy], Proxy] = lambda proxy: proxy,
        first: Request | None = None,
    ) -> None:
        """``first``: the first message of the call, if it was decoded to find out who serves it."""
        options, answers = context.options, context.answers
        self._call = call
        self._first = first
        self._context = context
        self._registry = context.registry
        self._connection = connection
        self._bucket = TokenBucket(options.bounds.stream_requests_per_second, options.request_burst)
        self._warming = WarmingFollower(connection, answers, context.catalog.snapshots)
        self._pauses = NackPauses(options.nack_backoff_seconds, options.max_nack_backoff_seconds)
        self._patience = Patience(options.warming_seconds, options.reconnect_grace_seconds)
        self._convergence = Convergence(context.registry)
        self.observer = SessionObserver(
            context, connection, self._warming, self._pauses, self._convergence, self._release
        )
        self.stream = Stream(
            context.catalog,
            connection.variant,
            only=only,
            observer=self.observer,
            wake=self._wake,
            admit=lambda proxy: answers.joining(connection.id, admit(proxy)),
            trial_of=lambda: answers.trial_of(connection.id),
            warms=self._warming.watch.warms,
            bounds=options.bounds,
        )
        connection.stream = self.stream
        connection.look_again = self._look_again
        self._scope = trio.CancelScope()
        self._sleeper: trio.lowlevel.Task | None = None
        self._sleeps_until = inf
        self._news = 0
        """The times that there was something to look at."""
        self._is_new = True
        self._is_ending = False
        self._is_retiring = False
        self._error: StreamError | None = None

    def __repr__(self) -> str:
        return f"<Session {self._connection.id} of {self._connection.peer} {self.stream!r}>"

    async def run(self) -> None:
        """Talk until the client ends the stream or is gone. Raises StreamError when we end it.

        If cancelled, nothing is left but the state machine, which the caller closes.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._send_all)
                await self._receive_all()
        except* StreamTerminatedError:
            pass  # the client is gone, and there is nobody to tell
        if self._error is not None:
            raise self._error

    def end(self, error: StreamError) -> None:
        """End the stream with a status, once what there is to send is sent."""
        self._error = self._error or error
        self._finish()

    def retire(self) -> None:
        """End the stream with OK once what there is to send is sent and answered.

        The client goes on from there on another connection.
        """
        self._is_retiring = True
        self._rouse()

    def push_again(self) -> None:
        """Send all that the client holds once more, changed or not."""
        self.stream.push_again()
        self._rouse()

    def _finish(self) -> None:
        self._is_ending = True
        self._rouse()

    def _wake(self) -> None:
        self._convergence.woken()
        self._connection.follower.woken()
        self._rouse()

    def _look_again(self) -> None:
        self._warming.told()
        self._rouse()

    def _rouse(self) -> None:
        """Have the sender look for something to send."""
        self._news += 1
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)

    # -- the two tasks

    async def _receive_all(self) -> None:
        """Take requests until the client has no more, or sends a wrong one."""
        while (data := await self._call.recv_message()) is not None:
            try:
                await self._receive(data)
            except (StreamError, BoundError) as error:
                self._error = stream_error(error)
                self._scope.cancel()
                return
            if self._must_look():
                self._rouse()
        self._finish()

    def _must_look(self) -> bool:
        """True after a request unless the sender sleeps, and has nothing to do before the time when it gets up."""
        if self._is_new or self._is_retiring or self.stream.has_news or self._sleeper is None:
            return True
        return self._rest(trio.current_time()) < self._sleeps_until

    async def _receive(self, data: bytes) -> None:
        """Take a request; of a stream that is new also those that came behind it. Raises StreamError, BoundError."""
        request, wait = self._read(data)
        while True:
            if wait > 0:
                self._registry.totals.delayed_requests += 1
                await trio.sleep(wait)
            if not self._is_new:
                self._take(request)
                return
            if (left := await self._receive_in_turn(request)) is None:
                return
            request, wait = left

    async def _receive_in_turn(self, request: Request) -> tuple[Request, float] | None:
        """Take the first requests, which determine the proxy and its resources: streams that are new take turns.

        A client that comes back requests everything at once: it has one turn for all of that, and then the sender looks
        once. Returns a request that was read and has to wait, with the seconds.
        """
        async with self._context.turn:
            await trio.lowlevel.checkpoint()
            end = time.perf_counter() + SLICE_SECONDS
            while True:
                self._take(request)
                if not self._call.has_message or time.perf_counter() >= end:
                    return None
                data = await self._call.recv_message()
                assert data is not None
                request, wait = self._read(data)
                if wait > 0:
                    return request, wait

    def _take(self, request: Request) -> None:
        self.stream.on_request(request)
        self._warming.requested(request.type_url)

    def _read(self, data: bytes) -> tuple[Request, float]:
        """A request, and the seconds for which it has to wait. Raises StreamError, BoundError."""
        request = self._parse(data)
        self._registry.totals.largest_request = max(self._registry.totals.largest_request, len(data))
        return request, self._seconds_to_wait(request, len(data))

    def _parse(self, data: bytes) -> Request:
        first, self._first = self._first, None
        if first is not None:
            return first
        try:
            return self._context.decoder.decode(data, self._connection.variant)
        except (DecodeError, UnicodeDecodeError) as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the request cannot be decoded: {error}") from error

    def _seconds_to_wait(self, request: Request, size: int) -> float:
        """How long a request has to wait: a client that is too fast is read slower, it is not refused.

        An ACK or NACK never waits. Other large requests count as several, for they cost as much.
        """
        if self.stream.answers(request):
            return 0.0
        return self._bucket.reserve(1 + size // BYTES_PER_REQUEST, trio.current_time())

    async def _send_all(self) -> None:
        """Send what there is to send, then sleep until there is more."""
        began = trio.current_time()
        while True:
            seen = self._news
            if self._convergence.looked(began):
                self._connection.follower.noted()
            if self.stream.has_work:
                await self._work()
            if self._is_new:
                response = await self._first_response()
            else:
                response = self.stream.next_response(self._pauses.on_hold())
            if response is not None:
                began = await self._send(response, began)
                continue
            deadline = self._rest(trio.current_time() if self._is_new else began)
            self._is_new = self._is_new and self.stream.proxy is None
            if self._is_ending or (self._is_retiring and self.stream.is_settled):
                self._scope.cancel()
                return
            if self._news == seen:
                await self._sleep(deadline)
            began = trio.current_time()

    async def _sleep(self, deadline: float) -> None:
        """Sleep until there may be something to send, or the deadline; if cancelled, the same."""
        self._sleeps_until = deadline
        if deadline == inf:
            await self._park()
            return
        with trio.move_on_at(deadline):
            await self._park()
        if self._patience.end(self.stream):
            self.observer.log.debug("client did not request endpoints of new clusters; continuing without")

    async def _park(self) -> None:
        """Sleep until roused. Costs no object, as an event does for each sleep."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._sleeper = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _work(self) -> None:
        """Generate what the client requests in slices, between which all others get their turn.

        However many sessions have such work: in each round of the event loop one of them has one slice. If cancelled,
        what was generated stays for others.
        """
        # A slice goes on where the one before it stopped: to begin again is to look at all that is generated already.
        # But requests, or another World, may have changed the work between the two.
        work, seen = self.stream.work(), self._news
        while any(True for _ in work):
            is_done = False
            while not is_done:
                async with self._context.turn:
                    await trio.lowlevel.checkpoint()
                    if self._news != seen:
                        work, seen = self.stream.work(), self._news
                    is_done = _work_until(work, time.perf_counter() + SLICE_SECONDS)
            work = self.stream.work()

    async def _first_response(self) -> Response | None:
        """The next response of a stream that was not up to date yet: many such at once have to take turns."""
        async with self._context.turn:
            await trio.lowlevel.checkpoint()
            return self.stream.next_response(self._pauses.on_hold())

    async def _send(self, response: Response, began: float) -> float:
        """Send a response on which work began then; returns when it was sent."""
        encoded = self._context.encoder.encode(response)
        self._convergence.sending()
        self._connection.sending(response, len(encoded), began)
        ready = trio.current_time()
        await self._call.send_message(encoded)
        self._registry.sent_at = sent = trio.current_time()
        if response.type_url in RESOURCE_TYPES:
            self._connection.written(response, len(encoded), sent)
            self._registry.times.pushed(response.type_url, len(encoded), sent - began, sent - ready)
        return sent

    def _rest(self, now: float) -> float:
        """Note that there is nothing to send; returns until when, if nothing happens before.

        When nothing waits for an ACK either, the client is up to date with the last change.
        """
        stream, answers, convergence = self.stream, self._context.answers, self._convergence
        is_acked, awaits_requests = stream.is_acked, stream.awaits_requests
        is_settled = is_acked and not awaits_requests
        is_answered = is_settled and not self._pauses.on_hold()
        if is_answered and answers.is_interested(self._connection.id):
            answers.settled(self._connection.id)
        follower = self._connection.follower
        if is_settled and follower.is_behind:
            follower.settled(now)
        if is_acked and convergence.is_open:
            convergence.accepted(now, counts=not self._connection.is_agent)
        look_at = self._warming.look(stream, now, is_answered=is_answered)
        return min(look_at, self._pauses.deadline, self._patience.deadline(stream, now, is_tried=awaits_requests))

    def _release(self) -> None:
        """End the pause after refusals."""
        self._pauses.end()
        self._rouse()


def stream_error(error: StreamError | BoundError) -> StreamError:
    """The error that ends a stream."""
    if isinstance(error, BoundError):
        return StreamError(Code.RESOURCE_EXHAUSTED, str(error), bound=error.bound)
    return error


def _work_until(work: Iterator[None], end: float) -> bool:
    """Do work until this time of ``time.perf_counter()``. True if all is done."""
    return all(time.perf_counter() < end for _ in work)
