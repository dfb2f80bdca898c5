"""What a stream of MCP feeds: judges what comes, answers it, and tells the World.

One intake lives as long as its source, over all streams and runs. Which side dialled makes no difference to it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

import attrs
import structlog
import trio

from mesh_pilot.model.config import ConfigError, Problem, Severity
from mesh_pilot.model.events import Accepted, Event, Replace, Synced
from mesh_pilot.sources.beside import LARGE_BYTES, beside
from mesh_pilot.sources.mcp.collections import Collection
from mesh_pilot.sources.mcp.here import DEFAULT_HERE, Here, marks
from mesh_pilot.sources.mcp.items import Teller, Value, read_item
from mesh_pilot.sources.mcp.late import LateAnswers
from mesh_pilot.sources.mcp.messages import Resource, Response
from mesh_pilot.sources.mcp.sink import Bad, Outcome, Sink
from mesh_pilot.sources.mcp.traffic import Traffic, TrafficCounter
from mesh_pilot.sources.mcp.wire import Dialect

log = structlog.get_logger(scope="mcp")

SILENCE_SECONDS = 10.0
"""How long the first picture waits for a collection that is not answered, after the last one that was.

A server that answers none is not ready itself (a Galley without its first snapshot): it is waited for, as for one that
can't be reached.
"""

PROBE_SECONDS = 3.0
"""How long a source may take to answer before it is taken to have the collection, where they are asked one by one.

