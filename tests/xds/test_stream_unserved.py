"""Types that are not served are answered as istiod does, with no resources, and the stream continues."""

from __future__ import annotations

import pytest

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, VIRTUAL_HOST
from mesh_pilot.xds.ads.messages import Response
from mesh_pilot.xds.ads.unserved import MAX_NAMES, MAX_TYPES
from tests.xds.driver import Delta, Sotw, names
from tests.xds.fake_world import FakeWorld

NAMES = "type.googleapis.com/istio.workload.Address"
DEBUG = "istio.io/debug/syncz"


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    world.put(CLUSTER, "a")
    return world


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_an_unknown_type_is_answered_with_nothing_and_costs_the_stream_nothing(
    make: type[Sotw] | type[Delta], world: FakeWorld
) -> None:
    client = make(world)
    for type_url in (NAMES, CLUSTER, DEBUG):
        client.ask(type_url)
    sent = client.settle()
    assert [(r.type_url, names(r), r.removed) for r in sent] == [
        (CLUSTER, ["a"], ()),
        (NAMES, [], ()),
        (DEBUG, [], ()),
    ]
    world.put(CLUSTER, "b")
    assert [names(r) for r in client.settle()] == [["a", "b"] if make is Sotw else ["b"]]
    assert client.observer.unserved_types == [NAMES, DEBUG]
    assert {r.type_url for r in client.observer.responses} == {CLUSTER}
    assert [each.type_url for each in client.stream.statistics()] == [CLUSTER]


def test_a_made_up_nonce_before_the_first_answer_answers_nothing(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(NAMES, "a", nonce="2026-11-28 20:00:00 +0000 UTC")
    answered(client)
    served = Sotw(world)
    served.ask(CLUSTER, nonce="made up")
    assert names(answered(served)) == ["a"]


def answered(client: Sotw | Delta) -> Response:
    (response,) = client.responses()
    return response


def test_other_names_of_an_unknown_type_are_answered_and_an_ack_is_not(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(NAMES, "a")
    first = answered(client)
    client.ask(NAMES, "a", "b")
    assert client.responses() == [], "the last answer is not ACKed"
    client.ack(first, "a", "b")
    second = answered(client)
    assert second.nonce != first.nonce
    client.ask(NAMES, "c", nonce=first.nonce)
    assert client.responses() == [], "that was stale"
    client.ask(NAMES, "a", "b", nonce=second.nonce, error="no")
    client.ack(second)
    assert client.responses() == []


def test_names_of_an_unknown_type_do_not_exist_in_delta(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(NAMES, "a")
    first = answered(client)
    client.ask(NAMES, "b", unsubscribe=["a"])
    client.ask(NAMES, "c")
    assert (first.removed, client.responses()) == (("a",), [])
    client.ack(first)
    second = answered(client)
    client.ack(second)
    client.ask(NAMES, unsubscribe=["b"])
    assert (second.removed, client.responses()) == (("b", "c"), [])


def test_a_known_type_that_this_client_is_not_served_is_answered_with_nothing(world: FakeWorld) -> None:
    """Virtual hosts are resources of their own only for some; ``only`` is a service of one type."""
    del world.sets[ENDPOINT]
    client = Delta(world)
    client.ask(VIRTUAL_HOST, "80/a.test")
    assert answered(client).removed == ("80/a.test",)
    alone = Sotw(world, only=ENDPOINT)
    alone.ask(ENDPOINT, "a")
    assert names(answered(alone)) == []


def test_names_of_an_unknown_type_are_remembered_up_to_a_bound(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(NAMES)
    first = answered(client)
    for number in range(3 * MAX_NAMES):
        client.ask(NAMES, str(number))
    client.ack(first)
    assert len(answered(client).removed) == MAX_NAMES


def test_a_stream_is_answered_about_so_many_unknown_types(world: FakeWorld) -> None:
    client = Sotw(world)
    for number in range(2 * MAX_TYPES):
        client.ask(f"{NAMES}{number}")
    assert len(client.settle()) == len(client.observer.unserved_types) == MAX_TYPES
    client.ask(CLUSTER)
    assert [r.type_url for r in client.settle()] == [CLUSTER]
