"""Traffic: who calls whom and how well, as proxies count it, against ten minutes ago."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial

import attrs
import trio

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.json import SPREAD
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.traffic_ends import TrafficEnd, TrafficEnds
from mesh_pilot.ops.values.traffic_looks import TrafficLooks
from mesh_pilot.ops.values.traffic_parts import TrafficPart, whole_part
from mesh_pilot.ops.values.traffic_rows import traffic_edges
from mesh_pilot.traffic.counts import Counts, Tries, together
from mesh_pilot.traffic.judging import LEAST_FAILURES, TrafficVerdict, compare
from mesh_pilot.traffic.table import SLOT_SECONDS, ReportingProxy, TrafficEdge

USUAL_SECONDS = 60
"""The length of the time that is shown unless another is asked for."""

DOUBT = 0.001
"""The chance that an edge is called worse than before while its rate is the same."""

OF_AGENTS = frozenset(
    (Counter.CLIENT_ERRORS, Counter.TIMEOUTS, Counter.RETRIES, Counter.NONE_HEALTHY, Counter.CONNECT_FAILURES)
)
"""Counters that load reports do not have."""


# -- what is shown


@attrs.frozen
class TrafficCounts:
    """Counts of some time. Null is unknown: load reports alone do not tell requests."""

    requests: int | None
    """Requests that were answered, as their callers saw them: a request with retries is one."""
    errors: int | None
    """The number of them that were answered with a 5xx."""
    client_errors: int | None
    """The number of them that were answered with a 4xx."""
    timeouts: int | None
    retries: int | None
    none_healthy: int | None
    """Requests and connections for which no endpoint was healthy."""
    connections: int | None
    connect_failures: int | None
    attempts: int | None
    """Requests to endpoints, each retry counted."""
    failed_attempts: int | None
    in_flight: int | None
    """Requests without an answer yet; null for an earlier time."""
    unit: str
    """The unit of ``tries``, ``failures``, ``per_second`` and ``rate``: ``requests`` where they are known, else
    ``attempts``, else ``connections``."""
    tries: int
    failures: int | None
    rate: float | None
    """The share of failures, from 0 to 1; null without a try."""
    per_second: float
    """Tries a second."""
    is_partial: bool
    """True if the requests of some of the callers are not known, and so are not in it."""
    is_complete: bool
    """False if the counts of some of the time were lost, or a proxy began to report within it: there was more."""

    @classmethod
    def of(cls, counts: Counts, seconds: float, other: Counts | None = None) -> TrafficCounts:
        """``other``: the counts of another time, whose unit is that of a time without any."""

        def known(counter: Counter) -> int | None:
            is_known = counts.has_requests if counter in OF_AGENTS else counter in counts.values
            return counts[counter] if is_known else None

        tried = counts.tried
        if not counts.values and other is not None:
            tried = Tries(0, 0, other.tried.unit)
        is_told = counts.has_requests or tried.unit is Counter.ATTEMPTS
        return cls(
            requests=counts.requests,
            errors=counts.errors,
            client_errors=known(Counter.CLIENT_ERRORS),
            timeouts=known(Counter.TIMEOUTS),
            retries=known(Counter.RETRIES),
            none_healthy=known(Counter.NONE_HEALTHY),
            connections=known(Counter.CONNECTIONS),
            connect_failures=known(Counter.CONNECT_FAILURES),
            attempts=known(Counter.ATTEMPTS),
            failed_attempts=counts[Counter.FAILED_ATTEMPTS] if Counter.ATTEMPTS in counts.values else None,
            in_flight=counts[Counter.IN_FLIGHT],
            unit=tried.unit.name.lower(),
            tries=tried.number,
            failures=tried.failures if is_told else None,
            rate=round(tried.rate, 6) if tried.number and is_told else None,
            per_second=round(tried.number / seconds, 3) if seconds else 0.0,
            is_partial=counts.is_partial,
            is_complete=counts.is_complete,
        )


@attrs.frozen
class TrafficChange:
    """Counts of now next to those of the oldest time that is remembered, ten minutes ago if there is as much."""

    now: TrafficCounts = attrs.field(metadata=SPREAD)
    before: TrafficCounts | None
    """Null without traffic then, or if it is unknown."""
    worse_by: float | None
    """The share of failures now, less that of before; null where one of them is unknown."""
    more_failures: float | None
    """Failures beyond those that the share of before would have made; null likewise."""
    is_worse: bool
    """True if that is more than chance gives, or something fails that had no traffic before."""

    @property
    def order(self) -> tuple[bool, float, float]:
        """The place in a list: what got worse first, then what fails most, then what is used most."""
        failures = self.now.failures or 0
        more = failures if self.more_failures is None else self.more_failures
        return (not self.is_worse, -more if self.is_worse else -failures, -self.now.per_second)


def change_of(now: Counts, before: Counts, seconds: TrafficSeconds) -> TrafficChange:
    """Counts next to those of before."""
    own = TrafficCounts.of(now, seconds.now, before)
    then = attrs.evolve(TrafficCounts.of(before, seconds.before), in_flight=None) if before and seconds.before else None
    tried, tried_then = now.tried, before.tried
    is_alike = then is not None and tried.unit is tried_then.unit
    if not is_alike or own.rate is None or then is None or then.rate is None:
        is_new = then is None and seconds.before > 0
        return TrafficChange(own, then, None, None, is_new and tried.failures >= LEAST_FAILURES)
    more = tried.failures - tried.number * tried_then.rate
    # A sum over many services differs by little where one of them has failed, so the least difference is any.
    is_worse = compare(tried_then, tried, alpha=DOUBT, least=0.0).verdict is TrafficVerdict.WORSE
    return TrafficChange(own, then, round(own.rate - then.rate, 6), round(more, 1), is_worse)


@attrs.frozen
class TrafficEdgeRow:
    """The calls from one to another."""

    caller: TrafficEnd
    called: TrafficEnd
    change: TrafficChange = attrs.field(metadata=SPREAD)
    proxies: int
    """Proxies of the caller that made these calls."""


@attrs.frozen
class TrafficWindow:
    """The time that counts are of, and who counts."""

    is_on: bool
    """False if the control plane takes no reports."""
    advice: str
    """The thing to do, where nothing can be told; empty where something can."""
    seconds: float
    """The length of the time, which ended at most one interval ago; shorter than asked where no more is known."""
    before_seconds: float
    """The length of the time before, with which it is compared; 0 where nothing is remembered yet."""
    is_complete: bool
    """False if the counts of some of the time were lost."""
    by_agents: int
    """Proxies of which requests are known, as an agent counts them."""
    by_load_reports: int
    """Proxies of which only attempts are known."""
    silent: int
    """Connected proxies that report nothing."""


OFF = "traffic is off by a setting of the control plane (docs/traffic.md)"
NO_PROXY = "no proxy has connected yet: mesh-pilot proxy connects a machine"
NO_REPORTER = "no proxy reports traffic: run Envoys by mesh-pilot proxy, or turn load reports on (docs/traffic.md)"
NOT_YET = "the first reports are ten seconds away"


# -- a look at the table


@attrs.frozen
class TrafficSeconds:
    """The lengths of the times of a look."""

    now: float = 0.0
    before: float = 0.0


@attrs.frozen
class SeenRow:
    """A row of the table, now and before."""

    proxy: ReportingProxy
    kind: RowKind
    name: str
    now: Counts
    before: Counts


@attrs.frozen
class TrafficSeen:
    """A look at the table."""

    seconds: TrafficSeconds
    rows: Sequence[SeenRow]
    """The rows that counted something now or before."""
    is_complete: bool = True
    """False if the counts of some of the time were lost."""
    part: TrafficPart = TrafficPart()
    asked: float = 0.0
    """The seconds that were asked for."""
    stamp: object = None
    """Differs where the rows do."""


async def traffic_seen(state: PlaneState, seconds: float) -> TrafficSeen:
    """The latest seconds of traffic; empty where it is off."""
    looks, asked = TrafficLooks.of(state), round(seconds / SLOT_SECONDS) * SLOT_SECONDS
    part = await looks.get("part", None, partial(whole_part, state))
    if state.traffic is None:
        return TrafficSeen(TrafficSeconds(), (), part=part)
    stamp = (state.traffic.table.slot, part.known_seconds)
    seen = await looks.get(("seen", asked), stamp, partial(_look, state, asked, part))
    return attrs.evolve(seen, part=part, asked=asked, stamp=stamp)


async def _look(state: PlaneState, seconds: float, part: TrafficPart) -> TrafficSeen:
    table = state.traffic.table if state.traffic is not None else None
    windows = table.windows(seconds, part.known_seconds) if table is not None else None
    if table is None or windows is None:
        return TrafficSeen(TrafficSeconds(), ())
    now, before = windows
    # From the middle of a slot to that of another one: slots of other workers begin at other times, and are as many.
    half = SLOT_SECONDS / 2
    latest = await traffic_edges(state, now.begin + half, now.end - half)
    oldest = await traffic_edges(state, before.begin + half, before.end - half) if before.seconds else []
    rows = await in_turns(_joined(latest, oldest))
    is_complete = all(each.counts.is_complete for each in latest)
    return TrafficSeen(TrafficSeconds(now.seconds, before.seconds), rows, is_complete)


def _joined(latest: Iterable[TrafficEdge], oldest: Iterable[TrafficEdge]) -> Iterator[SeenRow]:
    """The rows of now with those of before, and those of before alone."""
    then: dict[tuple[str, RowKind, str], TrafficEdge] = {}
    for each in oldest:
        key = each.proxy.node, each.kind, each.name
        known = then.get(key)  # a proxy that has moved to another worker has rows at both
        then[key] = each if known is None else attrs.evolve(each, counts=together((known.counts, each.counts)))
    for each in latest:
        before = then.pop((each.proxy.node, each.kind, each.name), None)
        yield SeenRow(each.proxy, each.kind, each.name, each.counts, before.counts if before is not None else NOTHING)
    for each in then.values():
        yield SeenRow(each.proxy, each.kind, each.name, NOTHING, each.counts)


NOTHING = Counts()
"""No traffic."""


def traffic_window(state: PlaneState, seen: TrafficSeen) -> TrafficWindow:
    """The time of a look, and who counts."""
    reporters = seen.part.reporters
    counts = Tally(each.reports for each in reporters)
    advice = ""
    if state.traffic is None:
        advice = OFF
    elif not reporters:
        advice = NO_PROXY
    elif not counts["requests"] and not counts["attempts"]:
        advice = NO_REPORTER
    elif not seen.seconds.now:
        advice = NOT_YET
    return TrafficWindow(
        state.traffic is not None,
        advice,
        seen.seconds.now,
        seen.seconds.before,
        seen.is_complete,
        counts["requests"],
        counts["attempts"],
        counts["nothing"],
    )


# -- edges


class GroupBy(StrEnum):
    """The things that edges are summed by."""

    WORKLOAD = "workload"
    PROXY = "proxy"
    NAMESPACE = "namespace"


def caller_of(proxy: ReportingProxy, by: GroupBy) -> TrafficEnd:
    """The end of an edge that a proxy is, or is a part of."""
    own = proxy.workload
    if by is GroupBy.NAMESPACE:
        return TrafficEnd("namespace", own.namespace, own.namespace)
    if by is GroupBy.PROXY:
        return TrafficEnd("proxy", proxy.name, own.namespace)
    is_gateway = proxy.node.startswith(f"{NodeType.ROUTER}~")
    return TrafficEnd("gateway" if is_gateway else "workload", own.name, own.namespace)


async def edge_rows(state: PlaneState, seen: TrafficSeen, by: GroupBy) -> Sequence[TrafficEdgeRow]:
    """The edges of a look, the one that got worse most first."""
    ends, groups = TrafficEnds(state.world.view), dict[tuple[TrafficEnd, TrafficEnd], list[SeenRow]]()

    def grouped() -> Iterator[None]:
        for row in seen.rows:
            if row.kind is RowKind.CLUSTER:
                called = ends.called(row.proxy, row.name)
                if by is GroupBy.NAMESPACE and called.kind == "service":
                    called = TrafficEnd("namespace", called.namespace, called.namespace)
                groups.setdefault((caller_of(row.proxy, by), called), []).append(row)
            yield

    await in_turns(grouped())
    rows = await in_turns(
        TrafficEdgeRow(caller, called, change_of_rows(own, seen.seconds), len({row.proxy.node for row in own}))
        for (caller, called), own in groups.items()
    )
    return await trio.to_thread.run_sync(
        lambda: sorted(rows, key=lambda each: (each.change.order, each.caller, each.called))
    )


def change_of_rows(rows: Iterable[SeenRow], seconds: TrafficSeconds) -> TrafficChange:
    """The sum of rows next to that of before."""
    own = [*rows]
    return change_of(together(row.now for row in own), together(row.before for row in own), seconds)