Longer than a Galley waits before it opens another stream in place of one that it gave up, which is a second.
"""


class Call(Protocol):
    """The side of a gRPC stream that is used, whichever end of it is ours; messages are encoded."""

    async def recv_message(self) -> bytes | None: ...

    async def send_message(self, message: bytes, /) -> None: ...


class StreamEnded(Exception):
    """The other side ended its stream without an error."""


@attrs.frozen
class IntakeStatistics:
    """What an intake has. Counts are of now but ``traffic`` and ``judged``."""

    items: int
    """Objects in force."""
    rejected: int
    """Objects that stand refused."""
    synced: bool
    waiting_for: str
    """Collections that keep it from syncing; empty once it has."""
    collections: Mapping[str, int]
    """Resources held of each collection that has any."""
    silent: int
    """Collections asked for on this stream that have not been answered."""
    traffic: Traffic
    judged: int
    """Resources decoded and validated: those whose content was new."""


class Intake:
    """The receiving half of a source.

    One collection may go by two names, and then comes twice: what is the same is judged and told once.

    State: the sink and the teller, which survive a restart; `_outbox`, events under way; `_announced`, whether
    this run has sent its first picture; `_over`, what became good before that.
    """

    def __init__(
        self,
        source: str,
        peer: str,
        collections: Mapping[str, Collection],
        *,
        incremental: bool = True,
        silence_seconds: float = SILENCE_SECONDS,
        here: Here = DEFAULT_HERE,
    ) -> None:
        """``collections`` are those to ask for, by the names that the other side knows them by."""
        self.sink: Sink[Value] = Sink(collections, incremental=incremental)
        self._source = source
        self._collections = collections
        self._twins = {
            name: tuple(n for n, other in collections.items() if other is collection and n != name)
            for name, collection in collections.items()
        }
        self._teller = Teller(source, peer, collections, here)
        self._silence_seconds = silence_seconds
        self._here = here
        self._outbox: deque[Event] = deque()
        self._filled = trio.Event()
        self._emptied = trio.Event()
        self._announced = False
        self._give_up_at = math.inf
        self._probe_until = math.inf
        self.probed: str | None = None
        """The collection that was asked for alone, and is not answered."""
        self.asked_too_early = False
        """Whether the other side greeted only after it was asked on this stream: it may take that amiss."""
        self._over: list[Accepted] = []
        self._has_told_of_ours = False
        self.traffic = TrafficCounter()
        """Counts what goes over the streams."""
        self._judged = 0

    def __repr__(self) -> str:
        return f"<Intake of {self._source}{'' if self._announced else ' not announced'}: {self.sink!r}>"

    @property
    def announced(self) -> bool:
        """Whether this run has sent its first picture."""
        return self._announced

    def statistics(self) -> IntakeStatistics:
        silent = self.sink.silent()
        return IntakeStatistics(
            items=len(self._teller),
            rejected=len(self._teller.rejections),
            synced=self._announced,
            waiting_for="" if self._announced else f"no answer yet for {', '.join(silent)}",
            collections={name: n for name in self._collections if (n := len(self.sink.held(name)))},
            silent=len(silent),
            traffic=self.traffic.statistics(),
            judged=self._judged,
        )

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Pass on what streams bring, for one run of the source; nothing is told before there is a picture again.

        Events do not depend on the stream that brought them: one that breaks in their middle loses none.
        """
        self._announced = False
        self._outbox.clear()
        while True:
            while self._outbox:
                await events.send(self._outbox[0])
                self._outbox.popleft()
            self._emptied.set()
            self._filled = trio.Event()
            await self._filled.wait()

    async def _tell(self, events: Iterable[Event]) -> None:
        """Leave events for `run`, and wait until they are passed on: a slow reducer slows the stream, not memory."""
        self._outbox += events
        if self._outbox:
            self._emptied = trio.Event()
            self._filled.set()
            await self._emptied.wait()

    async def converse(
        self,
        call: Call,
        dialect: Dialect,
        *,
        without: Iterable[str] = (),
        one_by_one: bool = False,
        greeting_seconds: float = 0.0,
    ) -> None:
        """Speak MCP on a stream until it ends. ``without``: collections that the other side does not have.

        ``one_by_one``: ask for a collection only once the one before was answered, or could have been; ``probed`` then
        tells which one was asked for when the stream broke. ``greeting_seconds``: how long the other side may take to
        say something before it is asked. Raises StreamEnded, or what ``call`` raises. What came before the stream broke
        is in force; if cancelled, what is known is kept, and told anew when the source is started again.
        """
        unasked = deque(self.sink.open(without=without))
        self.probed = None
        self.asked_too_early = False
        self._give_up_at = math.inf
        ask_at = trio.current_time() + greeting_seconds
        to_ask = len(unasked)
        is_greeted = False
        late = LateAnswers()
        while True:
            if (answer := late.take_due()) is not None:
                await call.send_message(dialect.request(answer))
                continue
            if unasked and self.probed is None and trio.current_time() >= ask_at:
                request = unasked.popleft()
                self.probed = request.collection if one_by_one else None
                self._probe_until = trio.current_time() + PROBE_SECONDS
                await call.send_message(dialect.request(request))
                continue
            await self._announce_if_complete()
            until = min(self._deadline(), late.due_at, *([ask_at] if unasked and self.probed is None else ()))
            with trio.move_on_at(until) as waiting:
                data = await call.recv_message()
            if waiting.cancelled_caught:
                if trio.current_time() >= self._deadline():
                    await self._waited()
                continue
            if data is None:
                raise StreamEnded("the other side ended the stream")
            self.traffic.received(len(data))
            response = await beside(len(data) > LARGE_BYTES, partial(_decoded, dialect, data))
            if not is_greeted:
                is_greeted, ask_at = True, -math.inf
                self.asked_too_early = response.collection not in self._collections and len(unasked) < to_ask
            if response.collection == self.probed:
                self.probed = None
            if response.collection in self._collections:
                self._give_up_at = trio.current_time() + self._silence_seconds
            outcome = await self._take(response)
            if outcome.is_repetition:
                late.hold(outcome.answer)
            else:
                late.news(outcome.collection)
                await call.send_message(dialect.request(outcome.answer))

    def _deadline(self) -> float:
        """When to stop waiting for a message."""
        probe = math.inf if self.probed is None else self._probe_until
        return min(probe, math.inf if self._announced else self._give_up_at)

    async def _waited(self) -> None:
        """A collection was not answered in time."""
        if self.probed is not None and trio.current_time() >= self._probe_until:
            self.probed = None
            return
        log.warning(
            "collections not answered in time; starting with their previous content",
            source=self._source,
            collections=list(self.sink.silent()),
            after_seconds=self._silence_seconds,
        )
        await self._announce()

    async def _take(self, response: Response) -> Outcome[Value]:
        """Judge a response, and tell what it changes."""
        review = self.sink.receive(self._without_ours(response))
        verdicts: dict[str, Value | Bad] = {}
        problems: dict[str, tuple[Problem, ...]] = {}
        told_before = 0
        for resource in review.fresh:
            verdict = self._verdict_of_twin(response.collection, resource, problems)
            if verdict is None:
                self._judged += 1
                judge = partial(self._judge, response.collection, resource, problems)
                verdict = await beside(len(resource.body) > LARGE_BYTES, judge)
            elif isinstance(verdict, Bad):
                told_before += 1
            verdicts[resource.name] = verdict
            await trio.lowlevel.checkpoint()
        outcome = self.sink.settle(review, verdicts)
        if not review.unknown:
            self.traffic.answered(outcome.collection, refused=outcome.answer.error is not None)
        if outcome.answer.error is not None and not review.unknown:
            tell = log.warning if len(outcome.refused) > told_before else log.debug  # refused before: said before
            tell(
                "NACK: what was good before stays in force, and the rest is taken",
                source=self._source,
                collection=outcome.collection,
                reason=outcome.answer.error.message,
            )
        events = list(self._teller.tell(outcome, problems))
        if not self._announced:
            self._over += (event for event in events if isinstance(event, Accepted))
            return outcome
        await self._tell(events)
        return outcome

    def _without_ours(self, response: Response) -> Response:
        """A response without what has passed here before: it would only hold itself up, and counts as not there."""
        ours = {r.name for r in response.resources if self._here.plane in marks(r.annotations)}
        if not ours:
            return response
        tell = log.debug if self._has_told_of_ours else log.info
        self._has_told_of_ours = True
        tell("left out: what this server has from us", source=self._source, collection=response.collection)
        removed = (*response.removed, *sorted(ours)) if response.incremental else ()
        kept = tuple(r for r in response.resources if r.name not in ours)
        return attrs.evolve(response, resources=kept, removed=removed)

    def _verdict_of_twin(
        self, collection: str, resource: Resource, problems: dict[str, tuple[Problem, ...]]
    ) -> Value | Bad | None:
        """The verdict on the same content under another name of the collection; None where there is none."""
        for twin in self._twins[collection]:
            held, bad = self.sink.held(twin).get(resource.name), self.sink.bad(twin).get(resource.name)
            if bad is not None and bad.resource.is_like(resource):
                problems[resource.name] = self._teller.problems(twin, resource.name)
                return Bad(resource, bad.reason)
            if held is not None and bad is None and held.resource.is_like(resource):
                return held.value
        return None

    def _judge(self, collection: str, resource: Resource, problems: dict[str, tuple[Problem, ...]]) -> Value | Bad:
        origin = self._teller.origin(collection, resource.name)
        try:
            return read_item(self._collections[collection], resource, origin, self._here)
        except ConfigError as error:
            problems[resource.name] = error.problems
            errors = (problem for problem in error.problems if problem.severity is Severity.ERROR)
            return Bad(resource, "; ".join(map(str, errors)))

    async def _announce_if_complete(self) -> None:
        if not self._announced and not self.sink.silent():
            await self._announce()

    async def _announce(self) -> None:
        """Send the first picture of this run."""
        over, self._over, self._announced = self._over, [], True
        items, rejections = self._teller.items, self._teller.rejections
        await self._tell([Replace(self._source, (), items), *over, *rejections, Synced(self._source)])
        log.info("initial sync complete", source=self._source, objects=len(items), rejected=len(rejections))


def _decoded(dialect: Dialect, data: bytes) -> Response:
    try:
        return dialect.response(data)
    except Exception as error:  # betterproto raises many kinds for what is not a message
        raise StreamEnded(f"a response can't be decoded: {error}") from error
