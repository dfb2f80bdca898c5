"""The use that each workload made of its clusters over some days: suggestions and analysis look at it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from mesh_pilot.model.traffic import RowKind
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.traffic_rows import traffic_edges
from mesh_pilot.traffic.counts import Counts, together
from mesh_pilot.traffic.memory import KEPT_DAYS, MeshTraffic, WorkloadEdge
from mesh_pilot.traffic.spans import DAY
from mesh_pilot.traffic.table import CallingWorkload, TrafficEdge

MOST_DAYS = KEPT_DAYS // DAY
"""As far back as traffic is remembered."""


@attrs.frozen
class ObservedWorkload:
    """The proxies that call alike."""

    namespace: str
    name: str
    """The canonical service, else the workload's own name."""
    principal: str
    """The SPIFFE identity; empty if nothing vouches for one."""
    labels: Mapping[str, str]
    """The labels by which a selector finds it; none if none tells it from others."""


@attrs.frozen
class ObservedRow:
    """A cluster that a workload used, or a listener or policy that it met."""

    kind: str
    """``cluster``, ``listener`` or ``policy``."""
    name: str
    counts: Mapping[str, int]
    """Numbers by the name of the counter, such as ``requests``, ``errors``, ``attempts`` and ``connections``."""
    has_requests: bool
    """False: an Envoy without an agent counted, which knows attempts and no requests."""
    is_complete: bool
    """False if some counts were lost."""


@attrs.frozen
class ObservedRows:
    """All that a workload used."""

    workload: ObservedWorkload
    rows: Sequence[ObservedRow]


@attrs.frozen
class ReportingNode:
    """A proxy that reports now."""

    node: str
    """The node id."""
    workload: ObservedWorkload


@attrs.frozen
class ObservedTraffic:
    """The traffic of the mesh since a time."""

    since: datetime | None
    """When counting began, within the days that were asked for; null if nothing has been counted."""
    until: datetime
    days: int
    """The days that were asked for."""
    workloads: Sequence[ObservedRows]
    reporting: Sequence[ReportingNode]


@attrs.frozen(eq=False)
class RecentTraffic:
    """The traffic of some days, before it is looked at."""

    since: datetime | None
    """The same as of `ObservedTraffic`; None if nothing has been counted."""
    until: datetime
    edges: Iterable[WorkloadEdge]
    """Rows by workload, to be gone through once, and in a thread: a month takes a while."""
    reporters: Sequence[tuple[str, CallingWorkload]]
    """The proxies that report now: node ids and workloads."""


async def traffic_of_days(state: PlaneState, days: int) -> RecentTraffic | None:
    """The traffic of a plane in the last days; None where it is not counted."""
    return recent_traffic(state.traffic, await traffic_edges(state), days) if state.traffic is not None else None


def recent_traffic(
    traffic: MeshTraffic, latest: Iterable[TrafficEdge], days: int, now: datetime | None = None
) -> RecentTraffic:
    """The traffic of the last days. ``latest``: the rows of the last minutes, of all workers, which may not be in the
    memory yet."""
    until = now or datetime.now(UTC)
    begin = until - timedelta(days=days)
    oldest = traffic.memory.since
    remembered, fresh = traffic.memory.hours(max(oldest or begin, begin)), [*latest]
    reporters = [(proxy.node, proxy.workload) for proxy, _ in traffic.table.reporters()]
    since = max(oldest or until, begin) if fresh or reporters or oldest else None
    return RecentTraffic(since, until, _edges(remembered, fresh), reporters)


def observed_traffic(found: RecentTraffic, days: int) -> ObservedTraffic:
    """The same as a value."""
    rows = _rows(found.edges)
    since = found.since if rows or found.reporters else None
    return ObservedTraffic(since, found.until, days, rows, [*map(_node, found.reporters)])


def _edges(remembered: Iterable[WorkloadEdge], latest: Iterable[TrafficEdge]) -> Iterator[WorkloadEdge]:
    known = set()
    for each in remembered:
        known.add((each.workload, each.kind, each.name))
        yield each
    for each in _by_workload(latest):
        if (each.workload, each.kind, each.name) not in known:  # else all but a minute's counts are there
            yield each


def _by_workload(latest: Iterable[TrafficEdge]) -> Iterator[WorkloadEdge]:
    found: defaultdict[tuple[CallingWorkload, RowKind, str], list[Counts]] = defaultdict(list)
    for row in latest:
        found[row.proxy.workload, row.kind, row.name].append(row.counts)
    for key, counts in found.items():
        # They are young: that the table is shorter than ten minutes does not mean that anything is missing.
        yield WorkloadEdge(*key, attrs.evolve(together(counts), is_complete=True))


def _rows(edges: Iterable[WorkloadEdge]) -> list[ObservedRows]:
    found: defaultdict[CallingWorkload, list[ObservedRow]] = defaultdict(list)
    for edge in edges:
        counts = {counter.name.lower(): count for counter, count in edge.counts.values.items()}
        row = ObservedRow(edge.kind.name.lower(), edge.name, counts, edge.counts.has_requests, edge.counts.is_complete)
        found[edge.workload].append(row)
    return [ObservedRows(_workload(workload), rows) for workload, rows in found.items()]


def _node(reporter: tuple[str, CallingWorkload]) -> ReportingNode:
    return ReportingNode(reporter[0], _workload(reporter[1]))


def _workload(workload: CallingWorkload) -> ObservedWorkload:
    return ObservedWorkload(workload.namespace, workload.name, workload.principal, dict(workload.labels))
