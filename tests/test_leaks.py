"""After any number of changes and clients, a process holds what a fresh one with the same world and clients holds."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from mesh_pilot.engine.snapshots import EMPTY
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.certificates.secrets import Issuer
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.events import Delete, Item, Replace, Synced, Upsert
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.support import golden
from tests.support.envoy_model import EnvoyModel

SOURCE = "test"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
AUTHORITY = Authority.ephemeral(now=lambda: NOW)

RESIDENTS = [("app-shop-canary", 0), ("gw-mesh-and-edge", 0), ("sc-egress-hosts", 0), ("mesh-locality", 0)]
"""Clients that stay all the time: scenario and which of its proxies."""


class Process:
    def __init__(self) -> None:
        self.world = World()
        self.world.expect(SOURCE)
        self.world.apply([Synced(SOURCE)])
        self.issuer = Issuer(AUTHORITY, TrustStore(), now=lambda: NOW)
        self.catalog = WorldCatalog(self.world, self.issuer)
        self.clients = [
            self.client(*resident, variant) for resident in RESIDENTS for variant in (Variant.SOTW, Variant.DELTA)
        ]

    def client(self, scenario: str, which: int, variant: Variant) -> EnvoyModel:
        entries = golden.proxies(scenario)
        return EnvoyModel(self.catalog, golden.proxy_of(entries[which % len(entries)]), variant)

    def settle(self) -> None:
        for client in self.clients:
            client.settle()
        for _ in range(3):
            self.catalog.evict_idle()
            self.issuer.forget_idle()
        self.world.memo.collect()

    def sizes(self) -> tuple[Counter[str], int, int, int]:
        """Derived values by function, cells, live sets that have anything to follow, identities."""
        memo = self.world.memo
        nodes = Counter(memo.statistics().held)
        assert not memo._orphans
        assert self.catalog.statistics().idle_sets == 0
        assert self.catalog.statistics().proxies == len(self.clients)
        sets = sum(live._plan is not None or bool(live.asked()) for live in self.catalog._sets.values())
        return nodes, memo.statistics().cells, sets, self.issuer.statistics().identities


def pool() -> Mapping[tuple[str, ...], Item]:
    """Objects of many scenarios together."""
    found: dict[tuple[str, ...], Item] = {}
    for scenario in golden.scenarios()[::3] + [name for name, _ in RESIDENTS]:
        found |= golden.load(scenario).items_of(SOURCE)
    return found


@pytest.mark.parametrize("changes", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_is_held_is_what_a_fresh_process_holds(changes: int) -> None:
    pick = random.Random(changes)
    objects = pool()
    keys = sorted(objects)
    process = Process()
    names = golden.scenarios()
    process.world.apply([Upsert(SOURCE, item) for item in objects.values() if pick.random() < 0.5])
    for _ in range(changes):
        now = process.world.items_of(SOURCE)
        some = pick.sample(keys, pick.randint(1, 10))
        process.world.apply([Delete(SOURCE, k) if k in now else Upsert(SOURCE, objects[k]) for k in some])
        for client in pick.sample(process.clients, 4):
            client.run(pick.randint(1, 6))
        if pick.random() < 0.2:
            guest = process.client(pick.choice(names), pick.randrange(3), pick.choice(list(Variant)))
            guest.run(pick.randint(0, 20))
            guest.close()
        if pick.random() < 0.05:
            process.catalog.evict_idle()
    process.settle()

    fresh = Process()
    fresh.world.apply([Replace(SOURCE, (), tuple(process.world.items_of(SOURCE).values()))])
    fresh.settle()
    for old, new in zip(process.sizes(), fresh.sizes(), strict=True):
        assert old == new


def test_nothing_is_held_for_clients_that_are_gone() -> None:
    process = Process()
    process.world.apply([Upsert(SOURCE, item) for item in pool().values()])
    process.settle()
    for client in process.clients:
        client.close()
    process.clients.clear()
    process.settle()
    assert process.sizes() == (Counter(), 0, 0, 0)
    snapshots = process.catalog.snapshots
    snapshots.clear()
    del client
    gc.collect()
    assert list(snapshots._snapshots.values()) == [EMPTY]
    assert not snapshots._names
