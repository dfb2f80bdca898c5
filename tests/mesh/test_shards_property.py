"""Sharded planning equals planning in one pass, for any collisions and any order of events."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from unittest import mock

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.routes.tables import route_configuration
from mesh_pilot.mesh.listeners.outbound import outbound_listeners
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach import joins
from mesh_pilot.mesh.reach.overlap_index import OverlapIndex
from mesh_pilot.mesh.reach.sidecar_scope import all_services, scope_services, scope_shards
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, planned_hosts
from mesh_pilot.model.config import ConfigError
from mesh_pilot.model.events import Delete, Item, Synced, Upsert, item_key
from mesh_pilot.model.service import Port, Protocol, Resolution, Service
from mesh_pilot.world import World, shards
from tests.support import plain_plans
from tests.support.sample import examples
from tests.support.worlds import SOURCE, configs, sidecar

HOSTS = (
    "a.shop.svc.cluster.local",
    "b.shop.svc.cluster.local",
    "a.lab.svc.cluster.local",
    "A.shop.svc.cluster.local",
    "a.shop.svc.other.domain",
    "a.shop",
    "10.9.0.1",
    "x.example.com",
    "y.example.com",
    "*.example.com",
)
MORE_HOSTS = ("b.shop", "u.example.com", "*.shop.svc.cluster.local", "*.com", "v.example.org", "*.example.org")
"""Of VirtualServices only."""
PORTS = (
    Port(80, "http", Protocol.HTTP),
    Port(81, "http-81", Protocol.HTTP),
    Port(80, "tcp", Protocol.TCP),
    Port(80, "auto", Protocol.AUTO),
    Port(81, "auto-81", Protocol.AUTO),
    Port(81, "mysql", Protocol.MYSQL),
    Port(81, "tls", Protocol.TLS),
    Port(82, "udp", Protocol.UDP),
)
SIDECARS = (
    "{egress: [{hosts: ['./*']}]}",
    "{egress: [{hosts: ['*/*']}]}",
    "{egress: [{hosts: ['*/*.example.com', 'lab/*']}]}",
    "{egress: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['./*']}, {hosts: ['*/*']}]}",
    "{egress: [{port: {number: 81, name: t, protocol: TCP}, hosts: ['*/*']}, {hosts: ['./*', 'lab/*.example.com']}]}",
    "{egress: [{port: {number: 9000, name: p, protocol: HTTP_PROXY}, bind: 127.0.0.1, hosts: ['*/*']}]}",
    "{egress: [{port: {number: 80, name: h, protocol: HTTP}, bind: 10.9.0.2, hosts: ['*/*']}, {hosts: ['*/*']}]}",
)


@st.composite
def services(draw: st.DrawFn) -> Service:
    ports = draw(st.lists(st.sampled_from(PORTS), min_size=1, max_size=2, unique_by=lambda port: port.number))
    resolution = draw(st.sampled_from((Resolution.CLIENT_SIDE, Resolution.CLIENT_SIDE, Resolution.PASSTHROUGH)))
    address = st.sampled_from(("10.9.0.1", "10.9.0.2", "10.8.0.0/24", "127.0.0.1"))
    return Service(
        host=draw(st.sampled_from(HOSTS)),
        namespace=draw(st.sampled_from(("shop", "lab"))),
        ports=tuple(ports),
        addresses=tuple(draw(st.lists(address, max_size=2, unique=True))),
        resolution=resolution,
        export_to=frozenset(draw(st.sampled_from(("", ".", "lab", "*", "shop"))).split()),
        created=datetime(2024, 3, draw(st.integers(1, 3)), tzinfo=UTC),
        headless=resolution is Resolution.PASSTHROUGH and draw(st.booleans()),
    )


@st.composite
def virtual_services(draw: st.DrawFn) -> Item:
    hosts = draw(st.lists(st.sampled_from(HOSTS + MORE_HOSTS), min_size=1, max_size=3, unique_by=str.lower))
    match = draw(st.sampled_from(("", "match: [{port: 80}], ", "match: [{sourceLabels: {app: web}}], ")))
    to = draw(st.sampled_from(HOSTS[:3]))
    text = f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: {draw(st.sampled_from("uvwxyz"))}
  namespace: {draw(st.sampled_from(("shop", "lab")))}
  creationTimestamp: "2024-03-0{draw(st.integers(1, 3))}T00:00:00Z"
spec:
  hosts: {list(hosts)}
  exportTo: {draw(st.sampled_from(("[]", "['.']", "['*']", "[lab]")))}
  http: [{{{match}route: [{{destination: {{host: {to}}}}}]}}]
  tcp: [{{route: [{{destination: {{host: {to}, port: {{number: {draw(st.sampled_from((80, 81)))}}}}}}}]}}]
"""
    try:
        (config,) = configs(text)
    except ConfigError:  # hosts that overlap
        reject()
    return config


