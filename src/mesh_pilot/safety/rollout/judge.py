"""The judge of a rollout: compares the traffic of the canary and of the others, by slots from the first whole one on.

A subject is what a workload does: its requests to a service, what arrives at one of its ports or listeners, what its
policies deny. The canary's proxies are compared with the others of the same workload, or of any other workload that
calls the service if the workload has no others; and with themselves before they had the new values. In a rollout by
weights it is the destinations that gain weight against those that lose it.

Only slots that are over are read, each once, so that a look costs what ten seconds of traffic cost. The one in which
the step began is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import attrs

from mesh_pilot.mesh.names.resources import parse_cluster
from mesh_pilot.model.events import NewValue, RolloutState
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.conditions import RolloutCondition, condition_of
from mesh_pilot.safety.rollout.weights import shifted
from mesh_pilot.traffic.counts import Tries
from mesh_pilot.traffic.judging import (
    DOUBT,
    LEAST_FAILURES,
    TrafficVerdict,
    TriedGroup,
    at_least,
    at_most,
    dispersion_of,
    judged,
    level,
)
from mesh_pilot.traffic.table import SLOT_SECONDS, SLOTS, CallingWorkload, TrafficEdge, TrafficTable
from mesh_pilot.traffic.touched import hosts_of, is_among

MOST_PROXIES = 100
"""Proxies of either side whose traffic is read: enough to know, and a look stays short."""

SPANS, SPAN_SECONDS = 5, 60.0
"""The time before, in pieces."""

Pair = tuple[int, int]
"""Tries and failures."""


class SubjectKind(StrEnum):
    """Kinds of subjects, as reasons name them."""

    CALLS = "to"
    ARRIVING = "at port"
    LISTENER = "at listener"
    NO_ROUTE = "without a route at listener"
    NO_CLUSTER = "to a cluster that does not exist at listener"
    DENIED = "denied by policies at listener"
    WEIGHTED = "to where weight goes by"


class Subject(NamedTuple):
    """Something of a workload that is judged."""

    workload: str
    kind: SubjectKind
    name: str
    unit: Counter

    @property
    def host(self) -> str:
        """The host that is called; empty for another subject."""
        return self.name.rpartition(":")[0] if self.kind is SubjectKind.CALLS else ""

    def __str__(self) -> str:
        if self.kind is SubjectKind.WEIGHTED:
            return f"{self.unit.name.lower()} {self.kind} {self.name}"
        return f"{self.unit.name.lower()} of {self.workload} {self.kind} {self.name}"


_HERE = {False: " in the canary", True: ""}
_ELSEWHERE = {False: "at the others", True: "where it comes from"}
"""The sides of a rollout by proxies, and of one by weights."""


class _Side:
    """Tries of a group of proxies with one subject."""

    def __init__(self) -> None:
        self.number = self.failures = 0
        self._proxies: dict[str, Pair] = {}
        self._slots: dict[float, Pair] = {}

    def add(self, node: str, slot: float, number: int, failures: int) -> None:
        self.number += number
        self.failures += failures
        self._proxies[node] = _plus(self._proxies.get(node, (0, 0)), (number, failures))
        self._slots[slot] = _plus(self._slots.get(slot, (0, 0)), (number, failures))

    def take(self, other: _Side) -> None:
        """Add what other proxies tried."""
        self.number += other.number
        self.failures += other.failures
        for node, pair in other._proxies.items():
            self._proxies[node] = _plus(self._proxies.get(node, (0, 0)), pair)
        for slot, pair in other._slots.items():
            self._slots[slot] = _plus(self._slots.get(slot, (0, 0)), pair)

    def group(self, unit: Counter) -> TriedGroup:
        return TriedGroup(
            Tries(self.number, self.failures, unit),
            [Tries(*each, unit) for each in self._proxies.values()],
            [Tries(*each, unit) for each in self._slots.values()],
        )


_Sides = dict[Subject, _Side]

_Shifted = dict[tuple[str, str], tuple[str, bool]]
"""The object, by host and subset, that changes the weight of a destination, and whether it gains."""


@attrs.frozen
class TrafficFinding:
    """The result of the latest look."""

    worse: str = ""
    """The traffic that got worse, in words; empty if none did."""
    waits: str = ""
    """The traffic that is still needed to know, in words; empty if there is enough, or none is judged."""
    says: str = ""
    """The traffic that is judged, and how much there was, in words."""


class RolloutJudge:
    """Mutable state: the evidence of the step, the canary's traffic before, and how often was looked."""

    def __init__(self, table: TrafficTable, full_host: Callable[[str, str], str]) -> None:
        """``full_host``: the full name of a host as an object of a namespace has it."""
        self._table = table
        self._full_host = full_host
        self._nodes: frozenset[str] = frozenset()
        """The proxies of the canary at the step's beginning."""
        self._since = -math.inf
        self._next = 0
        """The first slot that was not read yet."""
        self._step = self._looks = 0
        self._canary: _Sides = {}
        self._others: _Sides = {}
        self._before: _Sides = {}
        self._shifted: _Shifted = {}
        """The destinations whose weights change, if it is those that are rolled out."""
        self.finding = TrafficFinding()

    def __repr__(self) -> str:
        return f"<RolloutJudge look {self._looks} at step {self._step}>"

    @staticmethod
    def due(now: float) -> float:
        """When the present slot is over."""
        return (math.floor(now / SLOT_SECONDS) + 1) * SLOT_SECONDS

    def forget(self) -> None:
        """The rollout is over, or began again."""
        self._nodes, self._since, self._step = frozenset(), -math.inf, 0
        self._before = {}
        self.finding = TrafficFinding()

    def look(
        self,
        state: RolloutState,
        since: float,
        members: Mapping[str, object],
        has_new: Callable[[str], bool],
        now: float,
    ) -> TrafficFinding:
        """Read the slots that are over, and judge. ``since``: the beginning of the step; ``members``: the connected
        proxies by node id."""
        condition = condition_of(state.plan.judged_by)
        self._shifted = self._shifts(state)
        canary = [node for node in members if has_new(node) or state.plan.by_weights]
        chosen = frozenset(state.canary if state.share < 100 else (*state.canary, *canary))
        # While the first proxies are selected by name or label, more of them may join in the middle of the step.
        if since != self._since or (state.share < 100 and chosen != self._nodes):
            self._begin(chosen, since, now)
        reporting = {proxy.node for proxy, _ in self._table.reporters()}
        mine = [node for node in canary if node in reporting][:MOST_PROXIES]
        slot = math.floor(now / SLOT_SECONDS)
        if not condition:
            self.finding = TrafficFinding(says="traffic is not judged: by acks alone")
        elif not mine:
            self.finding = TrafficFinding(says="traffic is not judged: none of the canary's proxies reports any")
        elif slot > self._next or not self._looks:
            others = members.keys() & reporting - {*canary}
            self._read_slots(mine, [*others][:MOST_PROXIES], slot)
            self.finding = self._judge(condition, state.changes)
        return self.finding

    def _read_slots(self, mine: Collection[str], others: Collection[str], end: int) -> None:
        for slot in range(max(self._next, end - SLOTS), end):
            span = slot * SLOT_SECONDS, (slot + 1) * SLOT_SECONDS
            if self._shifted:
                self._read_shifted(mine, span, self._canary, self._others)
                continue
            _read(self._table, mine, span, self._canary)
            _read(self._table, others, span, self._others)
        self._looks += bool(self._canary)
        self._next = max(self._next, end)

    def _begin(self, nodes: frozenset[str], since: float, now: float) -> None:
        if not self._nodes <= nodes:  # it began again with others
            self.forget()
        new = [*(nodes - self._nodes)][:MOST_PROXIES]
        end = math.floor(now / SLOT_SECONDS) * SLOT_SECONDS
        for number in range(SPANS):
            span = end - (number + 1) * SPAN_SECONDS, end - number * SPAN_SECONDS
            if self._shifted and not self._step:
                self._read_shifted(None, span, {}, self._before)
            elif not self._shifted:
                _read(self._table, new, span, self._before)
        self._nodes, self._since = nodes, since
        # Most reports that arrive in the slot that runs are about the time before: with them failures would scatter,
        # and be taken for a burst.
        self._next = math.floor(now / SLOT_SECONDS) + 1
        self._canary, self._others = {}, {}
        self._step += 1
        self._looks = 0
        self.finding = TrafficFinding()

    def _shifts(self, state: RolloutState) -> _Shifted:
        found: _Shifted = {}
        for change in state.changes if state.plan.by_weights else ():
            for gains, destinations in zip((True, False), shifted(change.before, change.new), strict=True):
                for host, subset in destinations:
                    found[self._full_host(host, change.key[2]), subset] = name_of(change.key), gains
        return found

    def _read_shifted(
        self, nodes: Collection[str] | None, span: tuple[float, float], gaining: _Sides, losing: _Sides
    ) -> None:
        """Add what proxies counted at destinations whose weights change."""
        for edge in self._table.edges(*span, nodes=nodes):
            cluster = edge.cluster
            place = self._shifted.get((cluster.host, cluster.subset)) if cluster is not None else None
            for subject, pair in _subjects(edge) if place is not None else ():
                if not pair[0]:
                    continue
                name, gains = place or ("", False)
                side = (gaining if gains else losing).setdefault(
                    Subject("", SubjectKind.WEIGHTED, name, subject.unit), _Side()
                )
                side.add(edge.proxy.node, span[0], *pair)

    # -- judging

    def _judge(self, condition: RolloutCondition, changes: Iterable[NewValue]) -> TrafficFinding:
        is_lacking = not self._canary.keys() <= self._others.keys()
        of_all = (_pooled(self._others), _pooled(self._before)) if is_lacking else ({}, {})
        references = {subject: self._references(subject, *of_all) for subject in self._canary}
        tested = [
            subject
            for subject, (others, before) in references.items()
            if self._canary[subject].failures + sum(side.failures for side in (others, before) if side is not None)
            >= LEAST_FAILURES
        ]  # with fewer failures in all no test could succeed, so that the others need not share the level with these
        alpha = level(max(1, self._looks), self._step, len(tested))
        # A listener's errors are those of its services and missing clusters, which say more.
        for subject in sorted(
            tested, key=lambda each: (each.kind is SubjectKind.LISTENER, -self._canary[each].failures)
        ):
            others, before = references[subject]
            why = self._worse(condition, subject, others, before, alpha)
            if why:
                return TrafficFinding(f"{why}; {self._cause(changes, subject)}", says=self._says())
        return TrafficFinding(waits=self._waits(condition, changes), says=self._says())

    def _references(
        self, subject: Subject, others_of_all: _Sides, before_of_all: _Sides
    ) -> tuple[_Side | None, _Side | None]:
        if subject.kind is SubjectKind.WEIGHTED:  # a destination that was bad before is no better for more weight
            return self._others.get(subject) or self._before.get(subject), None
        others = self._others.get(subject) or others_of_all.get(subject._replace(workload=""))
        before = self._before.get(subject)
        if others is None and before is None:  # it was not called until now: all other calls have to do
            every = subject._replace(workload="", name="")
            return others_of_all.get(every), before_of_all.get(every)
        return others, before

    def _worse(
        self, condition: RolloutCondition, subject: Subject, others: _Side | None, before: _Side | None, alpha: float
    ) -> str:
        own = self._canary[subject].group(subject.unit)
        here = _HERE[bool(self._shifted)]
        if condition.not_worse:
            found = judged(own, _group(others, subject), _group(before, subject), alpha)
            if found is not None and found.verdict is TrafficVerdict.WORSE:
                than = ", ".join(
                    f"{_share(side)} {whose}"
                    for side, whose in ((others, _ELSEWHERE[bool(self._shifted)]), (before, "before"))
                    if side is not None and side.number
                )
                return f"{subject} fail more often: {_share(self._canary[subject])}{here}, {than}"
        bound = condition.errors
        if bound is not None and own.total.number:
            scattered = max(dispersion_of(own.proxies), dispersion_of(own.slots))
            if at_least(own.total.failures / scattered, own.total.number / scattered, bound) <= alpha:
                return f"{subject} fail at {bound:.2%} or more: {_share(self._canary[subject])}{here}"
        return ""

    def _waits(self, condition: RolloutCondition, changes: Iterable[NewValue]) -> str:
        """The service that the change is about, or else all traffic together, of which too little is known."""
        seen = {*self._canary, *self._others, *self._before}
        hosts = {host for change in changes for host in self._hosts(change)}
        touched = frozenset(each.host for each in seen if is_among(each.host, hosts))
        sums = self._sums(seen, touched)
        if not any(own[0] for own, _, _ in sums.values()):
            return "traffic: there was none yet" + (f" to {', '.join(sorted(touched)[:3])}" if touched else "")
        best: dict[str, Counter] = {}  # of requests, attempts and connections those that there are most of
        for (name, unit), pairs in sums.items():
            if name not in best or sum(pair[0] for pair in pairs) > sum(pair[0] for pair in sums[name, best[name]]):
                best[name] = unit
        for name, unit in sorted(best.items()):
            own, others, before = (Tries(*pair, unit) for pair in sums[name, unit])
            needed = _needed(condition, own, others, before)
            if needed:
                return f"more traffic: {own.number:,} of about {needed:,} {unit.name.lower()}{name} so far"
        return ""

    def _sums(
        self, seen: Iterable[Subject], touched: Collection[str]
    ) -> dict[tuple[str, Counter], tuple[Pair, Pair, Pair]]:
        """The traffic to each of some services, or to all without any: the canary's, that of the others, and that of
        before. A service that is hardly ever called does not hold up a change of something else."""
        sums: dict[tuple[str, Counter], tuple[Pair, Pair, Pair]] = {}
        for subject in seen:
            is_weighted = subject.kind is SubjectKind.WEIGHTED
            is_counted = subject.kind in (SubjectKind.CALLS, SubjectKind.ARRIVING) and not self._shifted
            if not is_weighted and (not is_counted or (touched and subject.host not in touched)):
                continue
            key = (f" {subject.kind} {subject.name}" if touched or is_weighted else "", subject.unit)
            own, others, before = sums.get(key, ((0, 0), (0, 0), (0, 0)))
            sums[key] = (
                _plus(own, _pair(self._canary.get(subject))),
                _plus(others, _pair(self._others.get(subject))),
                _plus(before, _pair(self._before.get(subject))),
            )
        return sums

    def _says(self) -> str:
        kinds = (SubjectKind.CALLS, SubjectKind.WEIGHTED)
        calls = [side for key, side in self._canary.items() if key.kind in kinds]
        number, failures = sum(side.number for side in calls), sum(side.failures for side in calls)
        whose = "where weight goes" if self._shifted else "of the canary"
        return f"traffic is judged: {number:,} calls {whose} in this step, {failures:,} failed"

    def _cause(self, changes: Iterable[NewValue], subject: Subject) -> str:
        """The changed objects that bear on a subject, with their places."""
        every = [*changes]
        near = [each for each in every if is_among(subject.host, self._hosts(each))] or every
        shown = ", ".join(map(_placed, near[:3]))
        return f"changed: {shown}{', ...' if len(near) > 3 else ''}"

    def _hosts(self, change: NewValue) -> set[str]:
        return hosts_of((*change.new, *change.old), self._full_host)


