"""State of the World: who is sent what, and when nothing is sent."""

from __future__ import annotations

import pytest

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, RESOURCE_TYPES, ROUTE, SECRET
from tests.xds.driver import Sotw, names
from tests.xds.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    for name in ("a", "b"):
        for type_url in RESOURCE_TYPES:
            world.put(type_url, name)
    return world


@pytest.fixture
def client(world: FakeWorld) -> Sotw:
    return Sotw(world)


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_a_first_request_without_names_is_for_everything(client: Sotw, type_url: str) -> None:
    client.ask(type_url)
    assert names(client.next()) == ["a", "b"]


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_a_star_is_for_everything(client: Sotw, type_url: str) -> None:
    client.ask(type_url, "*")
    assert names(client.next()) == ["a", "b"]


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_only_what_is_named_is_sent(client: Sotw, type_url: str) -> None:
    client.ask(type_url, "b")
    assert names(client.next()) == ["b"]


@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER])
def test_a_first_wildcard_request_is_answered_even_with_nothing(type_url: str) -> None:
    client = Sotw(FakeWorld())
    client.ask(type_url)
    assert names(client.next()) == []
    assert client.next() is None


def test_an_ack_alone_is_not_answered(client: Sotw) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.ack(response)
    assert client.responses() == []


def test_no_names_after_some_names_mean_nothing(client: Sotw, world: FakeWorld) -> None:
    client.ask(LISTENER, "a")
    response = client.next()
    assert response is not None
    client.ask(LISTENER, nonce=response.nonce)
    world.put(LISTENER, "a", "new")
    assert client.responses() == []
    assert client.stream.client_state(LISTENER) == {}


def test_no_names_after_no_names_still_mean_everything(client: Sotw, world: FakeWorld) -> None:
    client.ask(LISTENER)
    client.settle()
    world.put(LISTENER, "c")
    assert names(client.next()) == ["a", "b", "c"]


