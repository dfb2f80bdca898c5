"""The traffic that proxies have counted, as analyzers look at it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cached_property

import attrs

from mesh_pilot.mesh.names.resources import ClusterName, Direction
from mesh_pilot.model.counts import counted
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.memory import WorkloadEdge


@attrs.frozen(eq=False, slots=False)
class SeenTraffic:
    """The traffic of a live plane since a time."""

    since: datetime
    until: datetime
    reporting: frozenset[str]
    """The node ids of the proxies that report now."""
    _edges: Iterable[WorkloadEdge]
    """Gone through once, and only if somebody asks: of a month that takes a while."""

    @cached_property
    def _used(self) -> tuple[WorkloadEdge, ...]:
        return tuple(edge for edge in self._edges if edge.counts)

    @cached_property
    def clusters(self) -> frozenset[ClusterName]:
        """The outbound clusters that any workload used."""
        found = (edge.cluster for edge in self._used)
        return frozenset(each for each in found if each is not None and each.direction is Direction.OUTBOUND)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """The hosts of these clusters."""
        return frozenset(each.host for each in self.clusters)

    @cached_property
    def subsets(self) -> frozenset[tuple[str, str]]:
        """Hosts and subsets of these clusters; empty: all of a service."""
        return frozenset((each.host, each.subset) for each in self.clusters)

    @cached_property
    def rules(self) -> frozenset[str]:
        """The rules of policies that requests met, by the names that their statistics have."""
        return frozenset(edge.name for edge in self._used if edge.kind is RowKind.POLICY)

    @property
    def length(self) -> str:
        """The time for people: ``7 days``."""
        return length_of(self.until - self.since)


def length_of(time: timedelta) -> str:
    """A length of time: ``7 days``, ``3 hours``, ``12 minutes``."""
    minutes = round(time / timedelta(minutes=1))
    if minutes < 2 * 60:
        return counted(minutes, "minute")
    return counted(minutes // 60, "hour") if minutes < 2 * 24 * 60 else counted(minutes // (24 * 60), "day")
