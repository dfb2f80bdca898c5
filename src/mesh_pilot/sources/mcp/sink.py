"""The sink's side of MCP as a pure state machine: responses in; what to judge, to change and to answer out.

    sink = Sink(["istio/networking/v1alpha3/gateways"])
    for request in sink.open(): ...                            # a stream begins
    review = sink.receive(response)                            # what of it is new
    outcome = sink.settle(review, {name: accepted, ...})       # its changes, and the request that answers it

Every response is answered once. One bad resource costs itself only: the response is refused (NACK) with its name and
the reason, what was accepted of that name before stays, and the rest of the response holds.

A source counts a refused response as not taken at all, so after one its idea of what the sink has is wrong: an
increment on top could forget to remove something. The sink therefore asks for the whole collection next time after a
refusal, and for increments again once it has accepted it. It does the same where a source sends again what the sink
said it has when the stream began: that source does not read what it is told, and does not know what to remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import attrs

from mesh_pilot.sources.mcp.messages import Code, Refusal, Request, Resource, Response

V = TypeVar("V")

NAMES_TOLD = 20
"""Bad resources that a refusal names; it says how many more there are."""


@attrs.frozen
class Bad:
    """A resource that can't be accepted."""

    resource: Resource
    reason: str


@attrs.frozen
class Accepted(Generic[V]):
    """A resource in force, and what the judge made of it."""

    resource: Resource
    value: V


@attrs.frozen
class Review:
    """A response that was taken in, and what of it has to be judged."""

    response: Response
    unknown: bool
    """The collection was not asked for: the answer says so, and nothing changes."""
    fresh: tuple[Resource, ...] = ()
    """Resources whose content is not what is in force, or stands refused, already."""
    same: frozenset[str] = frozenset()
    """Names of resources that are in force just as they came."""


@attrs.frozen
class Outcome(Generic[V]):
    """What a response came to."""

    collection: str
    answer: Request
    put: Mapping[str, V] = attrs.field(factory=dict)
    """New and changed, by name."""
    dropped: tuple[tuple[str, V], ...] = ()
    """What is gone, with the value it had."""
    refused: tuple[Bad, ...] = ()
    """Resources that are refused from now on, or for another reason."""
    recovered: tuple[str, ...] = ()
    """Names that stood refused, and do not any more."""
    first: bool = False
    """Whether it is the first response of this collection on this stream."""

    @property
    def is_repetition(self) -> bool:
        """Whether it is refused for what stood refused already, and brought nothing else."""
        changes = self.put or self.dropped or self.refused or self.recovered
        return self.answer.error is not None and bool(self.answer.nonce) and not self.first and not changes


@attrs.define
class _Collection(Generic[V]):
    """What is known of one collection. ``held`` and ``bad`` outlive streams, the rest is of the current one."""

    held: dict[str, Accepted[V]] = attrs.field(factory=dict)
    bad: dict[str, Bad] = attrs.field(factory=dict)
    answered: bool = False
    declared: Mapping[str, str] = attrs.field(factory=dict)
    may_increment: bool = True


