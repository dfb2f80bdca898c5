"""One stream on the wire: requests go to the state machine and its responses out, in a task where it has to wait.

A stream that is up to date costs its change and its ACK, and no switch of tasks: its task sleeps. A change is pushed by
one task for all streams that it has woken (`DuePushes`), and an ACK is taken in by whoever reads the socket
(`Session._take_at_once`), because neither has to wait: a response that the windows do not hold, a request that is no
ACK, a first response, what has to be generated, and every error wake the stream's own task, which does the rest.

A client that does not read holds up its own task only: what changes until it reads is merged in the state machine. That
task reads no requests while it sends; they wait in the window, as those wait that come too fast.

All state is in objects that belong to the session, or that are only touched between two waits: `Stream` (what to send),
`SessionObserver` (who learns of it), `NackPauses`, `Patience` and `Convergence` (times), `WarmingFollower`. A session
that generates much takes turns with all others, in slices: the event loop belongs to thousands of streams, and the
first push of one may take a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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

REQUESTS_A_LOOK = 32
"""Requests that are taken before the stream is looked at for something to send."""

BYTES_PER_REQUEST = 64 * 1024
"""A larger request counts as one more for each so many bytes."""


class Call(Protocol):
    """The side of an ``net.rpc.ServerStream`` that a session uses, with encoded messages."""

    @property
    def has_message(self) -> bool: ...

    @property
    def is_readable(self) -> bool: ...

    def receive_at_once(self, take: Callable[[bytes], bool], on_news: Callable[[], None], /) -> None: ...

    async def recv_message(self) -> bytes | None: ...

    def send_at_once(self, message: bytes, /) -> bool: ...

    async def send_message(self, message: bytes, /) -> None: ...


class Session:
    """One stream with its task.

    Mutable state: the task while it sleeps, and until when, whether it has to look again before it does, whether a push
    is due, the response that it has to send, the request that has to wait, whether the stream is up to date for the
    first time yet, and whether and how it is to end.
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
        self._sleeper: trio.lowlevel.Task | None = None
        self._sleeps_until = inf
        self._news = 0
        """The times that there was something to look at."""
        self._is_due = False
        self._unsent: tuple[Response, bytes, float] | None = None
        """A response, encoded, and when work on it began, that the client's windows had no room for."""
        self._held: tuple[Request, float] | None = None
        """A request of a client that is too fast, and when its time comes. Nothing is read before."""
        self._has_ended = False
        """True once the client has half-closed."""
        self._is_new = True
        self._is_ending = False
        self._is_retiring = False
        self._error: StreamError | None = None
        self._failure: Exception | None = None
        """An error outside of the task, which raises it."""

    def __repr__(self) -> str:
        return f"<Session {self._connection.id} of {self._connection.peer} {self.stream!r}>"

    async def run(self) -> None:
        """Talk until the client ends the stream or is gone. Raises StreamError when we end it.

        If cancelled, nothing is left to do but to close it.
        """
        self._call.receive_at_once(self._take_at_once, self._rouse_task)
        with suppress(StreamTerminatedError):  # the client is gone, and there is nobody to tell
            await self._talk()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """The stream is over: release what refers back to the session, as errors do by their frames. What is in no
        cycle is freed now, and not by a collection."""
        self.stream.close()
        self.observer.disconnected()
        del self.stream, self.observer, self._error, self._failure

    def end(self, error: StreamError) -> None:
        """End the stream with a status, once what there is to send is sent."""
        self._error = self._error or error
        self._finish()

    def retire(self) -> None:
        """End the stream with OK once what there is to send is sent and answered.

        The client continues from there on another connection.
        """
        self._is_retiring = True
        self._rouse_task()

    def push_again(self) -> None:
        """Send all that the client holds once more, changed or not."""
        self.stream.push_again()
        self._rouse()

    def _finish(self) -> None:
        self._is_ending = True
        self._rouse_task()

    def _wake(self) -> None:
        self._convergence.woken(self._context.pushes.since)
        self._connection.follower.woken()
        self._news += 1
        if not self._is_due:
            self._rouse()

    def _look_again(self) -> None:
        self._warming.told()
        self._rouse()

    def _rouse(self) -> None:
        """Have the stream looked at for something to send: by its task, or, while that sleeps, by that of all."""
        self._news += 1
        if self._sleeper is None or self._is_due:
            return
        if self._is_new or self._is_retiring:
            self._rouse_task()
        else:
            self._is_due = True
            self._context.pushes.add(self._push)

    def _rouse_task(self) -> None:
        """Have the task look at everything."""
        self._news += 1
        sleeper, self._sleeper = self._sleeper, None
        if sleeper is not None:
            trio.lowlevel.reschedule(sleeper)

    # -- what needs no waiting, while the task sleeps

    def _push(self) -> None:
        """Send what the stream has to send, in the task of all streams. What has to wait is left to this one's own."""
        self._is_due = False
        if self._sleeper is None:
            return  # it looks on its own before it sleeps
        try:
            self._push_at_once()
        except Exception as error:
            self._failure = error
            self._rouse_task()

    def _push_at_once(self) -> None:
        began = trio.current_time()
        if self._convergence.looked(began):
            self._connection.follower.noted()
        if self.stream.has_work:
            self._rouse_task()
            return
        while (response := self.stream.next_response(self._pauses.on_hold())) is not None:
            encoded = self._encode(response, began)
            if not self._call.send_at_once(encoded):
                self._unsent = response, encoded, began
                self._rouse_task()
                return
            sent = trio.current_time()
            self._note_sent(response, len(encoded), began, sent, sent)
            began = sent
            if not self.stream.has_news:
                break
        self._rest_at_once(began)

    def _take_at_once(self, data: bytes) -> bool:
        """Take a request as soon as it is read, if it is an ACK and the stream has nothing else to do. Raises nothing;
        any other request, and one that is wrong, is left to the task."""
        if self._sleeper is None or self._held is not None or self._is_new or self._is_retiring:
            return False
        try:
            request = self._decode(data)
            if request.error is not None or not self.stream.answers(request):
                return False
            self._note_size(len(data))
            self._take(request)
            if self.stream.has_news:
                self._rouse()
            else:
                self._rest_at_once(trio.current_time())
        except (DecodeError, UnicodeDecodeError):
            return False
        except Exception as error:
            self._failure = error
            self._rouse_task()
        return True

    def _rest_at_once(self, now: float) -> None:
        """Note that there is nothing to send. The task is woken only if it has to get up earlier than it meant to."""
        if self._rest(now) < self._sleeps_until:
            self._rouse_task()

    # -- the task

    async def _talk(self) -> None:
        """Take what is requested and send what there is to send, then sleep until there is more; until the end.

        Raises StreamError for a wrong request, and what went wrong outside of the task.
        """
        began = trio.current_time()
        while True:
            # One look after another, because each may change what the next one finds: a request makes work, work makes
            # a response; only if there is neither may the stream rest or end. Whatever happens while it waits in one
            # of them counts as news, so that it does not sleep before it has looked again.
            seen = self._news
            await self._receive_some()
            if self._failure is not None:
                raise self._failure
            if self._convergence.looked(began):
                self._connection.follower.noted()
            if self.stream.has_work:
                await self._work()
            if self._unsent is not None:
                began = await self._send(*self._unsent)
                continue
            if self._is_new:
                response = await self._first_response()
            else:
                response = self.stream.next_response(self._pauses.on_hold())
            if response is not None:
                began = await self._send(response, self._encode(response, began), began)
                continue
            deadline = self._rest(trio.current_time() if self._is_new else began)
            self._is_new = self._is_new and self.stream.proxy is None
            if self._is_ending or (self._is_retiring and self.stream.is_settled):
                return
            if self._news == seen and not self._may_receive:
                deadline = deadline if self._held is None else min(deadline, self._held[1])
                await (self._park(inf) if deadline == inf else self._sleep(deadline))
            began = trio.current_time()

    @property
    def _may_receive(self) -> bool:
        return self._held is None and not self._has_ended and self._call.is_readable

    async def _receive_some(self) -> None:
        """Take the requests that are there, up to one that has to wait; of a stream that is new as many as its turn
        allows. Raises StreamError, BoundError."""
        for _ in range(REQUESTS_A_LOOK):
            if self._held is not None:
                request, at = self._held
                if trio.current_time() < at:
                    return
                self._held = None
            elif self._may_receive:
                data = await self._call.recv_message()
                if data is None:
                    self._has_ended = self._is_ending = True
                    return
                request, wait = self._read(data)
                del data  # it may have 60 KB, and a stream that is new waits for its turn
                if wait > 0:
                    self._hold(request, wait)
                    return
            else:
                return
            if not self._is_new:
                self._take(request)
            elif (left := await self._receive_in_turn(request)) is not None:
                self._hold(*left)

    def _hold(self, request: Request, seconds: float) -> None:
        """Take a request later."""
        self._registry.totals.delayed_requests += 1
        self._held = request, trio.current_time() + seconds

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
        first, self._first = self._first, None
        request = first or self._parse(data)
        self._note_size(len(data))
        return request, self._seconds_to_wait(request, len(data))

    def _note_size(self, size: int) -> None:
        totals = self._registry.totals
        if size > totals.largest_request:
            totals.largest_request = size

    def _decode(self, data: bytes) -> Request:
        return self._context.decoder.decode(data, self._connection.variant)

    def _parse(self, data: bytes) -> Request:
        try:
            return self._decode(data)
        except (DecodeError, UnicodeDecodeError) as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the request cannot be decoded: {error}") from error

    def _seconds_to_wait(self, request: Request, size: int) -> float:
        """The seconds that a request has to wait: a client that is too fast is read slower, it is not refused.

        An ACK or NACK never waits. Other large requests count as several, for they cost as much.
        """
        if self.stream.answers(request):
            return 0.0
        return self._bucket.reserve(1 + size // BYTES_PER_REQUEST, trio.current_time())

    async def _sleep(self, deadline: float) -> None:
        """Sleep until there may be something to send, or the deadline. Takes a scope, which most streams do without."""
        with trio.move_on_at(deadline):
            await self._park(deadline)
        if self._patience.end(self.stream):
            self.observer.log.debug("client did not request endpoints of new clusters; continuing without")

    async def _park(self, until: float) -> None:
        """Sleep until roused; who cancels it is to do so then. Costs no object, as an event does for each sleep."""
        self._sleeps_until = until
        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)

    def _stop_sleeping(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _work(self) -> None:
        """Generate what the client requests in slices, between which all others get their turn.

        However many sessions have such work: in each round of the event loop one of them has one slice. If cancelled,
        what was generated stays for others.
        """
        # A slice continues where the one before it stopped: to begin again is to look at all that is generated already.
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

    def _encode(self, response: Response, began: float) -> bytes:
        """A response on which work began then, as it is sent now."""
        encoded = self._context.encoder.encode(response)
        self._convergence.sending()
        self._connection.sending(response, len(encoded), began)
        return encoded

    async def _send(self, response: Response, encoded: bytes, began: float) -> float:
        """Send a response; returns when it was sent."""
        ready = trio.current_time()
        self._unsent = None
        await self._call.send_message(encoded)
        sent = trio.current_time()
        self._note_sent(response, len(encoded), began, ready, sent)
        return sent

    def _note_sent(self, response: Response, size: int, began: float, ready: float, sent: float) -> None:
        self._registry.sent_at = sent
        if response.type_url in RESOURCE_TYPES:
            self._connection.written(response, size, sent)
            self._registry.times.pushed(response.type_url, size, sent - began, sent - ready)

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
