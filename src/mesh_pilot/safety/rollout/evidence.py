"""The evidence in a rollout: what proxies tried of each subject, and how much of it failed.

A subject is what a workload does: its requests to a service, what arrives at one of its ports or listeners, what its
policies deny. In a rollout by weights it is all that is sent to destinations that gain weight, or lose some.

Whatever reads many rows is a generator that yields between two of them, for `base.in_turns`: 100 proxies may have some
ten thousand.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeVar

from mesh_pilot.mesh.names.resources import parse_cluster
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Tries
from mesh_pilot.traffic.judging import TriedGroup
from mesh_pilot.traffic.table import CallingWorkload, TrafficEdge

K = TypeVar("K")


class SubjectKind(StrEnum):
    """Kinds of subjects, as reasons name them."""

    CALLS = "to"
    ARRIVING = "at port"
    LISTENER = "at listener"
    NO_ROUTE = "without a route at listener"
    NO_CLUSTER = "to a cluster that does not exist at listener"
    DENIED = "denied by policies at listener"
    WEIGHTED = "to where weight goes by"


class Subject(NamedTuple):
    """Something of a workload that is judged."""

    workload: str
    kind: SubjectKind
    name: str
    unit: Counter

    @property
    def host(self) -> str:
        """The host that is called; empty for another subject."""
        return self.name.rpartition(":")[0] if self.kind is SubjectKind.CALLS else ""

    def __str__(self) -> str:
        if self.kind is SubjectKind.WEIGHTED:
            return f"{self.unit.name.lower()} {self.kind} {self.name}"
        return f"{self.unit.name.lower()} of {self.workload} {self.kind} {self.name}"


Pair = tuple[int, int]
"""Tries and failures."""


class Side:
    """Tries of a group of proxies with one subject."""

    def __init__(self) -> None:
        self.pair: Pair = (0, 0)
        self._proxies: dict[str, Pair] = {}
        self._slots: dict[float, Pair] = {}

    @property
    def number(self) -> int:
        return self.pair[0]

    @property
    def failures(self) -> int:
        return self.pair[1]

    def __str__(self) -> str:
        return f"{self.failures:,} of {self.number:,} ({self.failures / self.number:.2%})"

    def add(self, node: str, slot: float, pair: Pair) -> None:
        """Add what a proxy tried in a slot."""
        self.pair = plus(self.pair, pair)
        _add(self._proxies, node, pair)
        _add(self._slots, slot, pair)

    def take(self, other: Side) -> None:
        """Add what other proxies tried."""
        self.pair = plus(self.pair, other.pair)
        for node, pair in other._proxies.items():
            _add(self._proxies, node, pair)
        for slot, pair in other._slots.items():
            _add(self._slots, slot, pair)

    def group(self, unit: Counter) -> TriedGroup:
        return TriedGroup(
            Tries(*self.pair, unit),
            [Tries(*each, unit) for each in self._proxies.values()],
            [Tries(*each, unit) for each in self._slots.values()],
        )


Sides = dict[Subject, Side]

Shifted = Mapping[tuple[str, str], tuple[str, bool]]
"""The object, by host and subset, that changes the weight of a destination, and whether it gains."""


def plus(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def _add(into: dict[K, Pair], key: K, pair: Pair) -> None:
    into[key] = plus(into.get(key, (0, 0)), pair)


def read(edges: Iterator[TrafficEdge], slot: float, into: Sides) -> Iterator[None]:
    """Add what proxies counted in a slot."""
    for edge in edges:
        for subject, pair in _subjects(edge):
            if pair[0]:
                into.setdefault(subject, Side()).add(edge.proxy.node, slot, pair)
        yield


def read_shifted(
    edges: Iterator[TrafficEdge], slot: float, shifted: Shifted, gaining: Sides, losing: Sides
) -> Iterator[None]:
    """Add what proxies counted in a slot at destinations whose weights change."""
    for edge in edges:
        cluster, tried = edge.cluster, edge.counts.tried
        place = shifted.get((cluster.host, cluster.subset)) if cluster is not None else None
        if place is not None and tried.number:
            name, gains = place
            subject = Subject("", SubjectKind.WEIGHTED, name, tried.unit)
            side = (gaining if gains else losing).setdefault(subject, Side())
            side.add(edge.proxy.node, slot, (tried.number, tried.failures))
        yield


def pooled(sides: Sides) -> Generator[None, None, Sides]:
    """Returns the calls of all workloads together, to each service and to all of them (without a name)."""
    found: Sides = {}
    for subject, side in sides.items():
        if subject.kind is SubjectKind.CALLS:
            for name in (subject.name, ""):
                found.setdefault(subject._replace(workload="", name=name), Side()).take(side)
        yield
    return found


def _subjects(edge: TrafficEdge) -> Iterator[tuple[Subject, Pair]]:
    """The subjects that a row is about, each with its tries."""
    counts = edge.counts
    if edge.kind is RowKind.CLUSTER:
        number, failures, unit = counts.tried
        yield Subject(*_of_cluster(edge.proxy.workload, edge.name), unit), (number, failures)
    elif edge.kind is RowKind.LISTENER:
        workload = f"{edge.proxy.workload.name}.{edge.proxy.workload.namespace}"
        requests, denied = counts[Counter.REQUESTS], counts[Counter.DENIED]
        for kind, counter in _OF_LISTENERS:
            pair = max(requests, counts[counter]), counts[counter]
            yield Subject(workload, kind, edge.name, Counter.REQUESTS), pair
        pair = max(requests, denied + counts[Counter.ALLOWED]), denied
        yield Subject(workload, SubjectKind.DENIED, edge.name, Counter.REQUESTS), pair


@lru_cache(10_000)
def _of_cluster(workload: CallingWorkload, name: str) -> tuple[str, SubjectKind, str]:
    """The subject of a cluster, but for its unit."""
    whose, cluster = f"{workload.name}.{workload.namespace}", parse_cluster(name)
    if cluster is None:
        return whose, SubjectKind.CALLS, name
    if not cluster.host:
        return whose, SubjectKind.ARRIVING, str(cluster.port)
    return whose, SubjectKind.CALLS, f"{cluster.host}:{cluster.port}"


_OF_LISTENERS = (
    (SubjectKind.LISTENER, Counter.ERRORS),
    (SubjectKind.NO_ROUTE, Counter.NO_ROUTE),
    (SubjectKind.NO_CLUSTER, Counter.NO_CLUSTER),
)
