"""The client's side of MCP (its sink) as a pure state machine: responses in, changes and requests out.

    sink = Sink(["istio/networking/v1alpha3/gateways"])
    for request in sink.open(): ...                           # a stream begins
    review = sink.receive(response)                           # which resources have to be validated
    applied = sink.apply(review, {name: value, ...})          # the changes, and the request that answers

Theory of operation:

- Every response is answered once. An invalid resource affects only itself: the response is refused (NACK) with its name
  and the reason, its last accepted version stays, and the rest of the response is applied.
- A server counts a NACKed response as not applied at all, so its view of the client is wrong from then on: an increment
  on top could omit a removal. After a NACK the sink therefore requests the whole collection next, and increments again
  once it has accepted that.
- It does the same if a server's first response repeats resources at the versions which the sink declared when it opened
  the stream. That server ignores declared versions, so it does not know what to remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import attrs

from mesh_pilot.model.config import Problem
from mesh_pilot.xds.mcp.messages import ErrorCode, ErrorDetail, McpRequest, McpResource, McpResponse

V = TypeVar("V")

MAX_NAMES_IN_NACK = 20
"""Invalid resources named in a NACK; of further ones it gives the number."""


@attrs.frozen
class RejectedResource:
    """An invalid resource."""

    resource: McpResource
    reason: str
    """The errors, for the server."""
    problems: tuple[Problem, ...] = ()
    """The same with warnings, for our own users."""


@attrs.frozen
class AcceptedResource(Generic[V]):
    """A resource in force, and its validated value."""

    resource: McpResource
    value: V


@attrs.frozen
class Review:
    """A received response, and the resources in it that have to be validated."""

    response: McpResponse
    unknown: bool
    """The collection was not requested: the answer says so, and nothing changes."""
    changed: tuple[McpResource, ...] = ()
    """Resources that differ from both the accepted and the rejected one of their name."""
    unchanged: frozenset[str] = frozenset()
    """Names of resources that are in force exactly as received."""


@attrs.frozen
class AppliedResponse(Generic[V]):
    """The changes that a response made, and the request that answers it."""

    collection: str
    answer: McpRequest
    upserted: Mapping[str, V] = attrs.field(factory=dict)
    """New and changed values, and those of accepted resources that came again after a rejected one; by name."""
    removed: tuple[tuple[str, V], ...] = ()
    """Removed names with their last values."""
    rejected: tuple[RejectedResource, ...] = ()
    """Newly rejected resources, or for a new reason."""
    recovered: tuple[str, ...] = ()
    """Names that were rejected and no longer are: they are in ``upserted``, or gone."""
    is_first: bool = False
    """The first response of this collection on this stream."""
    names_removed: bool = False
    """True if the server said what is removed; False if it is only no longer in the response."""

    @property
    def is_repetition(self) -> bool:
        """True for a NACK of resources that were rejected before, if nothing else changed."""
        changes = self.upserted or self.removed or self.rejected or self.recovered
        return self.answer.error is not None and bool(self.answer.nonce) and not self.is_first and not changes


@attrs.define
class _SinkCollection(Generic[V]):
    may_increment: bool
    accepted: dict[str, AcceptedResource[V]] = attrs.field(factory=dict)
    rejected: dict[str, RejectedResource] = attrs.field(factory=dict)
    # Of the current stream:
    is_answered: bool = False
    declared: Mapping[str, str] = attrs.field(factory=dict)
    """The versions that the first request declared."""


class Sink(Generic[V]):
    """One client over all its streams, of which one at a time is open.

    State: each collection's accepted and rejected resources, which outlive streams; how far the current stream is.
    """

    def __init__(self, collections: Iterable[str], *, incremental: bool = True) -> None:
        """``incremental``: request increments from servers that support them."""
        self._collections: dict[str, _SinkCollection[V]] = {
            name: _SinkCollection(may_increment=incremental) for name in collections
        }
        self._incremental = incremental
        self._not_offered: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        states = self._collections.values()
        accepted, rejected = (sum(map(len, by)) for by in ([c.accepted for c in states], [c.rejected for c in states]))
        unanswered = len(self.unanswered())
        return f"<Sink {len(states)} collections ({unanswered} unanswered), {accepted} accepted, {rejected} rejected>"

    def accepted(self, collection: str) -> Mapping[str, AcceptedResource[V]]:
        """The resources in force, by name."""
        return self._collections[collection].accepted

    def rejected(self, collection: str) -> Mapping[str, RejectedResource]:
        """The latest versions of invalid resources, by name. An older version may be in force."""
        return self._collections[collection].rejected

    def unanswered(self) -> tuple[str, ...]:
        """Collections requested on this stream, without a response so far."""
        states = self._collections.items()
        return tuple(name for name, state in states if not state.is_answered and name not in self._not_offered)

    def open(self, *, without: Iterable[str] = ()) -> tuple[McpRequest, ...]:
        """Begin a stream: the first request of each collection, except those that the server lacks.

        The resources of those are kept.
        """
        self._not_offered = frozenset(without)
        requests = []
        for name, state in self._collections.items():
            state.is_answered = False
            state.may_increment = self._incremental
            state.declared = {}
            if name in self._not_offered:
                continue
            if self._incremental:
                state.declared = {n: a.resource.version for n, a in state.accepted.items() if a.resource.version}
            requests.append(McpRequest(name, versions=state.declared, incremental=self._incremental))
        return tuple(requests)

    def receive(self, response: McpResponse) -> Review:
        """Compare a response with the state, which stays as it is. `apply` it before the next one is received."""
        state = self._collections.get(response.collection)
        if state is None:
            return Review(response, unknown=True)
        latest = {resource.name: resource for resource in response.resources}
        unchanged = {n for n, r in latest.items() if n in state.accepted and state.accepted[n].resource == r}
        changed = tuple(
            r
            for n, r in latest.items()
            if n not in unchanged and (n not in state.rejected or state.rejected[n].resource != r)
        )
        return Review(response, unknown=False, changed=changed, unchanged=frozenset(unchanged))

    def apply(self, review: Review, verdicts: Mapping[str, V | RejectedResource]) -> AppliedResponse[V]:
        """Apply a response. ``verdicts``: for each changed resource its value, or its rejection."""
        response = review.response
        collection = response.collection
        if review.unknown:
            error = ErrorDetail(ErrorCode.UNIMPLEMENTED, f"unsupported collection {collection}")
            return AppliedResponse(collection, McpRequest(collection, response.nonce, error=error), is_first=True)
        state = self._collections[collection]
        is_first = not state.is_answered
        if is_first and response.incremental and _repeats(response, state.declared):
            state.may_increment = False
        state.is_answered = True
        upserted: dict[str, V] = {}
        rejected: list[RejectedResource] = []
        recovered: list[str] = []
        for resource in review.changed:
            verdict = verdicts[resource.name]
            if isinstance(verdict, RejectedResource):
                state.rejected[resource.name] = verdict
                rejected.append(verdict)
                continue
            state.accepted[resource.name] = AcceptedResource(resource, verdict)
            upserted[resource.name] = verdict
            if state.rejected.pop(resource.name, None):
                recovered.append(resource.name)
        # A rejected version was withdrawn: the accepted one came again.
        restored = [name for name in review.unchanged if state.rejected.pop(name, None)]
        upserted |= {name: state.accepted[name].value for name in restored}
        recovered += restored
        gone = self._gone(state, response)
        recovered += [name for name in gone if state.rejected.pop(name, None)]
        removed = tuple((name, state.accepted.pop(name).value) for name in gone if name in state.accepted)
        answer = self._answer(state, response)
        return AppliedResponse(
            collection, answer, upserted, removed, tuple(rejected), tuple(recovered), is_first, response.incremental
        )

    def _gone(self, state: _SinkCollection[V], response: McpResponse) -> list[str]:
        received = {resource.name for resource in response.resources}
        candidates = response.removed if response.incremental else {**state.accepted, **state.rejected}
        return [name for name in candidates if name not in received]

    def _answer(self, state: _SinkCollection[V], response: McpResponse) -> McpRequest:
        rejected = [state.rejected[r.name] for r in response.resources if r.name in state.rejected]
        if not rejected:
            if not response.incremental:
                state.may_increment = self._incremental
            return McpRequest(response.collection, response.nonce, incremental=state.may_increment)
        reasons = [f"{response.collection} {r.resource.name}: {r.reason}" for r in rejected[:MAX_NAMES_IN_NACK]]
        if len(rejected) > MAX_NAMES_IN_NACK:
            reasons.append(f"and {len(rejected) - MAX_NAMES_IN_NACK} more")
        error = ErrorDetail(ErrorCode.INVALID_ARGUMENT, "; ".join(reasons))
        state.may_increment = False
        return McpRequest(response.collection, response.nonce, error=error)


def _repeats(response: McpResponse, declared: Mapping[str, str]) -> bool:
    """True if a response contains a resource at its declared version."""
    return any(declared.get(resource.name) == resource.version for resource in response.resources if resource.version)
