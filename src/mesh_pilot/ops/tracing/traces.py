"""The traces of revisions. No I/O and no clock: times come from the caller, spans go to `otlp`.

A trace has a root span for its revision and, below it, one for the debouncing, one for the application to the World,
and one for each response that a proxy was sent because of it, up to its answer: the first ones, the slowest, and those
that were refused. The others are counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Mapping

import attrs

from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.ops.web.responses import printable
from mesh_pilot.world.reducer import Published

FIRST_PUSHES = 20
"""Spans of a revision for the first responses."""

SLOWEST_PUSHES = 5
"""Spans of a revision for the slowest of the other responses."""

REFUSED_PUSHES = 10
"""Spans of a revision for refusals."""

MAX_OPEN = 100
"""Revisions whose traces are not finished; an older one is finished as it is. As many finished ones wait to be sent."""

QUIET_SECONDS = 1.0
"""The least age of a trace that is finished: streams may not have looked yet."""

MAX_SECONDS = 60.0
"""The age at which a trace is finished whatever is still to come."""

NAMES_SHOWN = 10
"""Objects named in a span."""

TEXT_SHOWN = 500
"""Characters of a value."""

_SPANS_BESIDES = 3
"""Spans of a trace besides those of responses."""

Value = str | int | float | tuple[str, ...]


@attrs.frozen(kw_only=True)
class Span:
    """A finished span. Times are of Trio's clock, in seconds."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str
    began: float
    ended: float
    attributes: Mapping[str, Value] = attrs.field(factory=dict)
    sent_at: float | None = None
    """When the response had left; None for another span, or if it never did."""
    error: str = ""


@attrs.define(eq=False)
class _PushUnderWay:
    """A response that is not answered."""

    revision: int
    proxy: str
    type_url: str
    resources: int
    size: int
    began: float
    sent_at: float | None = None


@attrs.frozen(eq=False)
class _AnsweredPush:
    push: _PushUnderWay
    ended: float
    answer: str
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.push.began


@attrs.define(eq=False)
class _RevisionTrace:
    number: int
    began: float
    published_at: float
    apply_seconds: float
    attributes: dict[str, Value]
    pushes: int = 0
    refused: int = 0
    last_answer: float = 0.0
    first: list[_AnsweredPush] = attrs.field(factory=list)
    slowest: list[_AnsweredPush] = attrs.field(factory=list)
    refusals: list[_AnsweredPush] = attrs.field(factory=list)

    @property
    def shown(self) -> list[_AnsweredPush]:
        return [*self.first, *self.refusals, *self.slowest]

    def add(self, found: _AnsweredPush) -> None:
        self.pushes += 1
        self.refused += bool(found.error)
        self.last_answer = max(self.last_answer, found.ended)
        if len(self.first) < FIRST_PUSHES:
            self.first.append(found)
        elif found.error and len(self.refusals) < REFUSED_PUSHES:
            self.refusals.append(found)
        elif len(self.slowest) < SLOWEST_PUSHES or found.seconds > self.slowest[-1].seconds:
            self.slowest.append(found)
            self.slowest.sort(key=lambda each: -each.seconds)
            del self.slowest[SLOWEST_PUSHES:]


