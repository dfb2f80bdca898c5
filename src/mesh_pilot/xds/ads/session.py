"""One stream on the wire: a task that reads requests, a task that sends the responses of the state machine.

The sending task sleeps until a request comes or the proxy's resources wake it. A client that does not read holds up
that task only: what changes meanwhile is merged in the state machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from math import inf
from typing import Protocol

import attrs
import structlog
import trio
from google.protobuf.message import DecodeError

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, BoundError, Bounds
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.net.rpc import StreamTerminatedError
from mesh_pilot.net.rpc.rate_limits import LogLimiter, TokenBucket
from mesh_pilot.xds.ads.answers import NO_ANSWER_OBSERVER, AnswerObserver
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Code, Nack, Request, Response, StreamError, Variant
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.status import Connection, StatusRegistry
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.warming_follower import WarmingFollower
from mesh_pilot.xds.ads.workloads import NO_WORKLOAD_OBSERVER, WorkloadObserver

log = structlog.get_logger(scope="xds")

MAX_NAMES_LOGGED = 10
"""Resources and configs in a log line about a NACK."""

MAX_REASON_LOGGED = 2000
"""Characters of the client's reason in it."""

SLICE_SECONDS = 0.005
"""Time for which a session generates resources before others get their turn."""

BYTES_PER_REQUEST = 64 * 1024
"""A larger request counts as one more for each so many bytes."""


@attrs.frozen(kw_only=True)
class XdsOptions:
    """Bounds of the server, and the times that its streams allow."""

    bounds: Bounds = DEFAULT_BOUNDS
    """Limits on the number, size and rate of requests."""
    warming_seconds: float = 3.0
    """How long listeners and routes wait for a client to request the endpoints of new clusters."""
    reconnect_grace_seconds: float = 0.2
    """How long a reconnecting client has to request all that it has, before clusters are taken from it, or it is told
    that clusters which it does not subscribe to have no endpoints."""
    nack_backoff_seconds: float = 0.25
    """How long a type waits after the second NACK in a row; doubled at each further one."""
    max_nack_backoff_seconds: float = 30.0
    request_burst: float = 1000.0
    """Requests that a stream may send at once after a pause, if its rate is bounded."""
    stream_burst: float = 1000.0
    """New streams that may begin at once after a pause, if their rate is bounded."""


DEFAULT_OPTIONS = XdsOptions()


class Call(Protocol):
    """The side of an ``rpc.ServerStream`` that a session uses, with encoded messages."""

    async def recv_message(self) -> bytes | None: ...

    async def send_message(self, message: bytes, /) -> None: ...


