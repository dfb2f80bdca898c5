"""From any mesh to any other: one process that is given one mesh after another ends, each time and for every client
that stayed through it, where a fresh process begins. The meshes are the golden scenarios, and mixtures of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

import attrs
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Delete, Event, Item, Replace, Synced, Upsert
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Proxy
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.support import golden
from tests.support.envoy_model import EnvoyModel

SOURCE = "test"
CLIENTS = 8
"""Clients at the same time: those of the scenario at hand, and others that stay from earlier ones."""

Mesh = Mapping[tuple[str, ...], Item]
"""What a source holds, by key."""


@cache
def items_of(scenario: str) -> Mesh:
    return golden.load(scenario).items_of(SOURCE)


@cache
def clients(scenario: str) -> list[tuple[Proxy, tuple[str, ...]]]:
    return [(golden.proxy_of(entry), tuple(entry.get("grpc", ()))) for entry in golden.proxies(scenario)]


def hosts_apart(proxy: Proxy) -> Proxy:
    """The same proxy, which gets virtual hosts by themselves, and clusters on demand, unless it is a gRPC client."""
    asked = {VIRTUAL_HOSTS: "split", CLUSTERS: "on-demand"}
    return attrs.evolve(proxy, incremental=True, metadata={**proxy.metadata, **asked})


def replacing(mesh: Mesh) -> list[Event]:
    return [Replace(SOURCE, (), tuple(mesh.values())), Synced(SOURCE)]


class Journey:
    """A process and its clients on their way through meshes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.world.expect(SOURCE)
        self.catalog = WorldCatalog(self.world)
        self.models: list[tuple[EnvoyModel, tuple[str, ...]]] = []

    def go(self, mesh: Mesh, scenario: str) -> None:
        """To a mesh at once. Sometimes the next one comes before the clients are done."""
        self.world.apply(replacing(mesh))
        if self.random.random() < 0.3:
            self._hurry()
        else:
            self._exchange_clients(scenario)
            self.check(mesh)

    def wander(self, mesh: Mesh, scenario: str) -> None:
        """To a mesh object by object, in any order, with clients that look now and then."""
        before = self.world.items_of(SOURCE)
        events: list[Event] = [Delete(SOURCE, key) for key in before if key not in mesh]
        events += [Upsert(SOURCE, item) for key, item in mesh.items() if before.get(key) != item]
        self.random.shuffle(events)
        while events:
            count = self.random.randint(1, 8)
            self.world.apply(events[:count])
            del events[:count]
            self._hurry()
        self._exchange_clients(scenario)
        self.check(mesh)

    def check(self, mesh: Mesh) -> None:
        """Every client has what it would have of a process that knows nothing else."""
        fresh_world = World()
        fresh_world.expect(SOURCE)
        fresh_world.apply(replacing(mesh))
        fresh_catalog = WorldCatalog(fresh_world)
        for model, listeners in self.models:
            model.settle()
            fresh = EnvoyModel(fresh_catalog, model.proxy, model.variant, listeners)
            fresh.settle()
            assert model.held == fresh.held, model
        for live in self.catalog._sets.values():
            assert live.statistics().failed == 0

    def _hurry(self) -> None:
        """Some clients take a little of what there is for them."""
        for model, _ in self.random.sample(self.models, len(self.models) // 2):
            model.run(self.random.randint(1, 3))

    def _exchange_clients(self, scenario: str) -> None:
        """Some clients leave, others come back on a new stream, and those of a scenario join."""
        pick = self.random
        while len(self.models) > CLIENTS // 2:
            model, _ = self.models.pop(pick.randrange(len(self.models)))
            model.close()
        if pick.random() < 0.2:
            self.catalog.evict_idle()
        joining = clients(scenario)
        for proxy, listeners in pick.sample(joining, min(len(joining), CLIENTS // 2)):
            variant = pick.choice(list(Variant))
            if variant is Variant.DELTA and pick.random() < 0.5:
                proxy = hosts_apart(proxy)
            model = EnvoyModel(self.catalog, proxy, variant, listeners)
            self.models.append((model, listeners))
        for model, _ in self.models:
            if pick.random() < 0.15:
                model.close()
                model.connect()


def mixture(pick: random.Random) -> tuple[Mesh, str]:
    """Much of one scenario and some of others: services without their rules, rules without their services, ..."""
    first, *others = pick.sample(golden.scenarios(), 3)
    mesh = {key: item for key, item in items_of(first).items() if pick.random() < 0.9}
    for other in others:
        mesh |= {key: item for key, item in items_of(other).items() if pick.random() < 0.3}
    return mesh, first


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_that_went_through_all_scenarios_serves_each_as_a_fresh_one_does(seed: int) -> None:
    journey = Journey(seed)
    names = golden.scenarios()
    journey.random.shuffle(names)
    for scenario in names:
        journey.go(items_of(scenario), scenario)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_that_changes_object_by_object_serves_each_mixture_as_a_fresh_one_does(seed: int) -> None:
    _wander(seed, 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_long_journeys(seed: int) -> None:
    _wander(seed, 60)


def _wander(seed: int, meshes: int) -> None:
    journey = Journey(seed)
    for _ in range(meshes):
        journey.wander(*mixture(journey.random))
