"""Traffic: who calls whom and how well, as proxies count it, against ten minutes ago."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from math import sqrt
from typing import Any, TypeVar

import attrs
import trio

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.mesh.names.resources import (
    BLACK_HOLE,
    INBOUND_PASSTHROUGH,
    PASSTHROUGH,
    REQUESTED_HOST,
    Direction,
    parse_cluster,
)
from mesh_pilot.model.json import SPREAD
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.traffic_rows import traffic_edges
from mesh_pilot.traffic.counts import Counts, Tries, together
from mesh_pilot.traffic.table import SLOT_SECONDS, ReportingProxy
from mesh_pilot.world import View

T = TypeVar("T")

USUAL_SECONDS = 60
"""The length of the time that is told where nobody says how long."""

INTERVAL_SECONDS = 0.5
"""The age up to which a look at the table is used again."""

SURE = 3.0
"""A multiple of the usual scatter, and a number of failures: more than both is worse than before."""

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
    """False if the counts of some of the time were lost, or somebody began to report within it: there was more."""

    @classmethod
    def of(cls, counts: Counts, seconds: float) -> TrafficCounts:
        def known(counter: Counter) -> int | None:
            is_known = counts.has_requests if counter in OF_AGENTS else counter in counts.values
            return counts[counter] if is_known else None

        tried = counts.tried
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
    own = TrafficCounts.of(now, seconds.now)
    then = attrs.evolve(TrafficCounts.of(before, seconds.before), in_flight=None) if before and seconds.before else None
    tried, tried_then = now.tried, before.tried
    is_alike = then is not None and tried.unit is tried_then.unit
    if not is_alike or own.rate is None or then is None or then.rate is None:
        is_new = then is None and seconds.before > 0
        return TrafficChange(own, then, None, None, is_new and tried.failures >= SURE)
    more = tried.failures - tried.number * tried_then.rate
    return TrafficChange(
        own, then, round(own.rate - then.rate, 6), round(more, 1), _is_beyond_chance(more, tried, tried_then)
    )


def _is_beyond_chance(more: float, now: Tries, before: Tries) -> bool:
    """True if failures are more than two samples of one rate would usually differ by."""
    pooled = (now.failures + before.failures) / (now.number + before.number)
    scatter = sqrt(now.number * pooled * (1 - pooled) * (1 + now.number / before.number))
    return more >= SURE and more > SURE * scatter


@attrs.frozen(order=True)
class TrafficEnd:
    """A caller, or a destination of calls."""

    kind: str
    """A caller's: ``workload``, ``gateway``, ``proxy`` or ``namespace``. A destination's: ``service``; ``passthrough``:
    a host that no service has; ``black_hole``: one that is refused; ``inbound`` and ``inbound_passthrough``: a proxy's
    own application, at a port of a service or another one; ``namespace``; ``cluster``: one of another name."""
    name: str
    """A workload's or proxy's name, a service's host, or a cluster's name."""
    namespace: str
    """Empty for what has none."""
    port: int | None = None
    subset: str = ""


@attrs.frozen
class TrafficEdgeRow:
    """The calls from one to another."""

    caller: TrafficEnd
    called: TrafficEnd
    change: TrafficChange = attrs.field(metadata=SPREAD)
    proxies: int
    """Proxies of the caller that made these calls."""


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


class TrafficLooks:
    """Things that were made of the table in the last half second, whoever asks: each at most twice a second.

    Mutable state: the things with their times.
    """

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._found: dict[object, tuple[float, Any]] = {}

    def __repr__(self) -> str:
        return f"<TrafficLooks {[*self._found]}>"

    @classmethod
    def of(cls, state: PlaneState) -> TrafficLooks:
        """The looks of a plane."""
        found = state.kept.get(cls)
        if not isinstance(found, TrafficLooks):
            found = state.kept[cls] = cls()
        return found

    async def get(self, key: object, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of a key. If cancelled, another caller makes it."""
        async with self._lock:
            now = trio.current_time()
            self._found = {each: own for each, own in self._found.items() if now - own[0] < INTERVAL_SECONDS}
            if key not in self._found:
                self._found[key] = now, await make()
            found: T = self._found[key][1]
            return found


