"""The judge of a rollout: compares the traffic of the canary and of the others, by slots from the first whole one on.

The canary's proxies are compared with the others of the same workload, or of any other workload that calls the service
if the workload has no others; and with themselves before they had the new values. In a rollout by weights the
destinations that gain weight are compared with those that lose it.

Only slots that are over are read, each once. The one in which the step began is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice

import attrs

from mesh_pilot.model.events import NewValue, RolloutState
from mesh_pilot.model.traffic import Counter
from mesh_pilot.safety.quarantine.verdicts import name_of
from mesh_pilot.safety.rollout.conditions import RolloutCondition, condition_of
from mesh_pilot.safety.rollout.evidence import (
    Pair,
    Shifted,
    Side,
    Sides,
    Subject,
    SubjectKind,
    plus,
    pooled,
    read,
    read_shifted,
)
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
from mesh_pilot.traffic.table import SLOT_SECONDS, SLOTS, TrafficTable
from mesh_pilot.traffic.touched import hosts_of, is_among

MOST_PROXIES = 100
"""Proxies of either side whose traffic is read: those are enough to know."""

SPANS, SPAN_SECONDS = 5, 60.0
"""The time before, in pieces."""

_HERE = {False: " in the canary", True: ""}
_ELSEWHERE = {False: "at the others", True: "where it comes from"}
"""The sides of a rollout by proxies, and of one by weights."""


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
    """Mutable state: the evidence of the step, the canary's traffic before, and how often the judge looked."""

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
        self._canary: Sides = {}
        self._others: Sides = {}
        self._before: Sides = {}
        self._shifted: Shifted = {}
        """The destinations whose weights change, if it is those that are rolled out."""
        self._is_judged = False
        """True once the step's evidence, or the lack of it, was judged."""
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

    def looking(
        self,
        state: RolloutState,
        since: float,
        members: Collection[str],
        has_new: Callable[[str], bool],
        now: float,
    ) -> Iterator[None]:
        """Read the slots that are over, and judge; yields between pieces of that. ``since``: the beginning of the step;
        ``members``: the connected proxies by node id."""
        condition = condition_of(state.plan.judged_by)
        if not condition:
            self.finding = TrafficFinding(says="traffic is not judged: by acks alone")
            return
        self._shifted = self._shifts(state)
        connected = [node for node in members if has_new(node) or state.plan.by_weights]
        canary = dict.fromkeys((*state.canary, *connected))
        chosen = frozenset(state.canary if state.share < 100 else canary)
        # While the first proxies are selected by name or label, more of them may join in the middle of the step.
        if since != self._since or (state.share < 100 and chosen != self._nodes):
            yield from self._begin(chosen, self._reporting(canary), since, now)
        mine = self._reporting(node for node in canary if node in members)
        slot = math.floor(now / SLOT_SECONDS)
        if not mine:
            self.finding = TrafficFinding(says="traffic is not judged: none of the canary's proxies reports any")
            self._is_judged = False
        elif slot > self._next or not self._is_judged:
            others = self._reporting(node for node in members if node not in canary)
            yield from self._read_slots(mine, others, slot)
            self.finding = yield from self._judge(condition, state.changes)
            self._is_judged = True

    def _reporting(self, nodes: Iterable[str]) -> list[str]:
        """The first of the proxies that report."""
        return [*islice((node for node in nodes if self._table.silent_seconds(node) < math.inf), MOST_PROXIES)]

    def _begin(self, nodes: frozenset[str], canary: Collection[str], since: float, now: float) -> Iterator[None]:
        if not self._nodes <= nodes:  # it began again with others
            self.forget()
        new, is_first = [node for node in canary if node not in self._nodes], not self._step
        self._nodes, self._since = nodes, since
        # Most reports that arrive in the slot that runs are about the time before: with them failures would scatter,
        # and be taken for a burst.
        self._next = math.floor(now / SLOT_SECONDS) + 1
        self._canary, self._others = {}, {}
        self._step += 1
        self._looks, self._is_judged = 0, False
        self.finding = TrafficFinding()
        end = math.floor(now / SLOT_SECONDS) * SLOT_SECONDS
        for number in range(SPANS):
            begin = end - (number + 1) * SPAN_SECONDS
            edges = self._table.edges(begin, begin + SPAN_SECONDS, nodes=new)
            if not self._shifted:
                yield from read(edges, begin, self._before)
            elif is_first:
                yield from read_shifted(edges, begin, self._shifted, {}, self._before)

    def _read_slots(self, mine: Collection[str], others: Collection[str], end: int) -> Iterator[None]:
        first, self._next = max(self._next, end - SLOTS), max(self._next, end)
        for slot in range(first, end):
            begin, until = slot * SLOT_SECONDS, (slot + 1) * SLOT_SECONDS
            edges = self._table.edges(begin, until, nodes=mine)
            if self._shifted:
                yield from read_shifted(edges, begin, self._shifted, self._canary, self._others)
                continue
            yield from read(edges, begin, self._canary)
            yield from read(self._table.edges(begin, until, nodes=others), begin, self._others)
        self._looks += bool(self._canary)

    def _shifts(self, state: RolloutState) -> Shifted:
        found: dict[tuple[str, str], tuple[str, bool]] = {}
        for change in state.changes if state.plan.by_weights else ():
            for gains, destinations in zip((True, False), shifted(change.before, change.new), strict=True):
                for host, subset in destinations:
                    found[self._full_host(host, change.key[2]), subset] = name_of(change.key), gains
        return found

    # -- judging

    def _judge(self, condition: RolloutCondition, changes: Iterable[NewValue]) -> Generator[None, None, TrafficFinding]:
        of_all: tuple[Sides, Sides] = ({}, {})
        if not self._canary.keys() <= self._others.keys():
            of_all = (yield from pooled(self._others)), (yield from pooled(self._before))
        references = {}
        for subject, side in self._canary.items():
            others, before = self._references(subject, *of_all)
            # With fewer failures in all no test could succeed: the others need not share the level with those.
            if side.failures + sum(each.failures for each in (others, before) if each is not None) >= LEAST_FAILURES:
                references[subject] = others, before
            yield
        alpha = level(max(1, self._looks), self._step, len(references))
        # A listener's errors are those of its services and missing clusters, which say more.
        for subject, (others, before) in sorted(
            references.items(), key=lambda each: (each[0].kind is SubjectKind.LISTENER, -self._canary[each[0]].failures)
        ):
            why = self._worse(condition, subject, others, before, alpha)
            if why:
                return TrafficFinding(f"{why}; {self._cause(changes, subject)}", says=self._says())
            yield
        waits = yield from self._waits(condition, changes)
        return TrafficFinding(waits=waits, says=self._says())

    def _references(
        self, subject: Subject, others_of_all: Sides, before_of_all: Sides
    ) -> tuple[Side | None, Side | None]:
        if subject.kind is SubjectKind.WEIGHTED:  # more weight does not excuse a destination that was bad before
            return self._others.get(subject) or self._before.get(subject), None
        others = self._others.get(subject) or others_of_all.get(subject._replace(workload=""))
        before = self._before.get(subject)
        if others is None and before is None:  # nobody called it until now: it is compared with all other calls
            every = subject._replace(workload="", name="")
            return others_of_all.get(every), before_of_all.get(every)
        return others, before

    def _worse(
        self, condition: RolloutCondition, subject: Subject, others: Side | None, before: Side | None, alpha: float
    ) -> str:
        side = self._canary[subject]
        own, here = side.group(subject.unit), _HERE[bool(self._shifted)]
        if condition.not_worse:
            found = judged(own, _group(others, subject), _group(before, subject), alpha)
            if found is not None and found.verdict is TrafficVerdict.WORSE:
                than = ", ".join(
                    f"{each} {whose}"
                    for each, whose in ((others, _ELSEWHERE[bool(self._shifted)]), (before, "before"))
                    if each is not None and each.number
                )
                return f"{subject} fail more often: {side}{here}, {than}"
        bound = condition.errors
        if bound is not None and own.total.number:
            scattered = max(dispersion_of(own.proxies), dispersion_of(own.slots))
            if at_least(own.total.failures / scattered, own.total.number / scattered, bound) <= alpha:
                return f"{subject} fail at {bound:.2%} or more: {side}{here}"
        return ""

    def _waits(self, condition: RolloutCondition, changes: Iterable[NewValue]) -> Generator[None, None, str]:
        """The service that the change is about, or else all traffic together, of which too little is known."""
        seen = {*self._canary, *self._others, *self._before}
        hosts = {host for change in changes for host in self._hosts(change)}
        touched = frozenset(host for host in {each.host for each in seen} if is_among(host, hosts))
        sums = yield from self._sums(seen, touched)
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
    ) -> Generator[None, None, dict[tuple[str, Counter], tuple[Pair, Pair, Pair]]]:
        """Returns the traffic to each of some services, or to all without any: the canary's, that of the others, and
        that of before. A service that is hardly ever called does not hold up a change of something else."""
        sums: dict[tuple[str, Counter], tuple[Pair, Pair, Pair]] = {}
        for subject in seen:
            yield
            is_weighted = subject.kind is SubjectKind.WEIGHTED
            is_counted = subject.kind in (SubjectKind.CALLS, SubjectKind.ARRIVING) and not self._shifted
            if not is_weighted and (not is_counted or (touched and subject.host not in touched)):
                continue
            key = (f" {subject.kind} {subject.name}" if touched or is_weighted else "", subject.unit)
            own, others, before = sums.get(key, ((0, 0), (0, 0), (0, 0)))
            sums[key] = (
                plus(own, _pair(self._canary.get(subject))),
                plus(others, _pair(self._others.get(subject))),
                plus(before, _pair(self._before.get(subject))),
            )
        return sums

    def _says(self) -> str:
        kinds = (SubjectKind.CALLS, SubjectKind.WEIGHTED)
        calls = [side for key, side in self._canary.items() if key.kind in kinds]
        number, failures = sum(side.number for side in calls), sum(side.failures for side in calls)
        whose = "where weight goes" if self._shifted else "from the canary"
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


def _group(side: Side | None, subject: Subject) -> TriedGroup | None:
    return side.group(subject.unit) if side is not None else None


def _pair(side: Side | None) -> Pair:
    return side.pair if side is not None else (0, 0)
