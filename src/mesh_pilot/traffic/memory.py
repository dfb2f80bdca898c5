"""Traffic beyond ten minutes: an hour by minutes, days by hours, by workload. In memory; times are of the wall clock.

Here callers are workloads, not proxies: machines come and go, and what a workload called last week is asked of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

import attrs

from mesh_pilot.mesh.names.resources import ClusterName, parse_cluster
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.counts import Counts, together
from mesh_pilot.traffic.table import CallingWorkload, TrafficEdge, TrafficTable

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MINUTES = 60
"""Minutes that are remembered."""
HOURS = 24 * 31
"""Hours that are remembered."""

Key = tuple[CallingWorkload, RowKind, str]


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


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TrafficMemory:
    """Mutable state: the counts of each minute and each hour that is remembered."""

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self._minutes: dict[datetime, dict[Key, Counts]] = {}
        self._hours: dict[datetime, dict[Key, Counts]] = {}

    def __repr__(self) -> str:
        return f"<TrafficMemory {len(self._minutes)} minutes, {len(self._hours)} hours>"

    @property
    def since(self) -> datetime | None:
        """The beginning of the oldest hour that is remembered; None before the first."""
        return min(self._hours, default=None)

    def fold(self, edges: Iterable[TrafficEdge]) -> None:
        """Add the counts of the minute that is over now."""
        at = (self._now() - MINUTE / 2).replace(second=0, microsecond=0)
        for edge in edges:
            key = edge.proxy.workload, edge.kind, edge.name
            for place, begin in ((self._minutes, at), (self._hours, at.replace(minute=0))):
                row = place.setdefault(begin, {})
                row[key] = together((row.get(key, Counts()), edge.counts))
        for place, step, limit in ((self._minutes, MINUTE, MINUTES), (self._hours, HOUR, HOURS)):
            for begin in [each for each in place if each < self._now() - step * (limit + 1)]:
                del place[begin]

    def minutes(self, begin: datetime, end: datetime) -> Iterator[WorkloadEdge]:
        """The counts of whole minutes from ``begin`` until before ``end``."""
        return _summed(rows for at, rows in self._minutes.items() if begin <= at < end)

    def hours(self, since: datetime) -> Iterator[WorkloadEdge]:
        """The counts of the hours since then, the one that it lies in included."""
        return _summed(rows for at, rows in self._hours.items() if at + HOUR > since)


def _summed(every: Iterable[dict[Key, Counts]]) -> Iterator[WorkloadEdge]:
    found: dict[Key, list[Counts]] = {}
    for rows in every:
        for key, counts in rows.items():
            found.setdefault(key, []).append(counts)
    for (workload, kind, name), each in found.items():
        yield WorkloadEdge(workload, kind, name, together(each))


@attrs.frozen(eq=False)
class MeshTraffic:
    """All that a control plane knows of traffic. ``table``, the last ten minutes, is of proxies; ``memory`` is of
    workloads, and reaches further back."""

    table: TrafficTable
    memory: TrafficMemory