def _placed(change: NewValue) -> str:
    """An object with its place: where it is now, or was."""
    return f"{name_of(change.key)} ({change.origin})" if change.origin else name_of(change.key)


def _needed(condition: RolloutCondition, own: Tries, others: Tries, before: Tries) -> int:
    """About how many tries it takes to know; 0 if they are enough, or there is nothing to compare them with."""
    needed = 0
    if condition.not_worse and (others.number or before.number):
        found = judged(TriedGroup(own), TriedGroup(others), TriedGroup(before), 0.0)
        if found is not None and found.verdict is not TrafficVerdict.NOT_WORSE:
            needed = max(found.needed, own.number + 1)
    bound = condition.errors
    if bound is not None and at_most(own.failures, own.number, bound) > DOUBT:
        needed = max(needed, math.ceil(-math.log(DOUBT) / bound), own.number + 1)
    return needed


def _read(table: TrafficTable, nodes: Collection[str], span: tuple[float, float], into: _Sides) -> None:
    """Add what proxies counted in a time."""
    for edge in table.edges(*span, nodes=nodes):
        for subject, pair in _subjects(edge):
            if not pair[0]:
                continue
            into.setdefault(subject, _Side()).add(edge.proxy.node, span[0], *pair)


def _subjects(edge: TrafficEdge) -> Iterator[tuple[Subject, Pair]]:
    """The subjects that a row is about, each with its tries."""
    counts = edge.counts
    if edge.kind is RowKind.CLUSTER:
        workload, kind, name = _of_cluster(edge.proxy.workload, edge.name)
        if counts[Counter.REQUESTS]:
            yield Subject(workload, kind, name, Counter.REQUESTS), (counts[Counter.REQUESTS], counts[Counter.ERRORS])
        elif not counts.has_requests and counts[Counter.ATTEMPTS]:
            pair = counts[Counter.ATTEMPTS], counts[Counter.FAILED_ATTEMPTS]
            yield Subject(workload, kind, name, Counter.ATTEMPTS), pair
        else:
            failures = counts[Counter.CONNECT_FAILURES]
            pair = max(counts[Counter.CONNECTIONS], failures), failures
            yield Subject(workload, kind, name, Counter.CONNECTIONS), pair
    elif edge.kind is RowKind.LISTENER:
        workload = f"{edge.proxy.workload.name}.{edge.proxy.workload.namespace}"
        number = counts[Counter.REQUESTS]
        for kind, counter in _OF_LISTENERS:
            pair = max(number, counts[counter]), counts[counter]
            yield Subject(workload, kind, edge.name, Counter.REQUESTS), pair
        denied = counts[Counter.DENIED]
        pair = max(number, denied + counts[Counter.ALLOWED]), denied
        yield Subject(workload, SubjectKind.DENIED, edge.name, Counter.REQUESTS), pair


