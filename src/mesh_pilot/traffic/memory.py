"""Traffic beyond ten minutes: an hour by minutes, two days by hours, a month by days; by workload.

Here callers are workloads, not proxies: machines come and go, and questions about last week are about the workload.

Why not hours for a month: questions about weeks (what is never called, what a workload calls) need no hours, and days
are a tenth. All of it then fits into memory, packed, and reading never waits for a disk.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import attrs

from mesh_pilot.mesh.names.resources import ClusterName, parse_cluster
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.spans import DAY, HOUR, MINUTE, EdgeKey, SpanError, SpanSums, TrafficSpan, merged
from mesh_pilot.traffic.table import SLOT_SECONDS, CallingWorkload, TrafficEdge, TrafficTable

KEPT_MINUTES = 60 * MINUTE
KEPT_HOURS = 48 * HOUR
KEPT_DAYS = 31 * DAY
"""The ages, in seconds, from which spans of each length are dropped. Those of a day are merged once all of them are."""

MAX_SPANS = {MINUTE: 130, HOUR: 4 * 24, DAY: 40}
"""Spans of each length, more than there are unless the clock is set back and forth: the oldest go."""

_UNIT = {MINUTE: HOUR, HOUR: DAY}
"""The length of the spans that those of a length are merged to."""


@attrs.frozen
class WorkloadEdge:
    """The counts of one row of all proxies of a workload."""

    workload: CallingWorkload
    kind: RowKind
    name: str
    counts: Counts

    @property
    def cluster(self) -> ClusterName | None:
        """The parts of the cluster's name; None for other rows, and for names of another form."""
        return parse_cluster(self.name) if self.kind is RowKind.CLUSTER else None


@attrs.frozen
class SpanMerge:
    """Spans that are to be one."""

    begin: int
    seconds: int
    parts: tuple[TrafficSpan, ...]


@attrs.frozen
class FoldedMinutes:
    """Minutes that a worker has folded since the first one asked last."""

    process: str
    """Another one after each start of the worker."""
    first: int
    """The number of the first of them; those before it are gone."""
    minutes: tuple[TrafficSpan, ...]

    @property
    def next(self) -> int:
        """The number of the one that comes after them."""
        return self.first + len(self.minutes)


