"""The use that each workload made of its clusters over some days: whoever asks for it makes suggestions of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.counts import Counts, together
from mesh_pilot.traffic.memory import MeshTraffic, WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload, TrafficEdge


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


def observed_traffic(
    traffic: MeshTraffic, latest: Iterable[TrafficEdge], days: int, now: datetime | None = None
) -> Callable[[], ObservedTraffic]:
    """The traffic of the last days. The function that is returned is for a thread: a month takes a while.

    ``latest``: the rows of the last minutes, of all workers, which may not be in the memory yet.
    """
    until = now or datetime.now(UTC)
    begin = until - timedelta(days=days)
    oldest = traffic.memory.since
    remembered = traffic.memory.hours(max(oldest or begin, begin))
    fresh = [*latest]
    reporters = [(proxy.node, proxy.workload) for proxy, _ in traffic.table.reporters()]

    def answer() -> ObservedTraffic:
        edges = {(each.workload, each.kind, each.name): each for each in remembered}
        for edge in _by_workload(fresh):
            edges.setdefault((edge.workload, edge.kind, edge.name), edge)  # else all but a minute's counts are there
        since = max(oldest or until, begin) if edges or reporters else None
        return ObservedTraffic(since, until, days, _rows(edges.values()), [*map(_node, reporters)])

    return answer


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
