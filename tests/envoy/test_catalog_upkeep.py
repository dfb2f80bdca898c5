"""What clients ask for in vain costs little, and nothing of it is left when they are gone."""

from __future__ import annotations

import gc
from weakref import ref

import attrs
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.resource_sets import EVICTION_SLICE
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import parse_table
from mesh_pilot.model.resource import ENDPOINT, LISTENER, ROUTE, SECRET
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import DeltaRequest, Node, Variant
from mesh_pilot.xds.ads.stream import Stream
from tests.support import golden
from tests.support.worlds import update, world_of

MANY = 3 * EVICTION_SLICE + 7
NODE = Node("sidecar~10.9.9.9~evil.shop~shop.svc.cluster.local")
MADE_UP = {
    ENDPOINT: "outbound|80||made-up-{}.test",
    ROUTE: "made-up-{}.test:80",
    SECRET: "kubernetes://made-up-{}",
}


def names(type_url: str, count: int = MANY) -> tuple[str, ...]:
    return tuple(MADE_UP[type_url].format(number) for number in range(count))


def ask(catalog: WorldCatalog, type_url: str, wanted: tuple[str, ...], node: Node = NODE) -> Stream:
    stream = Stream(catalog, Variant.DELTA)
    stream.on_request(DeltaRequest(type_url, wanted, node=node))
    settle(stream)
    return stream


def settle(stream: Stream) -> list[str]:
    """Take all that there is to be sent; the names of what came."""
    found = []
    while (response := stream.next_response()) is not None:
        found += [resource.name for resource in response.resources]
        stream.on_request(DeltaRequest(response.type_url, nonce=response.nonce))
    return found


@pytest.fixture
def world() -> World:
    return world_of()


def test_of_a_proxy_that_leaves_nothing_waits_for_a_collection(world: World) -> None:
    catalog = WorldCatalog(world)
    gc.collect()
    gc.disable()
    try:
        stream = ask(catalog, LISTENER, ())
        (opened,) = map(ref, catalog._open)
        assert opened() is not None
        stream.close()
        assert opened() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("type_url", MADE_UP)
def test_names_of_nothing_leave_nothing_although_nothing_changes(world: World, type_url: str) -> None:
    catalog = WorldCatalog(world)
    ask(catalog, type_url, names(type_url)).close()
    for _ in range(2):
        catalog.evict_idle()
    statistics = world.memo.statistics()
    assert (statistics.cells, statistics.derived) == (0, 0)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("type_url", MADE_UP)
def test_what_was_asked_for_does_not_wait_for_the_garbage_collector(world: World, type_url: str) -> None:
    catalog = WorldCatalog(world)
    ask(catalog, type_url, names(type_url, 3)).close()
    catalog.snapshots.clear()
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        ask(catalog, type_url, names(type_url)).close()
        for _ in range(2):
            catalog.evict_idle()
        catalog.snapshots.clear()
        assert len(gc.get_objects()) - before < MANY // 2
    finally:
        gc.enable()


@pytest.mark.parametrize("type_url", MADE_UP)
def test_names_that_are_let_go_are_forgotten_while_the_client_stays(world: World, type_url: str) -> None:
    catalog = WorldCatalog(world)
    stream = ask(catalog, type_url, names(type_url))
    stream.on_request(DeltaRequest(type_url, unsubscribe=names(type_url)[1:]))
    settle(stream)
    assert sum(1 for _ in catalog.evict_idle_slowly()) >= MANY // EVICTION_SLICE
    assert world.memo.statistics().derived < 30


@pytest.mark.parametrize("name", ["8{:04}", "made-up-{}.test:80"])
def test_a_route_table_of_nothing_costs_two_derived_values(world: World, name: str) -> None:
    catalog = WorldCatalog(world)
    first = ask(catalog, ROUTE, ("8080", "other.test:80"))
    before = world.memo.statistics().derived
    stream = ask(catalog, ROUTE, tuple(name.format(number) for number in range(100)))
    assert world.memo.statistics().derived - before <= 200 + 10
    stream.close()
    first.close()