@attrs.frozen
class TrafficMemoryStatistics:
    """Figures for metrics and debug pages."""

    minutes: int
    hours: int
    days: int
    bytes: int
    """In memory, and about as many on disk."""
    left_out: int
    """Edges without room, each counted for every minute in which it was."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TrafficMemory:
    """Mutable state: the spans that are remembered, by length and beginning; which of them changed and are not on disk
    yet; and minutes that are for another worker."""

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self.now = now
        """The wall clock."""
        self._spans: dict[tuple[int, int], TrafficSpan] = {}
        self._unsaved: set[tuple[int, int]] = set()
        self._process = secrets.token_hex(8)
        self._offered: deque[TrafficSpan] = deque(maxlen=60)
        self._offered_in_all = 0

    def __repr__(self) -> str:
        return f"<TrafficMemory of {len(self._spans)} spans>"

    def statistics(self) -> TrafficMemoryStatistics:
        every = self._spans.values()
        lengths = Counter(each.seconds for each in every)
        data = sum(len(each.data) for each in every)
        left_out = sum(each.left_out for each in every)
        return TrafficMemoryStatistics(lengths[MINUTE], lengths[HOUR], lengths[DAY], data, left_out)

    # -- reading

    @property
    def since(self) -> datetime | None:
        """The beginning of the oldest span that is remembered; None before the first."""
        oldest = min((begin for _, begin in self._spans), default=None)
        return _time(oldest) if oldest is not None else None

    @property
    def counted_until(self) -> datetime | None:
        """The end of the latest minute that is remembered; None before the first."""
        latest = max((begin for seconds, begin in self._spans if seconds == MINUTE), default=None)
        return _time(latest + MINUTE) if latest is not None else None

    def minutes(self, begin: datetime, end: datetime) -> Iterator[WorkloadEdge]:
        """The counts of whole minutes from ``begin`` until before ``end``. Not complete if one of them is not there.

        May be gone through in another thread.
        """
        first, last = begin.timestamp(), end.timestamp()
        spans = [each for each in self._spans.values() if each.seconds == MINUTE and first <= each.begin < last]
        wanted = max(0, math.ceil(last / MINUTE) - math.ceil(first / MINUTE)) * MINUTE
        return _edges_of(spans, wanted)

    def hours(self, since: datetime) -> Iterator[WorkloadEdge]:
        """The counts since then, of the whole hour or day that it lies in. Not complete if a part was not counted.

        May be gone through in another thread: of a month that takes a while.
        """
        first = since.timestamp()
        spans = [each for each in self._apart() if each.begin + each.seconds > first]
        end = max((each.begin + each.seconds for each in spans), default=first)
        return _edges_of(spans, end - min([first, *(each.begin for each in spans)]))

    def _apart(self) -> list[TrafficSpan]:
        """Spans that have no time in common: a minute only if its hour was not merged yet, and so on."""
        return [each for each in self._spans.values() if self._merged_to(each) is None]

    def _merged_to(self, span: TrafficSpan) -> TrafficSpan | None:
        """The span that this one is in."""
        return next((self._spans[key] for key in _above(span) if key in self._spans), None)

    # -- writing

    def add(self, minute: TrafficSpan) -> None:
        """Add a minute, or a part of one: also to what that minute was merged to already."""
        known = self._spans.get(minute.key)
        into = self._merged_to(minute)
        self._put(minute if known is None else merged(minute.begin, MINUTE, (known, minute)))
        if into is not None:
            self._put(merged(into.begin, into.seconds, (into, minute)))

    def due(self) -> list[SpanMerge]:
        """The merges to be done now: of minutes to hours; and after the last of them, of hours to days. Ask again after
        them, until the last."""
        now = self.now().timestamp()
        found: dict[tuple[int, int], list[TrafficSpan]] = {}
        for each in self._spans.values():
            unit = _UNIT.get(each.seconds)
            if unit is None or self._merged_to(each) is not None:
                continue
            begin = each.begin // unit * unit
            if begin + unit + (KEPT_HOURS if each.seconds == HOUR else 0) <= now:
                found.setdefault((unit, begin), []).append(each)
        # A day that is made while minutes of it are in no hour yet would lack them.
        shortest = min((unit for unit, _ in found), default=HOUR)
        return [SpanMerge(begin, unit, tuple(of)) for (unit, begin), of in sorted(found.items()) if unit == shortest]

    def replace(self, parts: Sequence[TrafficSpan], whole: TrafficSpan) -> None:
        """Parts were merged. Minutes stay for an hour; hours go."""
        self._put(whole)
        for each in parts:
            if each.seconds == HOUR:
                self._drop(each.key)

    def forget(self) -> None:
        """Drop what is too old."""
        now = self.now().timestamp()
        for length, kept in ((MINUTE, KEPT_MINUTES), (HOUR, math.inf), (DAY, KEPT_DAYS)):
            every = sorted(key for key in self._spans if key[0] == length)
            old = [key for key in every if key[1] + length + kept < now and self._is_merged(key)]
            for key in {*old, *every[: -MAX_SPANS[length]]}:
                self._drop(key)

    def _is_merged(self, key: tuple[int, int]) -> bool:
        return key[0] == DAY or self._merged_to(self._spans[key]) is not None

    def _put(self, span: TrafficSpan) -> None:
        self._spans[span.key] = span
        self._unsaved.add(span.key)

    def _drop(self, key: tuple[int, int]) -> None:
        del self._spans[key]
        self._unsaved.add(key)

    # -- other workers

    def offer(self, minute: TrafficSpan) -> None:
        """Keep a minute for the first worker, until it asks or an hour has passed."""
        self._offered.append(minute)
        self._offered_in_all += 1

    def offered(self, had: int) -> FoldedMinutes:
        """The minutes from this number on; those before it are not needed any more."""
        while self._offered and self._offered_in_all - len(self._offered) < had:
            self._offered.popleft()
        return FoldedMinutes(self._process, self._offered_in_all - len(self._offered), tuple(self._offered))

    @property
    def process(self) -> str:
        """Another one after each start."""
        return self._process

    # -- the disk

    def restore(self, spans: Iterable[TrafficSpan]) -> None:
        """Take the spans of an earlier run. What was folded since stays: where both have counts of a time, they are
        added up, also where one has merged it to an hour or a day already."""
        own, theirs = self._spans, {each.key: each for each in spans}
        self._spans = {**own, **theirs}
        for key in own.keys() & theirs.keys():
            self._put(merged(key[1], key[0], (theirs[key], own[key])))
        for ones, others in ((own, theirs), (theirs, own)):
            for each in ones.values():
                above = [*_above(each)]
                into = next((key for key in above if key in others), None)
                if into is not None and not ones.keys() & above:
                    self._put(merged(into[1], into[0], (self._spans[into], each)))

    def take_unsaved(self) -> dict[tuple[int, int], TrafficSpan | None]:
        """The changes since the last call: spans to write, None where one is to be deleted."""
        taken, self._unsaved = self._unsaved, set()
        return {key: self._spans.get(key) for key in sorted(taken)}

    def spans(self) -> list[TrafficSpan]:
        """All that are remembered."""
        return [*self._spans.values()]

    def give_back(self, keys: Iterable[tuple[int, int]]) -> None:
        """These could not be written."""
        self._unsaved |= set(keys)


def _above(span: TrafficSpan) -> Iterator[tuple[int, int]]:
    """The keys of the longer spans that a span would be merged to, the next one first."""
    unit = _UNIT.get(span.seconds)
    while unit is not None:
        yield unit, span.begin // unit * unit
        unit = _UNIT.get(unit)


def rows_of(edges: Iterable[TrafficEdge]) -> Iterator[tuple[EdgeKey, Counts]]:
    """Rows of proxies as those of their workloads."""
    return (((edge.proxy.workload, edge.kind, edge.name), edge.counts) for edge in edges)


def _edges_of(spans: Sequence[TrafficSpan], wanted_seconds: float) -> Iterator[WorkloadEdge]:
    """The sums of spans. They are not complete if the slots of them are not those of so many seconds."""
    sums = SpanSums()
    covered = sum(each.slots for each in spans) * SLOT_SECONDS
    is_complete = covered + SLOT_SECONDS + wanted_seconds / 10_000 >= wanted_seconds
    is_complete = is_complete and not any(each.has_gap for each in spans)
    for each in spans:
        try:
            sums.add_span(each)
        except SpanError:
            is_complete = False
    for (workload, kind, name), counts in sums.edges(is_complete=is_complete):
        yield WorkloadEdge(workload, kind, name, counts)


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


@attrs.frozen(eq=False)
class MeshTraffic:
    """All that a control plane knows of traffic. ``table``, the last ten minutes, is of proxies; ``memory`` is of
    workloads, and reaches further back."""

    table: TrafficTable
    memory: TrafficMemory
