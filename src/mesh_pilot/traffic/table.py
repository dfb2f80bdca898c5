"""The last ten minutes of traffic, by slots of ten seconds.

A row is one caller's cluster, listener or policy. It has a column for each counter that was ever other than zero, a
ring of `SLOTS` numbers: of most rows two or three. Slots are those of the time at which a report arrives. A row that
had nothing for ten minutes goes, and so does a caller that has left, once its rows have.

Why not sums by service: a rollout compares proxies with proxies, and which ones is known only afterwards.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import attrs
import trio

from mesh_pilot.mesh.names.resources import ClusterName, parse_cluster
from mesh_pilot.model.traffic import GAUGES, Counter, RowKind, TrafficRow
from mesh_pilot.traffic.counts import Counts

SLOT_SECONDS = 10.0
SLOTS = 60
WINDOW_SECONDS = SLOTS * SLOT_SECONDS
"""The time that the table remembers."""

MAX_ROWS = 200_000
"""Rows of the table; further ones are not taken, and counted."""
MAX_ROWS_OF_CALLER = 20_000
MAX_CALLERS = 20_000
"""An identity has no more than half of the callers and of the rows, and neither have those without one together:
whoever makes up names keeps no others out."""

_EMPTY = (0,) * SLOTS
_MOST = 0xFFFF_FFFF


@attrs.frozen(cache_hash=True)
class CallingWorkload:
    """The proxies that call alike, as one workload."""

    namespace: str
    name: str
    """The canonical service, as Istio's telemetry has it, else its own name."""
    principal: str = ""
    """The SPIFFE identity; empty if nothing vouches for one."""
    labels: tuple[tuple[str, str], ...] = ()
    """The labels by which a selector finds it; empty: none tells it from others."""


@attrs.frozen(cache_hash=True)
class ReportingProxy:
    """A proxy that reports."""

    node: str
    """The node id."""
    name: str
    """``NAME.NAMESPACE``."""
    workload: CallingWorkload


@attrs.frozen
class TrafficEdge:
    """The counts of one row over some time."""

    proxy: ReportingProxy
    kind: RowKind
    name: str
    counts: Counts

    @property
    def cluster(self) -> ClusterName | None:
        """The parts of the cluster's name; None for other rows, and for names of another form."""
        return parse_cluster(self.name) if self.kind is RowKind.CLUSTER else None


@attrs.define(eq=False)
class _Row:
    kind: RowKind
    name: str
    at: int
    """The latest slot that its numbers are about."""
    counters: tuple[Counter, ...] = ()
    numbers: array[int] = attrs.field(factory=partial(array, "H"))
    """``SLOTS`` of each counter, one counter after the other: an array for each would take half as much again. Of two
    bytes each, until one is larger."""
    gauges: dict[Counter, tuple[int, int]] | None = None
    """The latest figure of each, with its slot; None until there is one."""

    def move_to(self, slot: int) -> None:
        """Empty the slots between the latest one and this one."""
        if slot <= self.at:
            return
        if slot - self.at >= SLOTS:
            self.counters, self.numbers = (), array("H")
        else:
            for passed in range(self.at + 1, slot + 1):
                for place in range(passed % SLOTS, len(self.numbers), SLOTS):
                    self.numbers[place] = 0
        self.at = slot

    def add(self, counts: Mapping[Counter, int]) -> None:
        """Count more in the latest slot; of a gauge, take the figure."""
        slot = self.at % SLOTS
        for counter, count in counts.items():
            if counter in GAUGES:
                self.gauges = self.gauges or {}
                self.gauges[counter] = min(count, _MOST), self.at
            elif count > 0:
                if counter not in self.counters:
                    self.counters += (counter,)
                    self.numbers.extend(_EMPTY)
                place = self.counters.index(counter) * SLOTS + slot
                count += self.numbers[place]
                if count > 0xFFFF and self.numbers.typecode == "H":
                    self.numbers = array("I", self.numbers)
                self.numbers[place] = count if count < _MOST else _MOST

    @property
    def has_figure(self) -> bool:
        """True if a gauge is other than zero: that holds until it is told otherwise."""
        return self.gauges is not None and any(figure for figure, _ in self.gauges.values())

    def sums(self, first: int, last: int) -> dict[Counter, int]:
        """From one slot to another, both included."""
        latest = last
        first, last = max(first, self.at - SLOTS + 1), min(last, self.at)
        begin, end = first % SLOTS, last % SLOTS + 1
        found: dict[Counter, int] = {}
        if first <= last:
            numbers = self.numbers
            for column, counter in enumerate(self.counters):
                at = column * SLOTS
                if begin < end:
                    found[counter] = sum(numbers[at + begin : at + end])
                else:
                    found[counter] = sum(numbers[at + begin : at + SLOTS]) + sum(numbers[at : at + end])
        if self.gauges is not None:
            found |= {gauge: figure for gauge, (figure, slot) in self.gauges.items() if slot <= latest}
        return {counter: count for counter, count in found.items() if count}

    def history(self, counter: Counter, last: int) -> list[int]:
        """The numbers of a counter in all slots but the running one, up to the slot ``last`` that is over."""
        passed = last - self.at
        if counter not in self.counters or passed >= SLOTS:
            return [0] * (SLOTS - 1)
        at = self.counters.index(counter) * SLOTS
        column, end = self.numbers[at : at + SLOTS], self.at % SLOTS + 1
        whole = [*column[end:], *column[:end]]
        return whole[: SLOTS - 1] if passed < 0 else (whole[passed:] + [0] * passed)[1:]