class RevisionTraces:
    """The traces that are not finished. Told of revisions by the reducer and of responses by the streams.

    State: the open traces, oldest first; the responses that are not answered, by client and type; finished traces that
    are not taken yet.
    """

    def __init__(self, settings: TraceSettings, *, leads: bool = True) -> None:
        """``leads``: this is the worker that publishes, and so has the spans besides those of its proxies."""
        self._seed = settings.seed
        self._leads = leads
        self._open: OrderedDict[int, _RevisionTrace] = OrderedDict()
        self._under_way: dict[tuple[int, str], _PushUnderWay] = {}
        self._finished: deque[_RevisionTrace] = deque()
        self.lost = 0
        """Spans of traces that were not taken in time."""

    def __repr__(self) -> str:
        return f"<RevisionTraces {len(self._open)} open, {len(self._under_way)} pushes under way>"

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to wait for."""
        return not self._open and not self._finished

    def trace_id(self, revision: int) -> str:
        """The id of a revision's trace, the same in all workers."""
        return self._id(revision, "trace", 32)

    def published(self, published: Published) -> None:
        """A revision was published."""
        revision = published.revision
        if not revision.changed or revision.number in self._open:
            return
        objects = sorted({"/".join(change.key) for change in published.changes})
        attributes: dict[str, Value] = {
            "mesh_pilot.revision": revision.number,
            "mesh_pilot.changed": len(revision.changed),
            "mesh_pilot.sources": tuple(sorted({change.source for change in published.changes})),
            "mesh_pilot.objects": tuple(objects[:NAMES_SHOWN]),
        }
        causes = tuple(sorted({change.cause for change in published.changes if change.cause}))[:NAMES_SHOWN]
        if causes:
            attributes["mesh_pilot.causes"] = causes
        self._open[revision.number] = _RevisionTrace(
            revision.number, published.first_event_at, published.published_at, published.apply_seconds, attributes
        )
        if len(self._open) > MAX_OPEN:
            self._finished.append(self._open.popitem(last=False)[1])
        if len(self._finished) > MAX_OPEN:
            self.lost += len(self._finished.popleft().shown) + _SPANS_BESIDES * self._leads

    def pushing(
        self, revision: int, client: int, proxy: str, type_url: str, *, resources: int, size: int, began: float
    ) -> None:
        """A response is about to be sent because of a revision."""
        if revision in self._open:
            self._under_way[client, type_url] = _PushUnderWay(revision, proxy, type_url, resources, size, began)

    def written(self, client: int, type_url: str, at: float) -> None:
        """It has left for the network."""
        if (push := self._under_way.get((client, type_url))) is not None:
            push.sent_at = at

    def answered(self, client: int, type_url: str, at: float, error: str | None) -> None:
        """The client has accepted the last response of a type, or refused it with this reason."""
        if (push := self._under_way.pop((client, type_url), None)) is not None:
            answer = "ACK" if error is None else "NACK"
            self._take(_AnsweredPush(push, at, answer, (error or "")[:TEXT_SHOWN]))

    def left(self, client: int, at: float) -> None:
        """A stream ended."""
        for type_url in RESOURCE_TYPES if self._under_way else ():
            if (push := self._under_way.pop((client, type_url), None)) is not None:
                self._take(_AnsweredPush(push, at, "none", "the stream ended"))

    def _take(self, found: _AnsweredPush) -> None:
        trace = self._open.get(found.push.revision)
        if trace is not None:
            trace.add(found)

    def finished(self, now: float, waiting: Container[int]) -> list[Span]:
        """The spans of the traces that are finished, which are forgotten. ``waiting``: the revisions that
        clients have not answered."""
        done, self._finished = [*self._finished], deque()
        for number, trace in [*self._open.items()]:
            age = now - trace.published_at
            if age >= MAX_SECONDS or (age >= QUIET_SECONDS and number not in waiting):
                done.append(self._open.pop(number))
        if not done:
            return []
        unanswered = Counter(push.revision for push in self._under_way.values())
        return [span for trace in done for span in self._spans(trace, unanswered[trace.number])]

    def _spans(self, trace: _RevisionTrace, unanswered: int) -> list[Span]:
        shown = trace.shown
        spans = [self._push_span(trace.number, each) for each in shown]
        if not self._leads:
            return spans
        attributes = trace.attributes | {
            "mesh_pilot.pushes": trace.pushes,
            "mesh_pilot.pushes_refused": trace.refused,
            "mesh_pilot.pushes_not_shown": trace.pushes - len(shown),
            "mesh_pilot.pushes_unanswered": unanswered,
        }
        applied = max(trace.began, trace.published_at - trace.apply_seconds)
        root = Span(
            trace_id=self.trace_id(trace.number),
            span_id=self._id(trace.number, "root", 16),
            name=f"revision {trace.number}",
            began=trace.began,
            ended=max(trace.published_at, trace.last_answer),
            attributes=attributes,
        )
        debounce = self._below(trace.number, "debounce", trace.began, applied)
        return [root, debounce, self._below(trace.number, "apply", applied, trace.published_at), *spans]

    def _push_span(self, revision: int, answered: _AnsweredPush) -> Span:
        push = answered.push
        short = RESOURCE_TYPES[push.type_url].short
        attributes: dict[str, Value] = {
            "mesh_pilot.proxy": push.proxy,
            "mesh_pilot.type": short,
            "mesh_pilot.resources": push.resources,
            "mesh_pilot.bytes": push.size,
            "mesh_pilot.answer": answered.answer,
        }
        span = self._below(revision, f"push {short}", push.began, answered.ended, f"{push.proxy} {push.began!r}")
        return attrs.evolve(span, attributes=attributes, sent_at=push.sent_at, error=answered.error)

    def _below(self, revision: int, name: str, began: float, ended: float, which: str = "") -> Span:
        """A span below the root."""
        return Span(
            trace_id=self.trace_id(revision),
            span_id=self._id(revision, f"{name} {which}", 16),
            parent_id=self._id(revision, "root", 16),
            name=name,
            began=began,
            ended=max(began, ended),
        )

    def _id(self, revision: int, part: str, digits: int) -> str:
        return hashlib.sha256(self._seed + f"{revision} {part}".encode(errors="surrogatepass")).hexdigest()[:digits]


def shown_text(text: str) -> str:
    """A string from outside, cut and printable."""
    return printable(text[:TEXT_SHOWN])