@lru_cache(10_000)
def _of_cluster(workload: CallingWorkload, name: str) -> tuple[str, SubjectKind, str]:
    """The subject of a cluster, but for its unit."""
    whose, cluster = f"{workload.name}.{workload.namespace}", parse_cluster(name)
    if cluster is None:
        return whose, SubjectKind.CALLS, name
    if not cluster.host:
        return whose, SubjectKind.ARRIVING, str(cluster.port)
    return whose, SubjectKind.CALLS, f"{cluster.host}:{cluster.port}"


_OF_LISTENERS = (
    (SubjectKind.LISTENER, Counter.ERRORS),
    (SubjectKind.NO_ROUTE, Counter.NO_ROUTE),
    (SubjectKind.NO_CLUSTER, Counter.NO_CLUSTER),
)


def _pooled(sides: _Sides) -> _Sides:
    """The calls of all workloads together, to each service and to all of them (without a name)."""
    found: _Sides = {}
    for subject, side in sides.items():
        if subject.kind is SubjectKind.CALLS:
            for name in (subject.name, ""):
                found.setdefault(subject._replace(workload="", name=name), _Side()).take(side)
    return found


def _group(side: _Side | None, subject: Subject) -> TriedGroup | None:
    return side.group(subject.unit) if side is not None else None


def _pair(side: _Side | None) -> Pair:
    return (side.number, side.failures) if side is not None else (0, 0)


def _plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def _share(side: _Side) -> str:
    return f"{side.failures:,} of {side.number:,} ({side.failures / side.number:.2%})"