def test_a_wildcard_narrows_to_the_names_that_follow(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.ack(response, "a")
    (response,) = client.responses()
    assert names(response) == ["a"]
    client.ack(response)
    world.put(CLUSTER, "b", "new")
    assert client.responses() == []
    world.put(CLUSTER, "a", "new")
    assert names(client.next()) == ["a"]


def test_a_name_beside_the_star_adds_what_no_wildcard_gives(client: Sotw, world: FakeWorld) -> None:
    world.put(LISTENER, "hidden", on_demand=True)
    client.ask(LISTENER)
    (response,) = client.responses()
    assert names(response) == ["a", "b"]
    client.ack(response, "*", "hidden")
    (response,) = client.responses()
    assert names(response) == ["a", "b", "hidden"]
    client.ack(response, "*")
    assert names(client.next()) == ["a", "b"]


def test_cds_and_lds_responses_hold_everything(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    client.settle()
    changed = world.put(CLUSTER, "b", "new")
    (response,) = client.responses()
    assert names(response) == ["a", "b"]
    assert response.resources[1] == changed
    assert response.touched == ("b",)


def test_eds_and_rds_responses_hold_only_what_changed(client: Sotw, world: FakeWorld) -> None:
    for type_url in (ENDPOINT, ROUTE):
        client.ask(type_url, "a", "b")
    client.settle()
    for type_url in (ENDPOINT, ROUTE):
        world.put(type_url, "b", "new")
    assert [names(response) for response in client.responses()] == [["b"], ["b"]]


def test_new_names_are_answered_with_just_those(client: Sotw) -> None:
    client.ask(ENDPOINT, "a")
    (response,) = client.responses()
    client.ack(response, "a", "b")
    assert names(client.next()) == ["b"]


def test_a_name_that_was_given_up_is_sent_again_when_it_comes_back(client: Sotw) -> None:
    client.ask(ENDPOINT, "a", "b")
    (response,) = client.responses()
    client.ack(response, "a")
    assert client.responses() == []
    client.ask(ENDPOINT, "a", "b", nonce=response.nonce)
    assert names(client.next()) == ["b"]


def test_a_name_given_up_while_a_response_was_under_way_is_sent_again(client: Sotw, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "a", "b")
    (old,) = client.settle()
    world.put(ENDPOINT, "a", "new")
    (new,) = client.responses()
    client.ask(ENDPOINT, "a", nonce=old.nonce)
    assert client.responses() == []
    client.ack(new, "a", "b")
    assert names(client.next()) == ["b"]


def test_a_name_that_does_not_exist_is_sent_once_it_does(client: Sotw, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "later")
    assert client.responses() == []
    world.put(ENDPOINT, "later")
    assert names(client.next()) == ["later"]


def test_a_listener_that_does_not_exist_is_missing_from_the_answer(client: Sotw) -> None:
    """A proxyless client learns so that there is no such thing."""
    client.ask(LISTENER, "missing")
    (response,) = client.responses()
    assert names(response) == []
    client.ack(response, "missing", "a")
    assert names(client.next()) == ["a"]


def test_listeners_by_name_always_come_together(client: Sotw, world: FakeWorld) -> None:
    client.ask(LISTENER, "a")
    (response,) = client.responses()
    client.ack(response, "a", "b")
    (response,) = client.responses()
    assert names(response) == ["a", "b"]
    client.ack(response)
    world.remove(LISTENER, "a")
    assert names(client.next()) == ["b"]


def test_a_route_that_is_gone_is_not_mentioned(client: Sotw, world: FakeWorld) -> None:
    client.ask(ROUTE, "a", "b")
    (before,) = client.settle()
    world.remove(ROUTE, "a")
    assert client.responses() == []
    world.put(ROUTE, "b", "new")
    (response,) = client.responses()
    assert names(response) == ["b"]
    fresh = Sotw(world)
    fresh.ask(ROUTE, "a", "b")
    assert fresh.responses()[0].version == response.version != before.version


def test_versions_tell_the_whole_of_what_is_held(client: Sotw, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    world.put(ENDPOINT, "b", "new")
    (changed,) = client.settle()
    fresh = Sotw(world)
    fresh.ask(ENDPOINT, "b", "a")
    assert fresh.responses()[0].version == changed.version


def test_a_stale_nonce_is_ignored(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (first,) = client.settle()
    world.put(CLUSTER, "c")
    (second,) = client.responses()
    client.ask(CLUSTER, nonce=first.nonce)
    client.ask(CLUSTER, nonce=first.nonce, error="too late")
    client.ask(CLUSTER, nonce="never sent")
    assert client.stream.waiting_for().acks == (CLUSTER,)
    assert client.observer.nacks == []
    client.ack(second)
    assert client.stream.waiting_for().acks == ()


def test_everything_given_up_in_a_stale_request_is_sent_again(client: Sotw, world: FakeWorld) -> None:
    client.ask(ENDPOINT)
    (old,) = client.settle()
    world.put(ENDPOINT, "a", "new")
    (new,) = client.responses()
    client.ask(ENDPOINT, "a", nonce=old.nonce)
    client.ack(new, "*")
    assert names(client.next()) == ["a", "b"]


def test_names_in_a_stale_request_end_the_time_when_no_names_mean_everything(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (old,) = client.settle()
    world.put(CLUSTER, "a", "new")
    (new,) = client.responses()
    client.ask(CLUSTER, "a", nonce=old.nonce)
    client.ask(CLUSTER, nonce=new.nonce)
    world.put(CLUSTER, "a", "newer")
    assert client.responses() == []


def test_a_repeated_ack_is_noted_once(client: Sotw) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    client.ack(response)
    client.ack(response)
    assert client.observer.acks == [(CLUSTER, response.nonce, response.version)]
    assert client.responses() == []


def test_names_without_a_nonce_count_but_acknowledge_nothing(client: Sotw) -> None:
    client.ask(SECRET, "a")
    (response,) = client.responses()
    client.ask(SECRET, "a", "b")
    assert client.responses() == []
    client.ack(response)
    assert names(client.next()) == ["b"]


def test_one_response_a_type_and_changes_merge_behind_it(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    for content in ("1", "2", "3"):
        world.put(CLUSTER, "a", content)
    world.remove(CLUSTER, "b")
    assert client.responses() == []
    client.ack(response)
    (merged,) = client.responses()
    assert [r.body for r in merged.resources] == [b"3"]


def test_a_change_that_is_undone_in_time_is_not_sent(client: Sotw, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    world.put(CLUSTER, "a", "other")
    world.put(CLUSTER, "a", "a")
    client.ack(response)
    assert client.responses() == []


def test_the_same_content_twice_has_two_nonces(client: Sotw, world: FakeWorld) -> None:
    client.ask(LISTENER, "missing")
    (first,) = client.responses()
    client.ack(first, "missing", "missing too")
    (second,) = client.responses()
    client.ask(LISTENER, "missing", "missing too", nonce=first.nonce)
    assert (first.version, first.resources) == (second.version, second.resources)
    assert first.nonce != second.nonce
    assert client.stream.waiting_for().acks == (LISTENER,)


@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER])
def test_a_reconnecting_wildcard_client_that_has_everything_is_sent_nothing(world: FakeWorld, type_url: str) -> None:
    before = Sotw(world)
    before.ask(type_url)
    (response,) = before.settle()
    client = Sotw(world)
    client.ask(type_url, version=response.version)
    assert client.responses() == []
    world.put(type_url, "b", "new")
    (response,) = client.responses()
    assert response.touched == ("b",)


def test_a_reconnecting_client_that_has_something_older_is_sent_everything(world: FakeWorld) -> None:
    before = Sotw(world)
    before.ask(CLUSTER)
    (response,) = before.settle()
    world.put(CLUSTER, "b", "new")
    client = Sotw(world)
    client.ask(CLUSTER, version=response.version)
    assert names(client.next()) == ["a", "b"]


def test_versions_of_named_resources_are_not_taken_for_having_them(world: FakeWorld) -> None:
    before = Sotw(world)
    before.ask(ENDPOINT, "a")
    (response,) = before.settle()
    client = Sotw(world)
    client.ask(ENDPOINT, "a", version=response.version)
    assert names(client.next()) == ["a"]


def test_a_proxyless_client_walks_from_its_listener_to_endpoints(client: Sotw, world: FakeWorld) -> None:
    for type_url in (LISTENER, ROUTE, CLUSTER, ENDPOINT):
        client.ask(type_url, "a")
        (response,) = client.settle()
        assert names(response) == ["a"]
    world.put(CLUSTER, "b", "new")
    assert client.responses() == []
    world.put(CLUSTER, "a", "new")
    assert [(r.type_url, names(r)) for r in client.settle()] == [(CLUSTER, ["a"]), (ENDPOINT, ["a"])]


def test_a_name_that_will_exist_soon_is_sent_once_it_is_there(world: FakeWorld) -> None:
    world.sets[SECRET].coming.add("default")
    client = Sotw(world)
    client.ask(SECRET, "default")
    assert client.responses() == []
    world.put(SECRET, "default")
    assert names(client.next()) == ["default"]
