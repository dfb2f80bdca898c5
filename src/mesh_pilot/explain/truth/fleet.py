"""The states of objects over the fleet: at how many of the proxies that an object applies to, and which is the worst.

Each process looks at its own proxies, and what several have seen is added up. What keeps an object out before it
reaches any proxy is not counted at each: only the first worker knows it (``PlaneFacts.at_door``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.explain.truth.facts import Key, PlaneFacts, of_unused, streams_by_proxy
from mesh_pilot.explain.truth.states import WORST_FIRST, Truth, TruthState
from mesh_pilot.model.counts import counted
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.xds.ads.status import Connection, StatusRegistry

NAMED = 20
"""Proxies that are named."""

_UNCOUNTED = (TruthState.HELD, TruthState.STALE, TruthState.CONFLICTING, TruthState.IN_FORCE, TruthState.ABSENT)
"""States that say nothing of single proxies."""

_BEFORE = {TruthState.WITHHELD: "from ", TruthState.TAKEN_BACK: "from "}


@attrs.frozen
class SeenAt:
    """Proxies that have the same version of an object for the same sort of reason."""

    truth: Truth
    """That of the first."""
    count: int
    names: tuple[str, ...]
    """The names of the first ones."""

    def joined(self, other: SeenAt) -> SeenAt:
        """Both together."""
        return SeenAt(self.truth, self.count + other.count, (*self.names, *other.names)[:NAMED])

    def is_like(self, other: SeenAt) -> bool:
        return (self.truth.state, self.truth.served) == (other.truth.state, other.truth.served)


@attrs.frozen
class FleetTruth:
    """The states of an object at the proxies that it applies to."""

    groups: tuple[SeenAt, ...] = ()

    @property
    def proxies(self) -> int:
        """The proxies that it applies to."""
        return sum(each.count for each in self.groups)

    def count(self, state: TruthState) -> int:
        return sum(each.count for each in self.groups if each.truth.state is state)

    def names(self, state: TruthState) -> list[str]:
        """The names of the first proxies in a state."""
        return [name for each in self.groups if each.truth.state is state for name in each.names][:NAMED]

    def plus(self, others: Iterable[SeenAt]) -> FleetTruth:
        """With other proxies."""
        groups = list(self.groups)
        for other in others:
            place = next((number for number, each in enumerate(groups) if each.is_like(other)), None)
            if place is None:
                groups.append(other)
            else:
                groups[place] = groups[place].joined(other)
        return FleetTruth(tuple(groups))

    def verdict(self, *others: Truth | None) -> Truth:
        """The worst state, of those at proxies and others, with the number of proxies where that says something."""
        known = [each for each in (*(group.truth for group in self.groups), *others) if each is not None]
        worst = min(known, key=_weight, default=Truth(TruthState.ABSENT))
        if worst.state in _UNCOUNTED or not self.count(worst.state):
            return worst
        return attrs.evolve(worst, why=f"{self._where(worst)}: {worst.why}")

    def _where(self, truth: Truth) -> str:
        if truth.state is TruthState.CANARY:
            has_new = sum(each.count for each in self.groups if each.truth.has_newest)
            return f"{has_new} of {_proxies(self.proxies)} have the new version"
        count = self.count(truth.state)
        where = "all" if count == self.proxies > 1 else f"{count} of"
        return f"{_BEFORE.get(truth.state, 'at ')}{where} {_proxies(self.proxies)}"


def _weight(truth: Truth) -> tuple[int, bool]:
    return WORST_FIRST.index(truth.state), truth.has_newest


def _proxies(count: int) -> str:
    return f"{counted(count, 'proxy', 'proxies')} that it applies to"


Fleet = Mapping[Key, FleetTruth]


def fleet_of(
    facts: PlaneFacts, status: StatusRegistry, asked: Collection[Key] = (), *, only: str = ""
) -> Iterator[dict[Key, SeenAt]]:
    """The objects that each connected proxy, or ``only`` the one of this id, is not given or does not use, and those
    that are asked for."""
    for node, own in streams_by_proxy(status).items():
        proxy = own[0].proxy
        if proxy is None or only not in ("", node):
            continue
        found: dict[Key, SeenAt] = {}
        for key in {*asked, *_kept_back(facts, proxy), *_unused(facts, own)}:
            truth = facts.kept_back(key, proxy, own)
            if truth is not None:
                found[key] = SeenAt(truth, 1, (proxy.name,))
        yield found


def added_up(found: Iterable[Mapping[Key, SeenAt | FleetTruth]]) -> dict[Key, FleetTruth]:
    """The sum of the states seen at several proxies, or by several processes."""
    fleet: dict[Key, FleetTruth] = {}
    for each in found:
        for key, seen in each.items():
            groups = seen.groups if isinstance(seen, FleetTruth) else (seen,)
            fleet[key] = fleet.get(key, FleetTruth()).plus(groups)
    return fleet


def _kept_back(facts: PlaneFacts, proxy: Proxy) -> Iterator[Key]:
    yield from (withheld.key for _, withheld in facts.withheld_from(proxy))
    yield from (withheld.key for withheld in facts.on_trial(proxy))
    yield from (change.key for change in facts.changes)


def _unused(facts: PlaneFacts, streams: Sequence[Connection]) -> Iterator[Key]:
    """The keys of what resources are made of that the proxy refuses, has not answered, or accepts and does not use."""
    for connection in streams:
        stream, unused = connection.stream, of_unused(connection)
        for type_url in RESOURCE_TYPES if stream is not None else ():
            assert stream is not None
            if any(of_type == type_url for of_type, _ in unused):
                for key, made in facts.made_in(facts.resources_of(stream, type_url)).items():
                    if any((type_url, each.name) in unused for each in made):
                        yield key
            if stream.is_refused(type_url):
                yield from facts.refused_by(connection, type_url)
