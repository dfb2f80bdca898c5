"""The outcome of a revision in traffic: what failed on the edges that it touched, ten minutes before it and after it.

The minute in which it was published counts for neither: proxies get it within that. The time after it ends early where
another revision touches some of the same edges, and so does the time before it begin late.

Calls of a workload to a port of a host are one edge, whichever subset they took, as routes move them from one to
another; and so is all that a workload calls of what the revision touched, as they move them from host to host.
Requests that had no route, or whose route had no cluster, stand with the listeners of workloads. Whether an edge got
worse is for `judging` to say, with the level shared by all edges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import attrs

from mesh_pilot.mesh.names.resources import Direction
from mesh_pilot.model.history import EdgeOutcome, RevisionTraffic
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts, Tries, together
from mesh_pilot.traffic.judging import TrafficVerdict, TriedGroup, judged, level
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.traffic.touched import TouchedEdges

MINUTE = timedelta(minutes=1)
WINDOW = 10 * MINUTE
"""The time before a revision, and after it."""

MAX_WAITING = 200
"""Revisions that wait for their ten minutes to pass; of more, the oldest are not judged."""

NAMED = 5
"""Edges of an outcome that are named."""

WORSE, BETTER, SAME, UNKNOWN = "worse", "better", "same", "too little traffic"
"""The words for outcomes."""


@attrs.frozen
class OutcomeWindows:
    """A revision and the whole minutes that are compared."""

    revision: int
    touched: TouchedEdges
    before: tuple[datetime, datetime]
    after: tuple[datetime, datetime]
    cut_by: int | None
    """The revision that ended the time after it early."""

    def minutes(self) -> Iterator[datetime]:
        """All minutes of both."""
        for begin, end in (self.before, self.after):
            while begin < end:
                yield begin
                begin += MINUTE


@attrs.define
class _WaitingRevision:
    revision: int
    at: datetime
    touched: TouchedEdges
    since: datetime
    """The beginning of the first minute after the revision before it that touches the same edges."""
    until: datetime
    cut_by: int | None = None


class WaitingRevisions:
    """Revisions that wait until the minutes after them are over. Mutable state: those, and the touched edges of older
    ones whose ten minutes reach into the time before the next."""

    def __init__(self) -> None:
        self._waiting: deque[_WaitingRevision] = deque(maxlen=MAX_WAITING)
        self._latest: deque[_WaitingRevision] = deque(maxlen=MAX_WAITING)

    def __repr__(self) -> str:
        return f"<WaitingRevisions {[each.revision for each in self._waiting]}>"

    def published(self, revision: int, at: datetime, touched: TouchedEdges) -> None:
        """A revision was published."""
        if not touched:
            return
        minute, following = _minute(at), _following(at)
        while self._latest and self._latest[0].at < at - 2 * WINDOW:
            self._latest.popleft()
        since = minute - WINDOW
        for each in self._latest:
            if each.touched.overlaps(touched):
                since = max(since, _following(each.at))
                if minute < each.until:
                    each.until, each.cut_by = minute, revision
        found = _WaitingRevision(revision, at, touched, min(since, minute), following + WINDOW)
        self._latest.append(found)
        self._waiting.append(found)

    def due(self, counted_until: datetime) -> list[OutcomeWindows]:
        """The revisions whose time is over, as minutes are counted until then; each is told once."""
        found: list[OutcomeWindows] = []
        for each in [*self._waiting]:
            if each.until <= counted_until:
                self._waiting.remove(each)
                begin = _following(each.at)
                before, after = (each.since, _minute(each.at)), (begin, max(begin, each.until))
                found.append(OutcomeWindows(each.revision, each.touched, before, after, each.cut_by))
        return found


def outcomes_of(
    due: Sequence[OutcomeWindows], minutes: Mapping[datetime, Iterable[WorkloadEdge]]
) -> list[RevisionTraffic]:
    """The outcomes of revisions, given the edges of each minute. Takes a while: a minute may have 20,000 edges."""
    windows = [(each, _Edges(each.touched), _Edges(each.touched)) for each in due]
    for minute, edges in minutes.items():
        wanted = [
            before if each.before[0] <= minute < each.before[1] else after
            for each, before, after in windows
            if each.before[0] <= minute < each.before[1] or each.after[0] <= minute < each.after[1]
        ]
        for edge in edges if wanted else ():
            for into in wanted:
                into.add(minute, edge)
    return [_outcome(each, before.samples(after), after.samples(before)) for each, before, after in windows]


_Group = tuple[CallingWorkload, str]
"""A workload, and what it calls; empty: all of it."""


class _Edges:
    """The touched edges of a window. Mutable state: the counts of each group by minute."""

    def __init__(self, touched: TouchedEdges) -> None:
        self._touched = touched
        self._counts: _ByMinute = {}
        self._listeners: _ByMinute = {}

    def add(self, minute: datetime, edge: WorkloadEdge) -> None:
        workload, cluster, name = edge.workload, edge.cluster, edge.name
        if edge.kind is RowKind.LISTENER and not name.startswith(Direction.INBOUND):
            _put(self._listeners, (workload, f"listener {name}"), minute, edge.counts)
        elif self._touched.has(workload, edge.kind, cluster):
            if cluster is not None and cluster.direction is Direction.OUTBOUND:
                _put(self._counts, (workload, f"{cluster.host}:{cluster.port}"), minute, edge.counts)
                _put(self._counts, (workload, ""), minute, edge.counts)
            elif edge.kind is RowKind.POLICY:
                _put(self._counts, (workload, "policies"), minute, edge.counts)
            else:
                listener = "listener " if edge.kind is RowKind.LISTENER else ""
                _put(self._counts, (workload, listener + name), minute, edge.counts)

    def samples(self, other: _Edges) -> dict[_Group, tuple[TriedGroup, bool]]:
        """The sample of each group, with whether it is complete. Listeners count of workloads that have touched edges
        here or in the ``other`` window; the sum of a workload only if it has several."""
        called: dict[CallingWorkload, set[str]] = {}
        for workload, name in (*self._counts, *other._counts):
            called.setdefault(workload, set()).add(name)
        found = {}
        for group, by_minute in (*self._counts.items(), *self._listeners.items()):
            workload, name = group
            if workload in called and (name or len(called[workload]) > 2):
                every = [together(counts) for counts in by_minute.values()]
                total = together(every)
                tries = _tries(total)
                slots = [each for each in map(_tries, every) if each.unit is tries.unit]
                found[group] = TriedGroup(tries, slots=slots), total.is_complete
        return found


_ByMinute = dict[_Group, dict[datetime, list[Counts]]]


def _put(into: _ByMinute, group: _Group, minute: datetime, counts: Counts) -> None:
    into.setdefault(group, {}).setdefault(minute, []).append(counts)


def _tries(counts: Counts) -> Tries:
    """Tries and failures of any row: of rules of policies what they admitted and denied; of listeners requests, of
    which those fail, too, that no route matched or a policy denied."""
    if counts[Counter.ALLOWED]:
        return Tries(counts[Counter.ALLOWED] + counts[Counter.DENIED], counts[Counter.DENIED], Counter.ALLOWED)
    number, failures, unit = counts.tried
    failures += counts[Counter.NO_ROUTE] + counts[Counter.DENIED]
    return Tries(number, min(number, failures), unit)


def _outcome(
    windows: OutcomeWindows, before: dict[_Group, tuple[TriedGroup, bool]], after: dict[_Group, tuple[TriedGroup, bool]]
) -> RevisionTraffic:
    # Words first, as one edge that got worse decides; the figures are of edges alone, so that no call is in them twice.
    groups = [*dict.fromkeys((*before, *after))]
    alpha = level(1, edges=len(groups))
    edges = [_edge(group, before.get(group), after.get(group), alpha) for group in groups]
    sums = [each for each in edges if not each.called.startswith("listener ") and each.called]
    worse = sorted((each for each in edges if each.verdict == WORSE), key=lambda each: -each.more_failures)
    verdict = WORSE if worse else BETTER if any(each.verdict == BETTER for each in edges) else UNKNOWN
    tries = sum(each.tries_after for each in sums)
    if verdict == UNKNOWN and 2 * sum(each.tries_after for each in sums if each.verdict == SAME) >= tries > 0:
        verdict = SAME
    every = (*before.values(), *after.values())
    return RevisionTraffic(
        revision=windows.revision,
        verdict=verdict,
        edges=len(sums),
        worse=tuple(worse[:NAMED]),
        worse_edges=len(worse),
        tries_before=sum(each.tries_before for each in sums),
        failures_before=sum(each.failures_before for each in sums),
        tries_after=tries,
        failures_after=sum(each.failures_after for each in sums),
        minutes_before=(windows.before[1] - windows.before[0]) // MINUTE,
        minutes_after=(windows.after[1] - windows.after[0]) // MINUTE,
        cut_by=windows.cut_by,
        is_complete=all(is_complete for _, is_complete in every),
    )


_NOTHING = TriedGroup(Tries(0, 0, Counter.REQUESTS))


def _edge(
    group: _Group, before: tuple[TriedGroup, bool] | None, after: tuple[TriedGroup, bool] | None, alpha: float
) -> EdgeOutcome:
    workload, called = group
    own, then = (after[0] if after else _NOTHING), (before[0] if before else _NOTHING)
    return EdgeOutcome(
        caller=workload.name,
        namespace=workload.namespace,
        called=called,
        unit=(own.total if own.total.number else then.total).unit.name.lower(),
        tries_before=then.total.number,
        failures_before=then.total.failures,
        tries_after=own.total.number,
        failures_after=own.total.failures,
        verdict=_verdict(then, own, alpha),
    )


def _verdict(before: TriedGroup, after: TriedGroup, alpha: float) -> str:
    found = judged(after, None, before, alpha)
    if found is not None and found.verdict is TrafficVerdict.WORSE:
        return WORSE
    back = judged(before, None, after, alpha)
    if back is not None and back.verdict is TrafficVerdict.WORSE:
        return BETTER
    return SAME if found is not None and found.verdict is TrafficVerdict.NOT_WORSE else UNKNOWN


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _following(at: datetime) -> datetime:
    """The beginning of the first whole minute after a time."""
    return _minute(at) + MINUTE