class Session:
    """One stream with its tasks. Observes the stream: writes the log, and passes everything on to the registry.

    Mutable state: the state machine; the event that the sender sleeps on; how often each type was refused in a row
    and until when it is on hold; when the change being sent was published.
    """

    def __init__(
        self,
        call: Call,
        catalog: Catalog,
        variant: Variant,
        *,
        only: str | None,
        decoder: Decoder,
        encoder: Encoder,
        registry: StatusRegistry,
        connection: Connection,
        options: XdsOptions,
        admit: Callable[[Proxy], Proxy],
        turn: trio.Lock | None = None,
        nack_log: LogLimiter | None = None,
        presence_log: LogLimiter | None = None,
        answers: AnswerObserver = NO_ANSWER_OBSERVER,
        workloads: WorkloadObserver = NO_WORKLOAD_OBSERVER,
    ) -> None:
        """``turn`` is shared by sessions that may work for long: one does so at a time, for a slice.

        ``nack_log`` bounds the log lines about NACKs of all sessions that share it; ``presence_log`` those about
        proxies that connect and disconnect.
        """
        bounds = options.bounds

        def joining(proxy: Proxy) -> Proxy:
            return answers.joining(connection.id, admit(proxy))

        self._warming = WarmingFollower(connection, answers, catalog.snapshots)
        self.stream = Stream(
            catalog,
            variant,
            only=only,
            observer=self,
            wake=self._wake,
            admit=joining,
            trial_of=lambda: answers.trial_of(connection.id),
            warms=self._warming.watch.warms,
            bounds=bounds,
        )
        self._answers = answers
        self._workloads = workloads
        connection.stream = self.stream
        connection.look_again = lambda: self._news.set()
        self._call = call
        self._decoder = decoder
        self._turn = turn or trio.Lock()
        self._nack_log = nack_log or LogLimiter()
        self._presence_log = presence_log or LogLimiter(seconds=0)
        self._bucket = TokenBucket(bounds.stream_requests_per_second, options.request_burst)
        self._is_new = True
        self._began = trio.current_time()
        self._variant = variant
        self._encoder = encoder
        self._registry = registry
        self._connection = connection
        self._options = options
        self._log = log.bind(stream=connection.id, peer=connection.peer)
        self._scope = trio.CancelScope()
        self._news = trio.Event()
        self._is_woken = False
        self._woken_at = 0.0
        self._is_ending = False
        self._is_retiring = False
        self._error: StreamError | None = None
        self._nacks_in_a_row: dict[str, int] = {}
        self._on_hold_until: dict[str, float] = {}
        self._warming_until: float | None = None
        self._grace_until: float | None = None
        self._changed_at: float | None = None
        self._has_sent_change = False

    def __repr__(self) -> str:
        return f"<Session {self._connection.id} of {self._connection.peer} {self.stream!r}>"

    async def run(self) -> None:
        """Talk until the client ends the stream or is gone. Raises StreamError when we end it.

        If cancelled, nothing is left but the state machine, which the caller closes.
        """
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._receive_all)
                    nursery.start_soon(self._send_all)
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
        self._news.set()

    def push_again(self) -> None:
        """Send all that the client holds once more, changed or not."""
        self.stream.push_again()
        self._news.set()

    def _finish(self) -> None:
        self._is_ending = True
        self._news.set()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._woken_at = trio.current_time()
        self._connection.follower.woken()
        self._news.set()

    # -- the two tasks

    async def _receive_all(self) -> None:
        """Take requests until the client has no more, or sends a wrong one."""
        while (data := await self._call.recv_message()) is not None:
            try:
                request = self._parse(data)
                self._registry.largest_request = max(self._registry.largest_request, len(data))
                wait = self._seconds_to_wait(request, len(data))
                if wait > 0:
                    self._registry.delayed_requests += 1
                    await trio.sleep(wait)
                if self._is_new:
                    # The first ones determine the proxy and its resources.
                    async with self._turn:
                        await trio.lowlevel.checkpoint()
                        self.stream.on_request(request)
                else:
                    self.stream.on_request(request)
            except (StreamError, BoundError) as error:
                self._error = stream_error(error)
                self._scope.cancel()
                return
            self._news.set()
        self._finish()

    def _parse(self, data: bytes) -> Request:
        try:
            return self._decoder.decode(data, self._variant)
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
        while True:
            news = self._news = trio.Event()
            self._note_change()
            began = trio.current_time()
            if self.stream.has_work:
                await self._work()
            if self._is_new:
                response = await self._first_response()
            else:
                response = self.stream.next_response(self._on_hold())
            if response is not None:
                await self._send(response, began)
                continue
            self._note_quiet()
            self._is_new = self._is_new and self.stream.proxy is None
            if self._is_ending or (self._is_retiring and self._is_settled()):
                self._scope.cancel()
                return
            look_at = self._warming.look(self.stream, trio.current_time(), is_answered=self._is_answered())
            deadline = min(self._next_deadline(), look_at)
            if deadline == inf:
                await news.wait()
                continue
            with trio.move_on_at(deadline):
                await news.wait()
            self._stop_waiting_in_time()

    async def _work(self) -> None:
        """Generate what the client requests in slices, between which all others get their turn.

        However many sessions have such work: in each round of the event loop one of them has one slice. If cancelled,
        what was generated stays for others.
        """
        # The world may change between two turns of this session, and with it the work.
        while any(True for _ in self.stream.work()):
            async with self._turn:
                await trio.lowlevel.checkpoint()
                end = time.perf_counter() + SLICE_SECONDS
                for _ in self.stream.work():
                    if time.perf_counter() >= end:
                        break

    async def _first_response(self) -> Response | None:
        """The next response of a stream that was not up to date yet: many such at once have to take turns."""
        async with self._turn:
            await trio.lowlevel.checkpoint()
            return self.stream.next_response(self._on_hold())

    async def _send(self, response: Response, began: float) -> None:
        encoded = self._encoder.encode(response)
        self._has_sent_change = self._changed_at is not None
        self._connection.sending(response, len(encoded), began)
        ready = trio.current_time()
        await self._call.send_message(encoded)
        self._registry.sent_at = sent = trio.current_time()
        if response.type_url in RESOURCE_TYPES:
            self._connection.written(response, len(encoded), sent)
            self._registry.times.pushed(response.type_url, len(encoded), sent - began, sent - ready)

    # -- time

    def _on_hold(self) -> set[str]:
        """Types that wait before they are sent again, because the client keeps refusing them."""
        if not self._on_hold_until:
            return set()
        now = trio.current_time()
        self._on_hold_until = {type_url: until for type_url, until in self._on_hold_until.items() if until > now}
        return set(self._on_hold_until)

    def _next_deadline(self) -> float:
        """When to wake up without news."""
        waiting = self.stream.waiting_for()
        in_grace = waiting.referrers or waiting.clusters
        if not (waiting.endpoints or in_grace or self._on_hold_until):
            self._warming_until = self._grace_until = None
            return inf
        now, options = trio.current_time(), self._options
        self._warming_until = self._warming_until or now + options.warming_seconds if waiting.endpoints else None
        self._grace_until = self._grace_until or now + options.reconnect_grace_seconds if in_grace else None
        return min(self._warming_until or inf, self._grace_until or inf, *self._on_hold_until.values())

    def _stop_waiting_in_time(self) -> None:
        now = trio.current_time()
        if self._warming_until is not None and now >= self._warming_until:
            self._log.debug("client did not request endpoints of new clusters; continuing without")
            self.stream.end_warming()
        if self._grace_until is not None and now >= self._grace_until:
            self.stream.end_reconnect_grace()

    def _note_change(self) -> None:
        if self._is_woken:
            self._is_woken = False
            self._registry.times.waited(trio.current_time() - self._woken_at)
            self._connection.follower.noted()
            if self._changed_at is None:
                self._changed_at = self._registry.published_at

    def _note_quiet(self) -> None:
        """Nothing to send: when nothing waits for an ACK either, the client is up to date with the last change."""
        if self._answers.is_interested(self._connection.id) and self._is_answered():
            self._answers.settled(self._connection.id)
        follower = self._connection.follower
        if self._changed_at is None and not follower.is_behind:
            return
        waiting = self.stream.waiting_for()
        if follower.is_behind and not waiting.is_for_client:
            follower.settled(trio.current_time())
        if self._changed_at is None or waiting.acks:
            return
        if self._has_sent_change and not self._connection.is_agent:
            self._registry.times.converged(trio.current_time() - self._changed_at)
        self._changed_at = None
        self._has_sent_change = False

    def _is_settled(self) -> bool:
        return not self.stream.waiting_for().is_for_client

    def _is_answered(self) -> bool:
        """True if nothing waits for the client, and nothing waits to be sent."""
        return not self._on_hold() and self._is_settled()

    def _release(self) -> None:
        """End the pause after refusals."""
        self._on_hold_until.clear()
        self._nacks_in_a_row.clear()
        self._news.set()

    # -- observing the stream

    def connected(self, proxy: Proxy) -> None:
        self._log = self._log.bind(proxy=proxy.id)
        self._connection.connected(proxy)
        if proxy.agent:
            self._log_presence("agent connected", version=proxy.agent, variant=str(self._variant))
            return
        self._answers.joined(self._connection.id, proxy, self.stream, self._release)
        self._log_presence("proxy connected", version=proxy.version, variant=str(self._variant))

    def disconnected(self) -> None:
        """The stream has ended: write it to the log, if there ever was a proxy."""
        self._answers.left(self._connection.id)
        if self._registry.observer is not None:
            self._registry.observer.left(self._connection.id, trio.current_time())
        if self._connection.proxy is not None:
            event = "agent disconnected" if self._connection.is_agent else "proxy disconnected"
            self._log_presence(event, after=round(trio.current_time() - self._began, 3))

    def _log_presence(self, event: str, **fields: object) -> None:
        """Write a line at ``info``, or at ``debug`` if there are too many."""
        suppressed = self._presence_log.admit(event, trio.current_time())
        if suppressed is None:
            self._log.debug(event, **fields)
        else:
            self._log.info(event, **fields, **({"suppressed": suppressed} if suppressed else {}))

    def sent(self, response: Response) -> None:
        self._connection.sent(response)
        self._warming.watch.note_sent(response, trio.current_time())
        self._answers.sent(self._connection.id, response.type_url)
        self._log.debug(
            "push",
            type=RESOURCE_TYPES[response.type_url].short,
            resources=len(response.resources),
            removed=len(response.removed),
            version=response.version,
        )

    def acked(self, type_url: str, nonce: str, version: str) -> None:
        self._nacks_in_a_row.pop(type_url, None)
        self._connection.acked(type_url, nonce, version)
        if self._registry.observer is not None:
            self._registry.observer.answered(self._connection.id, type_url, trio.current_time(), None)
        self._answers.accepted(self._connection.id, type_url)
        self._log.debug("ACK", type=RESOURCE_TYPES[type_url].short, version=version)

    def warms(self, report: str | None) -> None:
        self._warming.reported(report)

    def reported(self, error: str | None) -> None:
        self._workloads.reported(self._connection.id, error)

    def ignored(self, type_url: str) -> None:
        self._registry.stale_requests[type_url] += 1

    def unserved(self, type_url: str) -> None:
        write = self._log.info if self._registry.unserved(type_url) else self._log.debug
        write("type not served: answered with no resources, the stream goes on", type=type_url)

    def rejected(self, nack: Nack) -> None:
        self._connection.rejected(nack)
        if self._registry.observer is not None:
            self._registry.observer.answered(self._connection.id, nack.type_url, trio.current_time(), nack.reason)
        self._changed_at = None  # the change will not be accepted, so it never converges
        count = self._nacks_in_a_row[nack.type_url] = self._nacks_in_a_row.get(nack.type_url, 0) + 1
        is_handled = self._answers.refused(self._connection.id, nack)
        if count > 1 and not is_handled:
            longest = self._options.nack_backoff_seconds * 2 ** min(count - 2, 30)
            longest = min(longest, self._options.max_nack_backoff_seconds)
            self._on_hold_until[nack.type_url] = trio.current_time() + longest * random.uniform(0.5, 1)
        suppressed = self._nack_log.admit((nack.proxy.id, nack.type_url, nack.names[:1]), trio.current_time())
        if suppressed is None:
            return
        more = {"suppressed": suppressed} if suppressed else {}
        self._log.warning(
            "NACK: what the proxy had before stays in force",
            type=RESOURCE_TYPES[nack.type_url].short,
            resources=list(nack.names[:MAX_NAMES_LOGGED]),
            reason=nack.reason[:MAX_REASON_LOGGED],
            configs=[str(key) for key in nack.configs[:MAX_NAMES_LOGGED]],
            in_a_row=count,
            **more,
        )


def stream_error(error: StreamError | BoundError) -> StreamError:
    """The error that ends a stream."""
    if isinstance(error, BoundError):
        return StreamError(Code.RESOURCE_EXHAUSTED, str(error), bound=error.bound)
    return error