async def traffic_seen(state: PlaneState, seconds: float) -> TrafficSeen:
    """The latest seconds of traffic, as of half a second ago at most; empty where it is off."""
    asked = round(seconds / SLOT_SECONDS) * SLOT_SECONDS
    return await TrafficLooks.of(state).get(("seen", asked), partial(_look, state, asked))


async def _look(state: PlaneState, seconds: float) -> TrafficSeen:
    table = state.traffic.table if state.traffic is not None else None
    windows = table.windows(seconds) if table is not None else None
    if table is None or windows is None:
        return TrafficSeen(TrafficSeconds(), ())
    now, before = windows
    # From the middle of a slot to that of another one: slots of other workers begin at other times, and are as many.
    half = SLOT_SECONDS / 2
    latest = await traffic_edges(state, now.begin + half, now.end - half)
    oldest = await traffic_edges(state, before.begin + half, before.end - half) if before.seconds else []
    then = {(each.proxy.node, each.kind, each.name): each.counts for each in oldest}
    rows = []
    for each in latest:
        counts = then.pop((each.proxy.node, each.kind, each.name), NOTHING)
        rows.append(SeenRow(each.proxy, each.kind, each.name, each.counts, counts))
    for each in oldest:
        if (each.proxy.node, each.kind, each.name) in then:
            rows.append(SeenRow(each.proxy, each.kind, each.name, NOTHING, each.counts))
    return TrafficSeen(TrafficSeconds(now.seconds, before.seconds), rows)


NOTHING = Counts()
"""No traffic."""


# -- edges


class TrafficEnds:
    """The ends of edges, by names that statistics have. State: those that were resolved."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._called: dict[tuple[str, str], TrafficEnd] = {}

    def called(self, row: SeenRow) -> TrafficEnd:
        """The destination that a row of a cluster is about."""
        key = row.proxy.workload.namespace, row.name
        found = self._called.get(key)
        if found is None:
            found = self._called[key] = self._resolved(*key)
        return found

    def _resolved(self, namespace: str, name: str) -> TrafficEnd:
        cluster = parse_cluster(name)
        if cluster is None:
            return TrafficEnd(_KINDS.get(name, "cluster"), name, "")
        if cluster.direction is Direction.INBOUND:
            return TrafficEnd("inbound", name, "", cluster.port)
        own = [each.namespace for each in self._view.services_named(cluster.host)]
        found = namespace if namespace in own else next(iter(own), "")
        return TrafficEnd("service", cluster.host, found, cluster.port, cluster.subset)


_KINDS = {
    PASSTHROUGH: "passthrough",
    REQUESTED_HOST: "passthrough",
    BLACK_HOLE: "black_hole",
    INBOUND_PASSTHROUGH: "inbound_passthrough",
}

INBOUND_KINDS = ("inbound", "inbound_passthrough")


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
                called = ends.called(row)
                if by is GroupBy.NAMESPACE and called.kind == "service":
                    called = TrafficEnd("namespace", called.namespace, called.namespace)
                groups.setdefault((caller_of(row.proxy, by), called), []).append(row)
            yield

    await in_turns(grouped())
    rows = await in_turns(
        TrafficEdgeRow(caller, called, change_of_rows(own, seen.seconds), len({row.proxy.node for row in own}))
        for (caller, called), own in groups.items()
    )
    return sorted(rows, key=lambda each: (each.change.order, each.caller, each.called))


def change_of_rows(rows: Iterable[SeenRow], seconds: TrafficSeconds) -> TrafficChange:
    """The sum of rows next to that of before."""
    own = [*rows]
    return change_of(together(row.now for row in own), together(row.before for row in own), seconds)
