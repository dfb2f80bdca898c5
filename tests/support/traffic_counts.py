"""Traffic as reports say it, for tests of those who read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh_pilot.model.traffic import Counter, RowKind, TrafficRow
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.spans import MINUTE, EdgeKey, SpanSums, TrafficSpan
from mesh_pilot.traffic.table import SLOT_SECONDS, CallingWorkload, ReportingProxy, TrafficTable


def reporting(name: str = "web-1.shop", workload: str = "web", address: str = "10.0.0.1") -> ReportingProxy:
    """A sidecar whose node id ends with the name."""
    namespace = name.partition(".")[2]
    node = f"sidecar~{address}~{name}~{namespace}.svc.cluster.local"
    principal = f"spiffe://cluster.local/ns/{namespace}/sa/{workload}"
    return ReportingProxy(node, name, CallingWorkload(namespace, workload, principal, (("app", workload),)))


def row(cluster: str, kind: RowKind = RowKind.CLUSTER, **counts: int) -> TrafficRow:
    """A row with counters by their names in lower case: ``row("outbound|80||a.b", requests=3, errors=1)``."""
    return TrafficRow(kind, cluster, {Counter[name.upper()]: count for name, count in counts.items()})


class Planted:
    """A table on its own clock, in which traffic is planted. State: the time."""

    def __init__(self, table: TrafficTable | None = None) -> None:
        self.now = 10_000.0
        self.table = table or TrafficTable()
        self.table._clock = lambda: self.now

    def plant(
        self, *reports: tuple[ReportingProxy, Sequence[TrafficRow]], slots: int = 1, of_agent: bool = True
    ) -> None:
        """Let proxies report the same in some intervals; the last one is over then."""
        for _ in range(slots):
            for proxy, rows in reports:
                self.table.add(proxy, rows, of_agent=of_agent)
            self.now += SLOT_SECONDS


def span_of(
    minute: int, rows: Iterable[tuple[EdgeKey, Counts]], slots: int = int(MINUTE // SLOT_SECONDS)
) -> TrafficSpan:
    """A minute with these rows, as the keeper folds it."""
    sums = SpanSums()
    for key, counts in rows:
        sums.add_counts(key, counts)
    return TrafficSpan(minute, MINUTE, slots, left_out=sums.left_out, data=sums.packed())
