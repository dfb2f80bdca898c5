"""A full push: everything that a client holds once more, in order, and no more than that."""

from __future__ import annotations

import pytest

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER
from tests.xds.driver import Delta, Sotw, names
from tests.xds.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    for name in ("reviews", "ratings"):
        world.put(CLUSTER, name)
        world.put(ENDPOINT, name)
    world.put(LISTENER, "0.0.0.0_80")
    return world


@pytest.fixture(params=[Sotw, Delta])
def client(world: FakeWorld, request: pytest.FixtureRequest) -> Sotw | Delta:
    made: Sotw | Delta = request.param(world)
    made.ask(CLUSTER)
    made.settle()
    made.ask(ENDPOINT, "reviews")
    made.settle()
    made.ask(LISTENER)
    made.settle()
    return made


ALL = [(CLUSTER, ["ratings", "reviews"]), (ENDPOINT, ["reviews"]), (LISTENER, ["0.0.0.0_80"])]


def sent(client: Sotw | Delta) -> list[tuple[str, list[str]]]:
    return [(response.type_url, sorted(names(response))) for response in client.settle()]


def test_everything_that_the_client_holds_is_sent_once_more_in_order(client: Sotw | Delta) -> None:
    assert sent(client) == []
    for _ in range(2):
        client.stream.push_again()
        assert sent(client) == ALL
        assert sent(client) == []


def test_pushes_while_an_answer_is_due_are_one(client: Sotw | Delta) -> None:
    client.stream.push_again()
    waiting = client.responses()
    client.stream.push_again()
    client.stream.push_again()
    assert client.responses() == []
    for response in waiting:
        client.ack(response)
    assert sent(client) == ALL
    assert sent(client) == []


def test_a_refused_resource_is_sent_again_and_once(client: Sotw | Delta, world: FakeWorld) -> None:
    world.put(ENDPOINT, "reviews", "other")
    (response,) = client.responses()
    client.nack(response)
    assert client.responses() == []
    client.stream.push_again()
    refused = [response for response in client.settle() if response.type_url == ENDPOINT]
    assert [names(response) for response in refused] == [["reviews"]]
    client.stream.push_again()
    for response in client.responses():
        client.nack(response)
    assert client.responses() == []


def test_a_stream_that_has_asked_for_nothing_is_sent_nothing(world: FakeWorld) -> None:
    client = Sotw(world)
    client.stream.push_again()
    assert client.responses() == []
