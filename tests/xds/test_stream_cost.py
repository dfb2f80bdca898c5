"""Properties 2 and 5 at the stream: a change costs what it touches, and leaves no trace of the order of events."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.xds.ads import subscription
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.messages import PresentedVersions
from mesh_pilot.xds.ads.ordering import PushOrder
from mesh_pilot.xds.ads.subscription import Subscription
from tests.xds.driver import Delta, Sotw
from tests.xds.fake_world import FakeWorld, Walked

Client = Sotw | Delta
TYPES = (CLUSTER, ENDPOINT, LISTENER, ROUTE)


def world_of(size: int) -> FakeWorld:
    world = FakeWorld()
    for number in range(size):
        world.put(CLUSTER, f"outbound|80||service-{number}.shop.svc.cluster.local")
        world.put(ENDPOINT, f"outbound|80||service-{number}.shop.svc.cluster.local")
    world.put(LISTENER, "web")
    return world


def connect(world: FakeWorld, make: type[Client]) -> Client:
    """An Envoy that has everything."""
    client = make(world)
    client.ask(CLUSTER)
    client.settle()
    client.ask(ENDPOINT, *world.sets[ENDPOINT].all())
    client.ask(LISTENER)
    client.settle()
    return client


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_only_a_client_that_asks_for_something_else_makes_work_ahead(make: type[Client]) -> None:
    world = world_of(5)
    client = connect(world, make)
    assert client.stream.has_work
    assert list(client.stream.work()) == []
    assert not client.stream.has_work
    world.put(ENDPOINT, "outbound|80||service-3.shop.svc.cluster.local", "new")
    assert len(client.settle()) == 1
    assert not client.stream.has_work
    client.ask(ROUTE, "80")
    assert client.stream.has_work


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_a_change_reads_only_what_it_touched(make: type[Client]) -> None:
    def reads(size: int) -> int:
        world = world_of(size)
        client = connect(world, make)
        endpoints = world.sets[ENDPOINT]
        endpoints.gets = 0
        world.put(ENDPOINT, "outbound|80||service-7.shop.svc.cluster.local", "new")
        assert len(client.settle()) == 1
        return endpoints.gets

    assert reads(10) == reads(1000) < 10


def test_the_versions_that_a_crowd_comes_back_with_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, compare = [], subscription._presented

    def counted(*args: Any) -> Any:
        compared.append(args)
        return compare(*args)

    monkeypatch.setattr(subscription, "_presented", counted)
    world = world_of(100)
    had = PresentedVersions({name: r.version for name, r in world.sets[CLUSTER].snapshot().entries.items()})
    world.put(CLUSTER, "another")
    for _ in range(100):
        client = Delta(world)
        client.ask(CLUSTER, has=had)
        assert [r.name for r in client.responses()[0].resources] == ["another"]
    assert len(compared) == 1


def test_no_change_makes_a_delta_stream_walk_through_everything() -> None:
    world = world_of(100)
    client = connect(world, Delta)
    world.put(CLUSTER, "outbound|80||service-7.shop.svc.cluster.local", "new")
    world.put(CLUSTER, "another")
    Walked.walks = 0
    assert [len(r.resources) for r in client.settle()] == [2, 1]
    assert Walked.walks == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [Sotw, Delta])
def test_idle_clients_of_one_state_share_it(make: type[Client]) -> None:
    world = world_of(3000)
    names = tuple(world.sets[CLUSTER].all())
    first = connect(world, make)
    clients: list[Client] = []

    def fresh(name: str) -> str:
        return (name + " ")[:-1]

    tracemalloc.start()
    for _ in range(20):
        client = make(world)
        client.ask(CLUSTER)
        client.settle()
        client.ask(ENDPOINT, *map(fresh, names))
        client.ask(LISTENER)
        client.settle()
        client.observer.responses.clear()
        if isinstance(client, Sotw):
            client._names.clear()
        clients.append(client)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 20 < 20_000
    assert clients[3].stream.client_state(CLUSTER) is first.stream.client_state(CLUSTER)
    assert clients[3].stream.client_state(ENDPOINT) is first.stream.client_state(ENDPOINT)


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_the_same_world_gives_the_same_bytes_whatever_the_order_of_events(make: type[Client]) -> None:
    def fill(world: FakeWorld, order: random.Random) -> None:
        resources = [(type_url, f"name-{number}") for type_url in TYPES for number in range(20)]
        order.shuffle(resources)
        for type_url, name in resources:
            if order.random() < 0.3:
                world.put(type_url, name, "something else")
            world.put(type_url, name)
        world.put(CLUSTER, "passing")
        world.remove(CLUSTER, "passing")

    def bytes_of(seed: int) -> list[bytes]:
        world = FakeWorld()
        fill(world, random.Random(seed))
        client = make(world)
        for type_url in TYPES:
            client.ask(type_url, *([] if type_url in (CLUSTER, LISTENER) else ["name-3", "name-1", "name-2"]))
        sent = client.settle()
        world.put(CLUSTER, "name-1", "changed")
        sent += client.settle()
        return [Encoder("test").encode(response) for response in sent]

    assert bytes_of(1) == bytes_of(2) == bytes_of(3)


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_versions_do_not_depend_on_the_way_a_client_came_by_its_state(make: type[Client]) -> None:
    world = world_of(3)
    client = connect(world, make)
    for content in ("1", "2", "3"):
        world.put(CLUSTER, "outbound|80||service-1.shop.svc.cluster.local", content)
        world.put(CLUSTER, f"cluster-{content}")
        client.settle()
    fresh = connect(world, make)
    assert [s.version for s in client.stream.statistics()] == [s.version for s in fresh.stream.statistics()]


def arrive(world: FakeWorld, make: type[Client], names: tuple[str, ...]) -> Client:
    """A client that asks for everything, in words of its own."""
    client = make(world)
    client.ask(CLUSTER)
    client.settle()
    client.ask(ENDPOINT, *[(name + " ")[:-1] for name in names])
    client.ask(LISTENER)
    client.settle()
    return client


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_a_client_that_arrives_after_others_of_its_state_looks_at_nothing_itself(make: type[Client]) -> None:
    world = world_of(300)
    names = tuple(world.sets[CLUSTER].all())
    first = arrive(world, make, names)
    world.sets[ENDPOINT].gets = 0
    Walked.walks = 0
    second = arrive(world, make, names)
    assert (world.sets[ENDPOINT].gets, Walked.walks) == (0, 0)
    for type_url in (CLUSTER, ENDPOINT, LISTENER):
        assert second.stream.client_state(type_url) is first.stream.client_state(type_url)
    for one, other in zip(first.observer.responses, second.observer.responses, strict=True):
        assert other.resources is one.resources


def test_a_delta_client_that_comes_back_after_others_of_its_state_looks_at_nothing_itself() -> None:
    world = world_of(300)
    names = tuple(world.sets[CLUSTER].all())
    before = arrive(world, Delta, names)
    had = {
        response.type_url: dict(zip((r.name for r in response.resources), response.versions(), strict=True))
        for response in before.observer.responses
    }

    def come_back() -> Delta:
        client = Delta(world)
        client.ask(CLUSTER, has=dict(had[CLUSTER]))
        client.ask(ENDPOINT, *names, has=dict(reversed(had[ENDPOINT].items())))
        client.ask(LISTENER, has=dict(had[LISTENER]))
        assert client.settle() == []
        return client

    come_back()
    world.sets[ENDPOINT].gets = 0
    Walked.walks = 0
    client = come_back()
    assert (world.sets[ENDPOINT].gets, Walked.walks) == (0, 0)
    assert client.stream.client_state(ENDPOINT) is before.stream.client_state(ENDPOINT)


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_a_change_is_put_together_once_for_all_clients_of_a_state(make: type[Client]) -> None:
    world = world_of(300)
    names = tuple(world.sets[CLUSTER].all())
    clients = [arrive(world, make, names) for _ in range(5)]
    world.put(ENDPOINT, names[7], "new")
    sent = [client.settle() for client in clients]
    assert all(len(responses) == 1 for responses in sent)
    assert len({id(responses[0].resources) for responses in sent}) == 1
    assert len({id(client.stream.client_state(ENDPOINT)) for client in clients}) == 1


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_a_change_of_one_type_costs_a_stream_one_look_however_many_types_it_requests(make: type[Client]) -> None:
    def looks(*more: str) -> tuple[int, int]:
        world = world_of(10)
        client = connect(world, make)
        for type_url in more:
            world.put(type_url, "one")
            client.ask(type_url, "one")
        client.settle()
        refresh, pending = Subscription.refresh, PushOrder.pending
        with (
            patch.object(Subscription, "refresh", autospec=True, side_effect=refresh) as refreshed,
            patch.object(PushOrder, "pending", autospec=True, side_effect=pending) as decided,
        ):
            world.put(ENDPOINT, "outbound|80||service-7.shop.svc.cluster.local", "new")
            assert len(client.settle()) == 1
        return refreshed.call_count, decided.call_count

    assert looks() == looks(ROUTE, SECRET, EXTENSION) == (1, 1)