@pytest.mark.parametrize("name", ["0", "65536", "9" * 5000, "²", "x:70000", ":80"])
def test_what_is_no_port_has_no_table(name: str) -> None:
    assert parse_table(name) is None


def test_trimming_pauses_often_and_takes_nothing_from_who_came_meanwhile(world: World) -> None:
    """A client that asks for a name which is about to be forgotten is still told when there is such a thing."""
    catalog = WorldCatalog(world)
    old = ask(catalog, ENDPOINT, names(ENDPOINT))
    stays = ask(catalog, ENDPOINT, ("outbound|80||stays.test",))
    old.close()
    steps = catalog.evict_idle_slowly()
    next(steps)
    late = ask(catalog, ENDPOINT, names(ENDPOINT))
    for _ in steps:
        pass
    add_service(world, "made-up-1.test")
    add_service(world, f"made-up-{MANY - 1}.test")
    assert {name.rpartition("|")[2] for name in settle(late)} == {"made-up-1.test", f"made-up-{MANY - 1}.test"}
    stays.close()


def test_a_name_that_is_asked_for_again_after_it_was_forgotten_is_followed(world: World) -> None:
    catalog = WorldCatalog(world)
    wanted = names(ENDPOINT, 20)
    stays = ask(catalog, ENDPOINT, ("outbound|80||stays.test",))
    ask(catalog, ENDPOINT, wanted).close()
    catalog.evict_idle()
    back = ask(catalog, ENDPOINT, wanted)
    add_service(world, "made-up-1.test")
    assert settle(back) == ["outbound|80||made-up-1.test"]
    stays.close()


@pytest.mark.parametrize("node", [NODE, attrs.evolve(NODE, metadata={"GENERATOR": "grpc"})], ids=["envoy", "grpc"])
def test_a_name_that_a_client_takes_up_again_before_it_answers_is_followed(world: World, node: Node) -> None:
    """Proxyless gRPC gets its listeners from two sets, Envoy its endpoints from one."""
    catalog = WorldCatalog(world)
    type_url, name = (LISTENER, "made-up-1.test:80") if node.metadata else (ENDPOINT, "outbound|80||made-up-1.test")
    stream = Stream(catalog, Variant.DELTA)
    stream.on_request(DeltaRequest(type_url, (name, "other"), node=node))
    unanswered = stream.next_response()
    assert unanswered is not None
    stream.on_request(DeltaRequest(type_url, unsubscribe=(name,)))
    catalog.evict_idle()
    stream.on_request(DeltaRequest(type_url, (name,)))
    stream.on_request(DeltaRequest(type_url, nonce=unanswered.nonce))
    assert settle(stream) == []
    add_service(world, "made-up-1.test")
    assert settle(stream) == [name]


def add_service(world: World, host: str) -> None:
    text = (
        f"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {host}, namespace: shop}}\n"
        f"spec:\n  hosts: [{host}]\n  resolution: STATIC\n  ports: [{{number: 80, name: http, protocol: HTTP}}]\n"
        "  endpoints: [{address: 10.0.0.1}]\n"
    )
    update(world, text)


def test_work_in_steps_comes_to_what_reading_at_once_comes_to() -> None:
    scenario = golden.scenarios()[0]
    proxy = golden.proxy_of(golden.proxies(scenario)[0])
    one, other = golden.load(scenario), golden.load(scenario)
    at_once = WorldCatalog(one).open(proxy)
    in_steps = WorldCatalog(other).open(proxy)
    for type_url in (ENDPOINT, ROUTE):
        expected, found = at_once.set(type_url), in_steps.set(type_url)
        assert expected is not None and found is not None
        wanted = frozenset(names(type_url, 5))
        steps = sum(1 for _ in found.work(wanted))
        assert steps == 5
        assert [*found.work(wanted)] == []
        assert {name: found.get(name) for name in wanted} == {name: expected.get(name) for name in wanted}
