"""Refusals: what is remembered of them, and that nothing is sent again as it was."""

from __future__ import annotations

import pytest

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER
from tests.xds.driver import Delta, Sotw, names
from tests.xds.fake_world import FakeWorld

RULE = ConfigKey("DestinationRule", "shop", "reviews")
SERVICE = ConfigKey("ServiceEntry", "shop", "reviews")


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.put(CLUSTER, "reviews", configs=(RULE, SERVICE))
    world.put(CLUSTER, "reviews-v1", configs=(RULE,))
    world.put(CLUSTER, "ratings")
    return world


@pytest.fixture(params=[Sotw, Delta])
def client(world: FakeWorld, request: pytest.FixtureRequest) -> Sotw | Delta:
    made: Sotw | Delta = request.param(world)
    return made


def test_a_refusal_names_the_resources_and_the_configs_behind_them(client: Sotw | Delta) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.nack(response, "Error adding/updating cluster(s) reviews-v1: no such thing")
    (nack,) = client.observer.nacks
    assert nack.proxy is client.stream.proxy
    assert (nack.type_url, nack.nonce, nack.version) == (CLUSTER, response.nonce, response.version)
    assert (nack.names, nack.configs) == (("reviews-v1",), (RULE,))
    assert nack.reason == "Error adding/updating cluster(s) reviews-v1: no such thing"


def test_all_the_resources_of_the_reason_are_named(client: Sotw | Delta) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.nack(response, "Error adding/updating cluster(s) reviews: bad, ratings: worse")
    (nack,) = client.observer.nacks
    assert set(nack.names) == {"reviews", "ratings"}
    assert nack.configs == (RULE, SERVICE)


def test_the_only_resource_of_a_response_is_to_blame(client: Sotw | Delta, world: FakeWorld) -> None:
    world.put(ENDPOINT, "reviews", configs=(SERVICE,))
    client.ask(ENDPOINT, "reviews")
    (response,) = client.responses()
    client.nack(response, "malformed")
    assert client.observer.nacks[0].names == ("reviews",)
    assert client.observer.nacks[0].configs == (SERVICE,)


def test_a_reason_that_names_nothing_leaves_the_names_open(client: Sotw | Delta) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.nack(response, "malformed")
    assert client.observer.nacks[0].names == ()


def test_a_refusal_is_known_by_its_error_even_when_the_version_agrees(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.ask(CLUSTER, nonce=response.nonce, version=response.version, error="no")
    assert len(client.observer.nacks) == 1
    assert client.observer.acks == []


def test_an_older_version_without_an_error_is_no_refusal(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.ask(CLUSTER, nonce=response.nonce, version="something old")
    assert client.observer.nacks == []
    assert client.observer.acks == [(CLUSTER, response.nonce, response.version)]


def test_after_a_refusal_nothing_is_sent_until_something_changes(client: Sotw | Delta, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.nack(response)
    assert client.responses() == []
    world.put(LISTENER, "elsewhere")
    assert client.responses() == []
    world.put(CLUSTER, "ratings", "other")
    world.put(CLUSTER, "ratings", "ratings")
    assert client.responses() == []
    world.put(CLUSTER, "ratings", "fixed")
    assert "ratings" in names(client.next())


def test_other_types_go_on_after_a_refusal(client: Sotw | Delta, world: FakeWorld) -> None:
    world.put(LISTENER, "web")
    client.ask(CLUSTER)
    client.ask(LISTENER)
    clusters, _ = client.responses()
    client.nack(clusters)
    client.ack(client.observer.responses[1])
    world.put(LISTENER, "web", "new")
    assert [r.type_url for r in client.settle()] == [LISTENER]


def test_going_back_to_what_was_accepted_is_sent(client: Sotw | Delta, world: FakeWorld) -> None:
    """The client may have applied part of what it refused."""
    client.ask(CLUSTER)
    client.settle()
    world.put(CLUSTER, "ratings", "bad")
    (response,) = client.responses()
    client.nack(response)
    world.put(CLUSTER, "ratings", "ratings")
    (response,) = client.responses()
    assert b"ratings" in [r.body for r in response.resources]


def test_a_refused_removal_is_repeated_only_with_something_new(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    client.settle()
    world.remove(CLUSTER, "ratings")
    (response,) = client.responses()
    client.nack(response)
    assert client.responses() == []
    world.put(CLUSTER, "ratings", "back")
    assert names(client.next()) == ["ratings"]


def test_what_was_refused_together_with_something_bad_gets_another_chance(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.nack(response)
    world.put(CLUSTER, "unrelated")
    assert [names(r) for r in client.settle()] == [["unrelated"]]
    world.put(CLUSTER, "ratings", "fixed")
    assert [names(r) for r in client.settle()] == [["ratings"], ["reviews", "reviews-v1"]]
    assert client.responses() == []


def test_one_bad_resource_does_not_keep_its_neighbours_away(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    client.nack(client.responses()[0])
    world.put(CLUSTER, "ratings", "still bad")
    (again,) = client.responses()
    client.nack(again)
    (rest,) = client.responses()
    assert (names(again), names(rest)) == (["ratings"], ["reviews", "reviews-v1"])
    client.ack(rest)
    assert client.responses() == []
    world.put(CLUSTER, "reviews", "fine")
    assert [names(r) for r in client.settle()] == [["reviews"]]


def test_what_was_refused_is_removed_when_it_goes(client: Sotw | Delta, world: FakeWorld) -> None:
    """The client may still have an older version of it."""
    client.ask(CLUSTER)
    client.settle()
    world.put(CLUSTER, "ratings", "bad")
    client.nack(client.responses()[0])
    world.remove(CLUSTER, "ratings")
    (response,) = client.settle()
    assert response.removed == ("ratings",) if isinstance(client, Delta) else "ratings" not in names(response)


def test_subscribing_again_after_a_refusal_sends_again(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER, "ratings")
    client.nack(client.responses()[0])
    client.ask(CLUSTER, "ratings")
    assert names(client.next()) == ["ratings"]


def test_what_was_refused_and_is_no_longer_wanted_is_forgotten(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER, "ratings")
    client.nack(client.responses()[0])
    client.ask(CLUSTER, unsubscribe=["ratings"])
    assert client.responses() == []
    client = Delta(world)
    client.ask(CLUSTER)
    client.nack(client.responses()[0])
    client.ask(CLUSTER, unsubscribe=["*"])
    assert client.responses() == []


def test_a_refusal_that_also_changes_the_names_does_both(world: FakeWorld) -> None:
    world.put(ENDPOINT, "a")
    world.put(ENDPOINT, "b")
    client = Sotw(world)
    client.ask(ENDPOINT, "a")
    (response,) = client.responses()
    client.ask(ENDPOINT, "a", "b", nonce=response.nonce, error="no")
    assert names(client.next()) == ["b"]
    assert len(client.observer.nacks) == 1