@attrs.define(eq=False)
class _Reporter:
    """A caller's part of the table."""

    proxy: ReportingProxy
    since: int
    """The slot of its first report: it says nothing of the time before."""
    latest: int
    has_agent: bool = False
    """True if the latest report is of an agent: its requests are known."""
    gaps: list[int] = attrs.field(factory=list)
    """The slots in which counts were lost, the latest last."""
    rows: dict[tuple[RowKind, str], _Row] = attrs.field(factory=dict)


class TimeSpan(NamedTuple):
    """A time from a second of Trio's clock until before another one."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def _span(first: int, end: int) -> TimeSpan:
    return TimeSpan(first * SLOT_SECONDS, end * SLOT_SECONDS)


@attrs.define(eq=False)
class _Room:
    """Room for so many, of which each owner has no more than half."""

    limit: int
    taken: int = 0
    owned: Tally[str] = attrs.field(factory=Tally)

    def take(self, owner: str) -> bool:
        """Take room for one more of an owner's, if there is any."""
        if self.taken >= self.limit or self.owned[owner] >= self.limit // 2:
            return False
        self.taken += 1
        self.owned[owner] += 1
        return True

    def give_back(self, owner: str) -> None:
        self.taken -= 1
        self.owned[owner] -= 1
        if not self.owned[owner]:
            del self.owned[owner]

    def move(self, owner: str, other: str, count: int) -> None:
        """Give so many to another owner."""
        self.owned[owner] -= count
        self.owned[other] += count
        self.owned = +self.owned


@attrs.frozen
class TrafficStatistics:
    """Counts for metrics and debug pages."""

    callers: int
    rows: int
    refused_rows: int
    """Rows that were not taken because there were too many."""
    refused_callers: int
    """Reports that were not taken because there were too many callers."""


