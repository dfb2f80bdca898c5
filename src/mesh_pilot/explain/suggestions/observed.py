"""The traffic of a mesh over some days as it was seen, and the form of a suggestion.

Proxies count, and count only what reached a cluster of theirs. What nothing counts, no suggestion may take away: see
`explain.suggestions.needs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import attrs

from mesh_pilot.mesh.names.resources import ClusterName, Direction
from mesh_pilot.model.config import Config
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload


class ObservedError(ValueError):
    """Traffic that cannot be read: the reason."""


@attrs.frozen(slots=False)
class Observed:
    """The traffic of a mesh since a time."""

    since: datetime
    """When counting began, within the days that were asked for."""
    until: datetime
    asked: timedelta
    """The time that was asked for."""
    edges: tuple[WorkloadEdge, ...]
    reporters: Mapping[str, CallingWorkload]
    """The workload of each proxy that reports now, by node id."""

    @property
    def is_short(self) -> bool:
        """True if counting began later than was asked for: an hour more or less is not told."""
        return self.until - self.since < self.asked - timedelta(hours=1)

    @property
    def has_gaps(self) -> bool:
        """True if some counts were lost."""
        return any(not edge.counts.is_complete for edge in self.edges)

    @cached_property
    def calls(self) -> Mapping[CallingWorkload, Mapping[ClusterName, Counts]]:
        """The outbound clusters that each workload used, and how much."""
        found: defaultdict[CallingWorkload, dict[ClusterName, Counts]] = defaultdict(dict)
        for edge in self.edges:
            cluster = edge.cluster
            if cluster is not None and cluster.direction is Direction.OUTBOUND and edge.counts:
                found[edge.workload][cluster] = edge.counts
        return dict(found)

    @cached_property
    def arrivals(self) -> Mapping[CallingWorkload, Mapping[int, Counts]]:
        """The requests and connections that arrived at the ports of each workload, as its own proxy counts it."""
        found: defaultdict[CallingWorkload, dict[int, Counts]] = defaultdict(dict)
        for edge in self.edges:
            cluster = edge.cluster
            if cluster is not None and cluster.direction is Direction.INBOUND and edge.counts:
                found[edge.workload][cluster.port] = edge.counts
        return dict(found)

    @cached_property
    def _clusters(self) -> Mapping[str, frozenset[CallingWorkload]]:
        """The workloads that used each cluster, whatever its name."""
        found: defaultdict[str, set[CallingWorkload]] = defaultdict(set)
        for edge in self.edges:
            if edge.kind is RowKind.CLUSTER and edge.counts:
                found[edge.name].add(edge.workload)
        return {name: frozenset(workloads) for name, workloads in found.items()}

    def used(self, workload: CallingWorkload, *clusters: str) -> bool:
        """True if a workload used a cluster of one of these names."""
        return any(workload in self._clusters.get(name, ()) for name in clusters)

    def workloads(self) -> Iterator[CallingWorkload]:
        """All that were seen, by namespace and name."""
        found = {edge.workload for edge in self.edges} | {*self.reporters.values()}
        return iter(sorted(found, key=lambda each: (each.namespace, each.name, each.principal, each.labels)))


@attrs.frozen
class Suggestion:
    """An object that might be applied."""

    config: Config
    why: Mapping[str, str] = attrs.field(factory=dict)
    """The reasons of those of its hosts or callers that were not simply called or calling."""
    notes: Sequence[str] = ()
    """Sentences for its readers."""
    proxies: Sequence[str] = ()
    """The names of the connected proxies that it applies to."""


@attrs.frozen
class Skipped:
    """A workload for which nothing is suggested."""

    workload: str
    """``shop/web``."""
    reason: str


@attrs.frozen
class Suggestions:
    """All suggestions for a mesh, or a namespace."""

    objects: Sequence[Suggestion]
    skipped: Sequence[Skipped]


def read_observed(value: Any) -> Observed | None:
    """The traffic in the answer of ``/picture/traffic``; None if nothing has been counted. Raises ObservedError."""
    try:
        if value["since"] is None:
            return None
        edges = []
        for row in value["workloads"]:
            workload = _workload(row["workload"])
            edges += [_edge(workload, each) for each in row["rows"]]
        reporters = {str(row["node"]): _workload(row["workload"]) for row in value["reporting"]}
        since, until = (datetime.fromisoformat(value[name]) for name in ("since", "until"))
        return Observed(since, until, timedelta(days=float(value["days"])), tuple(edges), reporters)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ObservedError(f"{type(error).__name__}: {error}") from None


def _workload(row: Mapping[str, Any]) -> CallingWorkload:
    labels = tuple(sorted((str(key), str(value)) for key, value in row["labels"].items()))
    return CallingWorkload(str(row["namespace"]), str(row["name"]), str(row["principal"]), labels)


def _edge(workload: CallingWorkload, row: Mapping[str, Any]) -> WorkloadEdge:
    known = {each.name.lower(): each for each in Counter}
    values = {known[name]: int(count) for name, count in row["counts"].items() if name in known}
    counts = Counts(values, has_requests=bool(row["has_requests"]), is_complete=bool(row["is_complete"]))
    return WorkloadEdge(workload, RowKind[str(row["kind"]).upper()], str(row["name"]), counts)
