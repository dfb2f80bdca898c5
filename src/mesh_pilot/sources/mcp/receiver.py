"""The receiving half of an MCP source: validates responses, answers them, and sends events.

A receiver lives as long as its source, over all streams and runs. Which side dialled makes no difference to it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.model.config import ConfigError, Severity
from mesh_pilot.model.events import Event, EventSender, Synced
from mesh_pilot.sources.mcp.pacing import FirstRequests, NackBackoff
from mesh_pilot.sources.mcp.sink import AppliedResponse, RejectedResource, Sink
from mesh_pilot.sources.mcp.statistics import ReceiverStatistics, TrafficCounter
from mesh_pilot.sources.mcp.translate import DecodedItem, EventTranslator, decode_item
from mesh_pilot.xds.mcp.collections import McpCollection
from mesh_pilot.xds.mcp.identity import DEFAULT_IDENTITY, PlaneIdentity, planes_passed
from mesh_pilot.xds.mcp.messages import McpResource, McpResponse, MessageStream
from mesh_pilot.xds.mcp.wire import Dialect

log = structlog.get_logger(scope="mcp")

ANSWER_TIMEOUT_SECONDS = 10.0
"""The time that the first sync waits for a collection that the server does not answer, counted from its last answer.

A server that answers nothing at all is not ready (a Galley without its first snapshot): there is no time limit then, as
for a server that cannot be reached.
"""


class StreamEnded(Exception):
    """The server ended its stream without an error."""


class McpReceiver:
    """Keeps one server's collections, and sends what changes in them as events.

    A collection may have two names (aliases) and is then received twice: equal content is validated and sent once.

    State: the sink and the translator, which survive a restart; the stream's first requests; connected or lost since
    when; `_outbox`, events being sent.
    """

    def __init__(
        self,
        source: str,
        peer: str,
        collections: Mapping[str, McpCollection],
        *,
        incremental: bool = True,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
        identity: PlaneIdentity = DEFAULT_IDENTITY,
    ) -> None:
        """``collections``: those to request, by the server's names."""
        self.sink: Sink[DecodedItem] = Sink(collections, incremental=incremental)
        self.traffic = TrafficCounter()
        self.first_requests = FirstRequests(deque(), math.inf, one_by_one=False)
        """The first requests of the latest stream."""
        self._source = source
        self._collections = collections
        self._aliases = {
            name: tuple(n for n, other in collections.items() if other is collection and n != name)
            for name, collection in collections.items()
        }
        self._translator = EventTranslator(source, peer, collections, identity)
        self._answer_timeout_seconds = answer_timeout_seconds
        self._identity = identity
        self._connected = False
        self._lost_at: float | None = None
        self._outbox: deque[Event] = deque()
        self._filled = trio.Event()
        self._emptied = trio.Event()
        self._has_logged_own = False
        self._judged = 0

    def __repr__(self) -> str:
        return f"<McpReceiver of {self._source}{'' if self._is_synced else ' not synced'}: {self.sink!r}>"

    @property
    def _is_synced(self) -> bool:
        """This run has sent its first snapshot."""
        return self._translator.published.is_announced

    @property
    def is_stale(self) -> bool:
        """The stream was lost after the first sync, and there is no new one."""
        return self._lost_at is not None

    def statistics(self) -> ReceiverStatistics:
        unanswered = self.sink.unanswered()
        published = self._translator.published
        return ReceiverStatistics(
            items=len(published),
            rejected=len(published.rejections()),
            synced=self._is_synced,
            waiting_for="" if self._is_synced else f"no answer yet for {', '.join(unanswered)}",
            connected=self._connected,
            stale_seconds=0.0 if self._lost_at is None else trio.current_time() - self._lost_at,
            collections={name: n for name in self._collections if (n := len(self.sink.accepted(name)))},
            silent=len(unanswered) if self._connected else 0,
            judged=self._judged,
            traffic=self.traffic.statistics(),
        )

    async def run(self, events: EventSender) -> None:
        """Send the events of all streams, for one run of the source. Begins with a snapshot.

        Events outlive the stream that brought them: none is lost if it breaks.
        """
        self._translator.published.restart()
        self._outbox.clear()
        while True:
            while self._outbox:
                await events.send(self._outbox[0])
                self._outbox.popleft()
            self._emptied.set()
            self._filled = trio.Event()
            await self._filled.wait()

    async def _send(self, events: Iterable[Event]) -> None:
        """Hand events to `run` and wait until they are sent, so that a slow reducer slows the stream down."""
        self._outbox += events
        if self._outbox:
            self._emptied = trio.Event()
            self._filled.set()
            await self._emptied.wait()

    async def run_stream(
        self,
        stream: MessageStream,
        dialect: Dialect,
        *,
        without: Iterable[str] = (),
        one_by_one: bool = False,
        greeting_seconds: float = 0.0,
        on_message: Callable[[], None] = lambda: None,
    ) -> None:
        """Receive on a stream until it ends. Raises StreamEnded, or what ``stream`` raises.

        ``without``: collections that the server lacks. ``one_by_one``: request a collection only after the one before
        was answered, or has had the time to be; ``first_requests.probed`` names it if the stream breaks.
        ``greeting_seconds``: how long to wait for the server's first message before the first request. ``on_message``
        is called for each message.

        What was received before the stream broke or the call was cancelled is kept.
        """
        self._connected, self._lost_at = True, None
        requests = deque(self.sink.open(without=without))
        self.first_requests = FirstRequests(requests, trio.current_time() + greeting_seconds, one_by_one=one_by_one)
        try:
            await self._run_stream(stream, dialect, self.first_requests, on_message)
        finally:
            self._connected = False
            self._lost_at = trio.current_time() if self._is_synced else None

    async def _run_stream(
        self,
        stream: MessageStream,
        dialect: Dialect,
        first_requests: FirstRequests,
        on_message: Callable[[], None],
    ) -> None:
        nacks = NackBackoff()
        answer_until = math.inf
        while True:
            if (request := nacks.take_due() or first_requests.take_due()) is not None:
                await stream.send_message(dialect.request(request))
                continue
            if not self._is_synced and not self.sink.unanswered():
                await self._send_snapshot()
            sync_at = math.inf if self._is_synced else answer_until
            with trio.move_on_at(min(sync_at, nacks.due_at, first_requests.due_at)) as timeout:
                data = await stream.recv_message()
            if timeout.cancelled_caught:
                if trio.current_time() >= sync_at:
                    await self._sync_without_answers()
                continue
            if data is None:
                raise StreamEnded("the other side ended the stream")
            on_message()
            self.traffic.received(len(data))
            response = await offload(len(data) > LARGE_BYTES, partial(_decode, dialect, data))
            is_known = response.collection in self._collections
            first_requests.received(response.collection, is_greeting=not is_known)
            if is_known:
                answer_until = trio.current_time() + self._answer_timeout_seconds
            applied = await self._apply(response)
            if applied.is_repetition:
                nacks.delay(applied.answer)
            else:
                nacks.reset(applied.collection)
                await stream.send_message(dialect.request(applied.answer))

    async def _sync_without_answers(self) -> None:
        log.warning(
            "collections not answered in time; starting with their previous content",
            source=self._source,
            collections=list(self.sink.unanswered()),
            after_seconds=self._answer_timeout_seconds,
        )
        await self._send_snapshot()

    async def _send_snapshot(self) -> None:
        """Send everything in force, as the first events of this run."""
        published = self._translator.published
        await self._send([*published.announce(), Synced(self._source)])
        log.info(
            "initial sync complete",
            source=self._source,
            objects=len(published),
            rejected=len(published.rejections()),
        )

    async def _apply(self, response: McpResponse) -> AppliedResponse[DecodedItem]:
        """Validate and apply a response, and send its events."""
        review = self.sink.receive(self._without_own(response))
        verdicts: dict[str, DecodedItem | RejectedResource] = {}
        rejected_before = 0
        for resource in review.changed:
            verdict = self._verdict_on_alias(response.collection, resource)
            if verdict is None:
                self._judged += 1
                validate = partial(self._validate, response.collection, resource)
                verdict = await offload(len(resource.body) > LARGE_BYTES, validate)
            elif isinstance(verdict, RejectedResource):
                rejected_before += 1
            verdicts[resource.name] = verdict
            await trio.lowlevel.checkpoint()
        applied = self.sink.apply(review, verdicts)
        error = applied.answer.error
        if not review.unknown:
            self.traffic.answered(applied.collection, nack=error is not None)
        if error is not None and not review.unknown:
            # What was rejected under an alias, or in an earlier response, has been logged already.
            write = log.warning if len(applied.rejected) > rejected_before else log.debug
            write(
                "NACK sent; last valid versions are kept, the rest is applied",
                source=self._source,
                collection=applied.collection,
                reason=error.message,
            )
        await self._send(self._translator.events(applied, response.version or response.nonce))
        return applied

    def _without_own(self, response: McpResponse) -> McpResponse:
        """A response without objects that have passed this control plane: they count as absent, or they would keep
        themselves alive in a ring of control planes."""
        own = {r.name for r in response.resources if self._identity.plane_id in planes_passed(r.annotations)}
        if not own:
            return response
        write = log.debug if self._has_logged_own else log.info
        self._has_logged_own = True
        write(
            "ignoring objects that originate from this control plane",
            source=self._source,
            collection=response.collection,
        )
        removed = (*response.removed, *sorted(own)) if response.incremental else ()
        others = tuple(r for r in response.resources if r.name not in own)
        return attrs.evolve(response, resources=others, removed=removed)

    def _verdict_on_alias(self, collection: str, resource: McpResource) -> DecodedItem | RejectedResource | None:
        """The verdict on the same content under another name of the collection; None if there is none."""
        for alias in self._aliases[collection]:
            accepted = self.sink.accepted(alias).get(resource.name)
            rejected = self.sink.rejected(alias).get(resource.name)
            if rejected is not None:
                if rejected.resource.equals_except_version(resource):
                    return attrs.evolve(rejected, resource=resource)
            elif accepted is not None and accepted.resource.equals_except_version(resource):
                return accepted.value
        return None

    def _validate(self, collection: str, resource: McpResource) -> DecodedItem | RejectedResource:
        origin = self._translator.origin(collection, resource.name)
        try:
            return decode_item(self._collections[collection], resource, origin, self._identity)
        except ConfigError as error:
            errors = (problem for problem in error.problems if problem.severity is Severity.ERROR)
            return RejectedResource(resource, "; ".join(map(str, errors)), error.problems)


def _decode(dialect: Dialect, data: bytes) -> McpResponse:
    try:
        return dialect.response(data)
    except Exception as error:  # betterproto raises many kinds for malformed messages
        raise StreamEnded(f"a response can't be decoded: {error}") from error
