"""A plan says exactly what the push then does: which resources each proxy gets in which version, and in how many bytes.

The push is that of a plane in which the same objects change, to clients that ask as Envoy does (``EnvoyModel``).
"""

from __future__ import annotations

import json
import random
from itertools import pairwise

import attrs
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.explain.plan.objects import ObjectChange, changes_of
from mesh_pilot.explain.plan.picture import ConnectedProxy, read_picture, take_picture
from mesh_pilot.explain.plan.planning import Plan, Planner
from mesh_pilot.model.events import Replace, Synced
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.world import World
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import Response, Variant
from tests.support import golden
from tests.support.envoy_model import EnvoyModel
from tests.test_transitions import SOURCE, Mesh, clients, items_of, mixture

VERSION = "1"


class CountingModel(EnvoyModel):
    """Counts the bytes that it is sent."""

    bytes = 0
    encoder = Encoder(f"mesh-pilot {VERSION}")

    def _take(self, response: Response) -> None:
        self.bytes += len(self.encoder.encode(response))
        super()._take(response)


class Plane:
    """A World and its clients, with what each client has been sent."""

    def __init__(self, mesh: Mesh, connected: list[ConnectedProxy]) -> None:
        self.world = World()
        self.world.expect(SOURCE)
        self.world.apply([Replace(SOURCE, (), tuple(mesh.values())), Synced(SOURCE)])
        self.catalog = WorldCatalog(self.world)
        self.clients = [CountingModel(self.catalog, each.proxy, each.variant, each.listeners) for each in connected]
        for client in self.clients:
            client.settle()
            client.bytes = 0

    def change_to(self, mesh: Mesh) -> None:
        self.world.apply([Replace(SOURCE, (), tuple(mesh.values()))])
        for client in self.clients:
            client.settle()


def fleet(pick: random.Random, *scenarios: str) -> list[ConnectedProxy]:
    """The proxies of scenarios; some get virtual hosts by themselves."""
    found = []
    for proxy, listeners in (entry for scenario in scenarios for entry in clients(scenario)):
        variant = pick.choice(list(Variant))
        if variant is Variant.DELTA:
            proxy = attrs.evolve(proxy, incremental=True)
            if pick.random() < 0.5:
                proxy = with_hosts_apart(proxy)
        found.append(ConnectedProxy(proxy, variant, listeners=listeners))
    return found


def with_hosts_apart(proxy: Proxy) -> Proxy:
    return attrs.evolve(proxy, metadata={**proxy.metadata, VIRTUAL_HOSTS: "split", CLUSTERS: "on-demand"})


def check(before: Mesh, after: Mesh, connected: list[ConnectedProxy]) -> Plan:
    """Plan a change, make it, and compare."""
    plane = Plane(before, connected)
    held = [client.held for client in plane.clients]
    sent = json.loads(json.dumps(take_picture(plane.world, VERSION)()))
    picture = read_picture(sent)
    changes = changes_of(picture.items, after.values(), source=SOURCE, deletes=True)
    changes += [
        ObjectChange(SOURCE, key, item, None)
        for key, item in before.items()
        if key not in after and key not in {change.key for change in changes}
    ]
    plan = Planner(picture, connected, at_once=5).plan(changes)
    plane.change_to(after)
    for client, old, planned in zip(plane.clients, held, plan.proxies, strict=True):
        new = client.held
        pushed = {
            (kind, name): (old.get(kind, {}).get(name), new.get(kind, {}).get(name))
            for kind in RESOURCE_TYPES
            for name in old.get(kind, {}).keys() | new.get(kind, {}).keys()
        }
        said = {
            (change.type_url, change.name): tuple(
                side.version if side is not None else None for side in (change.before, change.after)
            )
            for change in planned.changes
        }
        assert said == {subject: sides for subject, sides in pushed.items() if sides[0] != sides[1]}, client
        assert planned.received.bytes == client.bytes, client
    assert not plan.failures
    return plan


def travel(seed: int, steps: int) -> None:
    pick = random.Random(seed)
    names = golden.scenarios()
    pick.shuffle(names)
    for first, second in pairwise(names[: steps + 1]):
        check(items_of(first), items_of(second), fleet(pick, first, second))


def test_between_golden_scenarios() -> None:
    travel(0, 4)


def test_between_mixtures_of_golden_scenarios() -> None:
    _wander(1, 2)


@pytest.mark.slow
def test_between_all_golden_scenarios() -> None:
    travel(2, len(golden.scenarios()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_between_many_mixtures(seed: int) -> None:
    _wander(seed, 60)


def _wander(seed: int, steps: int) -> None:
    pick = random.Random(seed)
    mesh, scenario = mixture(pick)
    for _ in range(steps):
        other, second = mixture(pick)
        check(mesh, other, fleet(pick, scenario, second))
        mesh, scenario = other, second