class Sink(Generic[V]):
    """The state of one sink over all its streams, of which one at a time is open.

    State: for each collection what is in force and what stands refused, and how far the current stream has come.
    """

    def __init__(self, collections: Iterable[str], *, incremental: bool = True) -> None:
        """``incremental``: ask for increments where the source can send them."""
        self._collections: dict[str, _Collection[V]] = {name: _Collection() for name in collections}
        self._incremental = incremental
        self._left_out: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        held = sum(len(c.held) for c in self._collections.values())
        bad = sum(len(c.bad) for c in self._collections.values())
        return f"<Sink {len(self._collections)} collections, {held} held, {bad} refused, {len(self.silent())} silent>"

    @property
    def collections(self) -> tuple[str, ...]:
        return tuple(self._collections)

    def held(self, collection: str) -> Mapping[str, Accepted[V]]:
        """What is in force, by name."""
        return self._collections[collection].held

    def bad(self, collection: str) -> Mapping[str, Bad]:
        """What stands refused, by name."""
        return self._collections[collection].bad

    def silent(self) -> tuple[str, ...]:
        """Collections that were asked for on this stream and have not been answered yet."""
        return tuple(name for name, c in self._collections.items() if not c.answered and name not in self._left_out)

    def open(self, *, without: Iterable[str] = ()) -> tuple[Request, ...]:
        """A stream begins: the first requests, for all collections but those the source is known not to have.

        What is held of those stays in force.
        """
        self._left_out = frozenset(without)
        requests = []
        for name, state in self._collections.items():
            state.answered = False
            state.may_increment = self._incremental
            state.declared = {}
            if name in self._left_out:
                continue
            if self._incremental:
                state.declared = {n: a.resource.version for n, a in state.held.items() if a.resource.version}
            requests.append(Request(name, versions=state.declared, incremental=self._incremental))
        return tuple(requests)

    def receive(self, response: Response) -> Review:
        """Take a response in. Nothing has changed yet: settle it before the next one is received."""
        state = self._collections.get(response.collection)
        if state is None:
            return Review(response, unknown=True)
        latest = {resource.name: resource for resource in response.resources}
        same = {n for n, r in latest.items() if n in state.held and state.held[n].resource == r}
        fresh = tuple(
            r for n, r in latest.items() if n not in same and (n not in state.bad or state.bad[n].resource != r)
        )
        return Review(response, unknown=False, fresh=fresh, same=frozenset(same))

    def settle(self, review: Review, verdicts: Mapping[str, V | Bad]) -> Outcome[V]:
        """Apply a response: ``verdicts`` has the value of each fresh resource, or why there is none."""
        response = review.response
        if review.unknown:
            refusal = Refusal(Code.UNIMPLEMENTED, f"unsupported collection {response.collection}")
            return Outcome(response.collection, Request(response.collection, response.nonce, error=refusal), first=True)
        state = self._collections[response.collection]
        first = not state.answered
        if (
            first
            and response.incremental
            and any(state.declared.get(r.name) == r.version for r in response.resources if r.version)
        ):
            state.may_increment = False
        state.answered = True
        put: dict[str, V] = {}
        refused: list[Bad] = []
        recovered: list[str] = []
        for resource in review.fresh:
            verdict = verdicts[resource.name]
            if isinstance(verdict, Bad):
                state.bad[resource.name] = verdict
                refused.append(verdict)
                continue
            state.held[resource.name] = Accepted(resource, verdict)
            put[resource.name] = verdict
            if state.bad.pop(resource.name, None):
                recovered.append(resource.name)
        recovered += [name for name in review.same if state.bad.pop(name, None)]
        dropped = self._drop(state, response, recovered)
        answer = self._answer(state, response)
        return Outcome(response.collection, answer, put, dropped, tuple(refused), tuple(recovered), first)

    def _drop(self, state: _Collection[V], response: Response, recovered: list[str]) -> tuple[tuple[str, V], ...]:
        came = {resource.name for resource in response.resources}
        if response.incremental:
            gone = [name for name in response.removed if name not in came]
        else:
            gone = [name for name in {**state.held, **state.bad} if name not in came]
        recovered += [name for name in gone if state.bad.pop(name, None)]
        return tuple((name, state.held.pop(name).value) for name in gone if name in state.held)

    def _answer(self, state: _Collection[V], response: Response) -> Request:
        bad = [state.bad[r.name] for r in response.resources if r.name in state.bad]
        if not bad:
            ask = self._incremental and state.may_increment
            if not response.incremental:
                state.may_increment = self._incremental
                ask = self._incremental
            return Request(response.collection, response.nonce, incremental=ask)
        told = [f"{response.collection} {b.resource.name}: {b.reason}" for b in bad[:NAMES_TOLD]]
        if len(bad) > NAMES_TOLD:
            told.append(f"and {len(bad) - NAMES_TOLD} more")
        refusal = Refusal(Code.INVALID_ARGUMENT, "; ".join(told))
        state.may_increment = False
        return Request(response.collection, response.nonce, error=refusal)