class TrafficTable:
    """The table. Mutable state: the rows of each caller, and counts. Times are those of Trio's clock, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._reporters: dict[str, _Reporter] = {}
        self._rows = _Room(MAX_ROWS)
        self._callers = _Room(MAX_CALLERS)
        self._refused_rows = 0
        self._refused_callers = 0

    def __repr__(self) -> str:
        return f"<TrafficTable {len(self._reporters)} callers, {self._rows.taken} rows>"

    def statistics(self) -> TrafficStatistics:
        return TrafficStatistics(len(self._reporters), self._rows.taken, self._refused_rows, self._refused_callers)

    def add(
        self, proxy: ReportingProxy, rows: Iterable[TrafficRow], *, of_agent: bool, follows_gap: bool = False
    ) -> None:
        """Take a report. ``of_agent``: it counts requests as callers see them. ``follows_gap``: an interval
        before it was lost."""
        slot = self._slot(self._clock())
        known = self._reporters.get(proxy.node)
        if known is None:
            if not self._callers.take(proxy.workload.principal):
                self._refused_callers += 1
                return
            known = self._reporters[proxy.node] = _Reporter(proxy, slot, slot)
        elif known.proxy != proxy:
            self._renamed(known, proxy)
        known.latest = slot
        known.has_agent = of_agent
        if follows_gap:
            self._gap(known, slot)
        for row in rows:
            self._add_row(known, row, slot)

    def lost(self, node: str) -> None:
        """A report of a caller may be lost: the latest interval has a gap."""
        known = self._reporters.get(node)
        if known is not None:
            slot = self._slot(self._clock())
            self._gap(known, slot - 1)
            self._gap(known, slot)

    def known(self, proxy: ReportingProxy) -> ReportingProxy:
        """The same proxy, as the object that the table has, if it has one."""
        known = self._reporters.get(proxy.node)
        return known.proxy if known is not None and known.proxy == proxy else proxy

    def principal_of(self, node: str) -> str:
        """The identity of a caller that has reported; empty if it is unknown, or nothing vouches for it."""
        known = self._reporters.get(node)
        return known.proxy.workload.principal if known is not None else ""

    @staticmethod
    def _gap(known: _Reporter, slot: int) -> None:
        if slot not in known.gaps:
            known.gaps = [each for each in known.gaps if each > slot - SLOTS] + [slot]

    def _renamed(self, known: _Reporter, proxy: ReportingProxy) -> None:
        """A node is another proxy now, or has another identity."""
        before, after = known.proxy.workload.principal, proxy.workload.principal
        self._callers.move(before, after, 1)
        self._rows.move(before, after, len(known.rows))
        known.proxy = proxy

    def _add_row(self, known: _Reporter, row: TrafficRow, slot: int) -> None:
        key = row.kind, row.name
        found = known.rows.get(key)
        if found is None:
            if not any(row.counts.values()):
                return
            owner = known.proxy.workload.principal
            if len(known.rows) >= MAX_ROWS_OF_CALLER or not self._rows.take(owner):
                self._refused_rows += 1
                return
            found = known.rows[key] = _Row(row.kind, row.name, slot)
        found.move_to(slot)
        found.add(row.counts)

    def edges(
        self,
        begin: float = -math.inf,
        end: float = math.inf,
        *,
        nodes: Collection[str] | None = None,
        since_reported: bool = False,
    ) -> Iterator[TrafficEdge]:
        """The rows that counted anything between two times, by whole slots: ``begin`` included, ``end`` excluded.

        ``nodes``: only those of these proxies. ``since_reported``: of a proxy that began to report in this time,
        what it has reported is complete. Reports may come while this is iterated.
        """
        now = self._slot(self._clock())
        first = max(self._slot(begin) if begin > -math.inf else now - SLOTS + 1, now - SLOTS + 1)
        last = min(math.ceil(end / SLOT_SECONDS) - 1 if end < math.inf else now, now)
        every = self._reporters.values()
        chosen = every if nodes is None else [self._reporters[node] for node in nodes if node in self._reporters]
        for known in [*chosen]:  # copies: whoever reads in turns lets reports come in between
            has_begun = since_reported or known.since <= first
            is_complete = has_begun and not any(first <= gap <= last for gap in known.gaps)
            for row in [*known.rows.values()]:
                if values := row.sums(first, last):
                    counts = Counts(values, known.has_agent, is_complete=is_complete)
                    yield TrafficEdge(known.proxy, row.kind, row.name, counts)

    @property
    def slot(self) -> int:
        """The number of the running slot."""
        return self._slot(self._clock())

    @property
    def known_seconds(self) -> float:
        """The length of the time of which it has reports, the running slot left out; 0 before the first is over."""
        now = self._slot(self._clock())
        first = min((known.since for known in self._reporters.values()), default=now)
        return min(now - first, SLOTS - 1) * SLOT_SECONDS

    def windows(self, seconds: float, known_seconds: float) -> tuple[TimeSpan, TimeSpan] | None:
        """The latest time of this length, and the oldest that is known, which is shorter if there is not more; both by
        slots that are over, so that no caller's report of it is still to come. None before the first is over."""
        end = self._slot(self._clock())
        oldest = end - min(round(known_seconds / SLOT_SECONDS), SLOTS - 1)
        slots = min(max(1, round(seconds / SLOT_SECONDS)), end - oldest)
        if slots < 1:
            return None
        begin = end - slots
        return _span(begin, end), _span(oldest, min(oldest + slots, begin))

    def histories(self, kind: RowKind, counters: Collection[Counter]) -> Iterator[tuple[TrafficEdge, list[list[int]]]]:
        """The rows of a kind without their sums, each with its numbers of the counters by slot, the oldest first:
        ``SLOTS - 1`` of them, as that of now is not over."""
        last = self._slot(self._clock()) - 1
        for known in [*self._reporters.values()]:
            for row in [*known.rows.values()]:
                if row.kind is kind:
                    counts = Counts({}, known.has_agent)
                    edge = TrafficEdge(known.proxy, row.kind, row.name, counts)
                    yield edge, [row.history(counter, last) for counter in counters]

    def silent_seconds(self, node: str) -> float:
        """The seconds from a caller's last report to the running slot; infinite if none is remembered."""
        known = self._reporters.get(node)
        return (self._slot(self._clock()) - known.latest) * SLOT_SECONDS if known is not None else math.inf

    def reporters(self) -> Iterator[tuple[ReportingProxy, bool]]:
        """The callers whose reports are remembered, each with whether an agent counts its requests."""
        yield from ((known.proxy, known.has_agent) for known in self._reporters.values())

    def forget(self) -> None:
        """Forget rows, and callers, that have had nothing for as long as the table remembers."""
        oldest = self._slot(self._clock()) - SLOTS
        for node, known in [*self._reporters.items()]:
            owner = known.proxy.workload.principal
            for key, row in [*known.rows.items()]:
                if row.at <= oldest and not row.has_figure:
                    del known.rows[key]
                    self._rows.give_back(owner)
            if not known.rows and known.latest <= oldest:
                del self._reporters[node]
                self._callers.give_back(owner)

    @staticmethod
    def _slot(time: float) -> int:
        return math.floor(time / SLOT_SECONDS)