@st.composite
def sidecars(draw: st.DrawFn) -> Item:
    where = draw(st.sampled_from(("shop", "lab")))
    header = "apiVersion: networking.istio.io/v1\nkind: Sidecar\n"
    (config,) = configs(
        f"{header}metadata: {{name: default, namespace: {where}}}\nspec: {draw(st.sampled_from(SIDECARS))}\n"
    )
    return config


def items() -> st.SearchStrategy[Item]:
    return st.one_of(services(), services(), services(), virtual_services(), virtual_services(), sidecars())


PROXIES = (
    sidecar(namespace="shop", labels={"app": "web"}),
    sidecar(namespace="lab", name="free", INTERCEPTION_MODE="NONE", UNPRIVILEGED_POD="true"),
    sidecar(namespace="lab", name="other"),
)


@pytest.fixture(scope="module", autouse=True)
def _many_small_shards() -> Iterator[None]:
    with mock.patch.object(shards, "HOSTS_PER_SHARD", 1), mock.patch.object(joins, "FEW_BITS", 0):
        yield


def check(world: World, watch: Watch) -> None:
    view = world.view
    for proxy in PROXIES:
        scope = proxy_keys(view, proxy_facts(proxy)).scope
        check_services(watch, scope, world)
        check_listeners(watch, scope, world)
        names = [f"{host}:{port}" for host in HOSTS for port in (80, 81)]
        for table in (TableName(80), TableName(81), TableName(), *(TableName(int(name[-2:]), name) for name in names)):
            check_table(watch, scope, table, world)


def check_services(watch: Watch, scope: OutboundScope, world: World) -> None:
    wanted = plain_plans.scope_services(world.view, scope)
    found = [s for b in scope_shards(world.view, scope) for s in scope_services(world.view, scope, b)]
    assert {s.host: s for s in found} == {s.host: s for s in wanted} and len(found) == len(wanted)
    if scope.sidecar is None:
        assert watch.get(all_services.query(scope)) == wanted


def check_listeners(watch: Watch, scope: OutboundScope, world: World) -> None:
    listeners, conflicts = plain_plans.outbound_plan(world.view, scope)
    found = watch.get(outbound_listeners.query(scope))
    assert found.listeners == {listener.name: listener for listener in listeners}
    assert tuple(conflict for _, conflict in found.conflicts) == conflicts


def check_table(watch: Watch, scope: OutboundScope, table: TableName, world: World) -> None:
    wanted = plain_plans.planned_hosts(world.view, scope, table)
    found = watch.get(planned_hosts.query(scope, table))
    assert sorted(found, key=lambda host: host.name) == list(wanted)
    if not table.sniffed and table.port:
        watch.get(route_configuration.query(scope, str(table.port)))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(items(), max_size=12), st.lists(st.lists(items(), min_size=1, max_size=3), max_size=3), st.randoms())
def test_plans_in_parts_are_those_made_at_once(
    first: list[Item], changes: list[list[Item]], order: random.Random
) -> None:
    world = World()
    watch = Watch(world.memo, lambda: None)
    world.apply([*(Upsert(SOURCE, item) for item in first), Synced(SOURCE)])
    check(world, watch)
    held = {item_key(item): item for item in first}
    for change in changes:
        gone = order.sample(sorted(held), k=min(len(held), order.randrange(3)))
        held.update((item_key(item), item) for item in change)
        for key in gone:
            held.pop(key, None)
        world.apply([*(Upsert(SOURCE, item) for item in change), *(Delete(SOURCE, key) for key in gone)])
        check(world, watch)
    watch.close()


NAMES = st.frozensets(st.sampled_from("abcdef"))


@given(st.lists(st.dictionaries(st.integers(0, 4), NAMES), max_size=6))
def test_a_ledger_knows_which_names_are_in_several_sets(states: list[dict[int, frozenset[str]]]) -> None:
    ledger = OverlapIndex()
    for state in states:
        every = [name for names in state.values() for name in names]
        assert ledger.shared(state) == {name for name in every if every.count(name) > 1}
        assert all((name in ledger) == (name in every) for name in "abcdef")
