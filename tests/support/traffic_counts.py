"""Traffic as reports say it, for tests of those who read it."""

from __future__ import annotations

from mesh_pilot.model.traffic import Counter, RowKind, TrafficRow
from mesh_pilot.traffic.table import CallingWorkload, ReportingProxy


def reporting(name: str = "web-1.shop", workload: str = "web") -> ReportingProxy:
    """A sidecar whose node id ends with the name."""
    namespace = name.partition(".")[2]
    node = f"sidecar~10.0.0.1~{name}~{namespace}.svc.cluster.local"
    principal = f"spiffe://cluster.local/ns/{namespace}/sa/{workload}"
    return ReportingProxy(node, name, CallingWorkload(namespace, workload, principal, (("app", workload),)))


def row(cluster: str, kind: RowKind = RowKind.CLUSTER, **counts: int) -> TrafficRow:
    """A row with counters by their names in lower case: ``row("outbound|80||a.b", requests=3, errors=1)``."""
    return TrafficRow(kind, cluster, {Counter[name.upper()]: count for name, count in counts.items()})
