"""The properties of the design that span rooms: incremental equals from scratch, same world same bytes, and a change
costs what it touches. (That the stream never lies, and its order, stand with the stream.)"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh_pilot.engine.snapshots import EMPTY, Snapshot, snapshot_of
from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.istio.kinds import KINDS as SERVED
from mesh_pilot.mesh.names.resources import CREDENTIAL_PREFIX
from mesh_pilot.model.events import (
    Delete,
    ExtensionInForce,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Secret,
    Synced,
    Upsert,
    WasmModule,
    item_key,
)
from mesh_pilot.model.proxy import LOCAL_CLUSTER, Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.world import World
from mesh_pilot.world.names import GATEWAY_NAME
from tests.support import golden
from tests.support.owned import OwnedWorld
from tests.support.pool import ENTRY, HOSTS, KINDS, ROUTES, SECRETS, THEMES, items
from tests.support.sample import examples
from tests.support.worlds import SOURCE, configs, sidecar

OWN_DNS = {"DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true"}
"""Services without addresses are reached at those that they are given."""

PROXIES = (
    sidecar("10.1.1.1", name="web", namespace="shop", labels={"app": "web", "tier": "front"}),
    sidecar("10.1.2.2", name="api", namespace="other", labels={"app": "api"}, **OWN_DNS, ENABLE_SELF_DISCOVERY="true"),
    sidecar(
        "10.1.3.1", name="free", namespace="shop", labels={"app": "free"}, INTERCEPTION_MODE="NONE", NETWORK="near"
    ),
    sidecar("10.1.9.9", name="edge", namespace="shop", labels={"app": "edge", GATEWAY_NAME: "web"}, node_type="router"),
    sidecar("10.1.4.1", name="grpc", namespace="shop", labels={"app": "web"}, GENERATOR="grpc"),
)


def asked_for(resources: WorldResources) -> dict[str, list[str]]:
    """The names that Envoy would ask EDS and RDS for, given its clusters and listeners."""
    expander = golden.adsdump.Expander()
    eds = []
    for name, resource in resources.set(CLUSTER).snapshot().entries.items():  # type: ignore[union-attr]
        message = golden.adsdump.find_class(CLUSTER).FromString(resource.body)
        if message.WhichOneof("cluster_discovery_type") == "type" and message.type == 3:
            eds.append(name)
    for resource in resources.set(LISTENER).snapshot().entries.values():  # type: ignore[union-attr]
        expander.msg(golden.adsdump.find_class(LISTENER).FromString(resource.body))
    return {ENDPOINT: sorted(eds), ROUTE: sorted(expander.routes)}


def asked_by_grpc(hosts: Iterable[str]) -> dict[str, list[str]]:
    """All that a proxyless client of these hosts may ask for."""
    places = list(itertools.product(hosts, (80, 81)))
    clusters = [f"outbound|{port}|{subset}|{host}" for host, port in places for subset in ("", "v1")]
    listeners = ["xds.istio.io/grpc/lds/inbound/10.1.4.1:80", *(f"{host}:{port}" for host, port in places)]
    return {CLUSTER: clusters, ENDPOINT: clusters, LISTENER: listeners, ROUTE: clusters}


def everything(resources: WorldResources, hosts: Iterable[str] = HOSTS[:3]) -> dict[str, dict[str, str]]:
    """All that a proxy would be sent: type -> name -> version. Proxyless clients ask for ``hosts``."""
    found: dict[str, dict[str, str]] = {}
    if resources.target.scope.grpc:
        asked = asked_by_grpc(hosts)
    else:
        for type_url in (CLUSTER, LISTENER, EXTENSION):
            held = resources.set(type_url)
            assert held is not None
            found[type_url] = {n: r.version for n, r in held.snapshot().entries.items()}
        asked = asked_for(resources)
        asked[ENDPOINT] += [LOCAL_CLUSTER] if resources.target.scope.has_local_cluster else []
        asked[SECRET] = [f"{CREDENTIAL_PREFIX}{name}" for name in SECRETS]
    for type_url, names in asked.items():
        held = resources.set(type_url)
        assert held is not None
        selected = held.select(frozenset(names)).entries
        assert dict(selected) == {n: r for n in names if (r := held.get(n)) is not None}
        found[type_url] = {n: r.version for n, r in selected.items()}
    return found


def from_scratch(
    items: Mapping[Any, Item], proxy: Proxy, seed: int, owners: Iterable[Item] = ()
) -> dict[str, dict[str, str]]:
    """What a fresh process computes from the same configs, come in some other order, and the same owners of hosts."""
    world = World()
    world.expect(SOURCE)
    shuffled = [*items.values(), *owners]
    random.Random(seed).shuffle(shuffled)
    world.apply([*(Upsert(SOURCE, c) for c in shuffled), Synced(SOURCE)])
    return everything(WorldCatalog(world).open(proxy))


class Fleet(RuleBasedStateMachine):
    """Events come, proxies look now and then; what they see is what a fresh process would show them."""

    @initialize(theme=st.sampled_from(THEMES))
    def start(self, theme: tuple[str, ...]) -> None:
        self.kinds = (*theme, "entry", "entry")
        self.owned = OwnedWorld()
        self.world = self.owned.world
        self.catalog = WorldCatalog(self.world)
        self.items: dict[Any, Item] = {}
        self.open: dict[int, WorldResources] = {}
        self.seen: dict[tuple[int, str], Snapshot] = {}

    def opened(self, which: int) -> WorldResources:
        if which not in self.open:
            self.open[which] = self.catalog.open(PROXIES[which])
        return self.open[which]

    @rule(data=st.data(), size=st.integers(1, 10))
    def change(self, data: st.DataObject, size: int) -> None:
        batch = [data.draw(items(self.kinds)) for _ in range(size)]
        for item in batch:
            self.items[item_key(item)] = item
        self.owned.apply([Upsert(SOURCE, item) for item in batch])

    @rule(minutes=st.integers(1, 15))
    def pass_time(self, minutes: int) -> None:
        self.owned.pass_time(minutes=minutes)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.items)))
        del self.items[key]
        self.owned.apply([Delete(SOURCE, key)])

    @rule(which=st.integers(0, len(PROXIES) - 1), seed=st.integers(0, 3))
    def look(self, which: int, seed: int) -> None:
        assert everything(self.opened(which)) == from_scratch(self.items, PROXIES[which], seed, self.owned.owners())

    @rule(which=st.integers(0, len(PROXIES) - 1), type_url=st.sampled_from((CLUSTER, LISTENER)))
    def follow(self, which: int, type_url: str) -> None:
        """What differs since a reader last looked is exactly what two snapshots say."""
        held = self.opened(which).set(type_url)
        assert held is not None
        now, before = held.snapshot(), self.seen.get((which, type_url), EMPTY)
        names = now.names | before.names
        assert self.catalog.snapshots.diff(before, now) == {
            n for n in names if now.entries.get(n) != before.entries.get(n)
        }
        assert now.digest == snapshot_of(now.entries.values()).digest
        self.seen[(which, type_url)] = now

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        which = data.draw(st.sampled_from(sorted(self.open)))
        self.open.pop(which).close()
        self.catalog.evict_idle()

    @invariant()
    def nothing_is_broken(self) -> None:
        for live in self.catalog._sets.values():
            assert live.statistics().failed == 0

    @invariant()
    def nobody_is_open_but_those_who_look(self) -> None:
        assert self.catalog.statistics().proxies == len(self.open)


Fleet.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestFleet = Fleet.TestCase


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(items(), max_size=40), seeds=st.tuples(st.integers(0, 99), st.integers(100, 199)))
def test_the_same_world_gives_the_same_bytes_whatever_the_order(batch: list[Item], seeds: tuple[int, int]) -> None:
    items = {item_key(c): c for c in batch}
    for proxy in PROXIES:
        assert from_scratch(items, proxy, seeds[0]) == from_scratch(items, proxy, seeds[1])


def test_what_is_generated_is_of_every_kind_there_is() -> None:
    made = [make(lambda *options: options[0]) for make in KINDS.values()]
    assert {configs(text)[0].key.kind for text in made if isinstance(text, str)} == set(SERVED)
    assert {type(item) for item in made if not isinstance(item, str)} == {
        MeshConfigValue, MeshNetworksValue, Secret, KeySet, WasmModule, ExtensionInForce,
    }  # fmt: skip


def mesh_of(services: int) -> Iterator[str]:
    for number in range(services):
        yield ENTRY.format(
            name=f"s{number}", namespace="shop", day=1, host=f"s{number}.shop.svc.cluster.local",
            vip=f"10.{10 + number // 250}.{number % 250}.1", location="MESH_INTERNAL", resolution="STATIC",
            port=80, port_name="http", protocol="HTTP", last=number % 250, weight=1,
        )  # fmt: skip
        yield ROUTES.format(
            name=f"s{number}", namespace="shop", day=1, host=f"s{number}.shop.svc.cluster.local", labels="{}",
            to=f"s{number}.shop.svc.cluster.local", timeout=1, weight=10, rest=90,
        )  # fmt: skip


CALLERS = (*PROXIES[:3], PROXIES[4])


def calls_of_one_change(services: int, change: str) -> dict[str, int]:
    """Translator calls, by name, that one change costs once four proxies have seen the mesh."""
    hosts = ("s7.shop.svc.cluster.local",)
    world = World()
    world.expect(SOURCE)
    texts = "---".join(mesh_of(services))
    world.apply([*(Upsert(SOURCE, c) for c in configs(texts)), Synced(SOURCE)])
    catalog = WorldCatalog(world)
    opened = [catalog.open(p) for p in CALLERS]
    for resources in opened:
        everything(resources, hosts)
    before = world.memo.statistics().calls
    world.apply([Upsert(SOURCE, c) for c in configs(change)])
    for resources in opened:
        everything(resources, hosts)
    after = world.memo.statistics().calls
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


VIRTUAL_SERVICE_CHANGE = ROUTES.format(
    name="s7", namespace="shop", day=1, host="s7.shop.svc.cluster.local", to="s7.shop.svc.cluster.local",
    labels="{}", timeout=2, weight=50, rest=50,
)  # fmt: skip
ENDPOINT_CHANGE = ENTRY.format(
    name="s7", namespace="shop", day=1, host="s7.shop.svc.cluster.local", vip="10.10.7.1", location="MESH_INTERNAL",
    resolution="STATIC", port=80, port_name="http", protocol="HTTP", last=7, weight=9,
)  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize("change", [VIRTUAL_SERVICE_CHANGE, ENDPOINT_CHANGE], ids=["virtual service", "endpoints"])
def test_a_change_costs_the_same_calls_in_a_small_mesh_and_in_a_large_one(change: str) -> None:
    small, large = calls_of_one_change(100, change), calls_of_one_change(1200, change)
    assert small == large
    assert 0 < sum(large.values()) < 40


def test_two_proxies_of_a_scope_share_the_very_same_resources() -> None:
    world = World()
    world.expect(SOURCE)
    world.apply([*(Upsert(SOURCE, c) for c in configs("---".join(mesh_of(5)))), Synced(SOURCE)])
    catalog = WorldCatalog(world)
    one, two = (catalog.open(sidecar(f"10.1.7.{n}", name=f"p{n}", namespace="shop")) for n in (1, 2))
    first, second = (r.set(CLUSTER) for r in (one, two))
    assert first is not None and second is not None
    shared = [
        (a, b)
        for a, b in itertools.product(first.snapshot().entries.values(), second.snapshot().entries.values())
        if a.name == b.name
    ]
    assert shared and all(a is b for a, b in shared)
