"""Delta: subscriptions that come and go, what a reconnecting client has, what is gone."""

from __future__ import annotations

import pytest

from mesh_pilot.model.proxy import LOCAL_CLUSTER
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, RESOURCE_TYPES, ROUTE, SECRET, make_resource
from tests.xds.driver import Delta, Sotw, names
from tests.xds.fake_world import FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    for name in ("a", "b"):
        for type_url in RESOURCE_TYPES:
            world.put(type_url, name)
    return world


@pytest.fixture
def client(world: FakeWorld) -> Delta:
    return Delta(world)


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_a_first_request_without_names_is_for_everything(client: Delta, type_url: str) -> None:
    client.ask(type_url)
    assert names(client.next()) == ["a", "b"]


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_a_star_is_for_everything(client: Delta, type_url: str) -> None:
    client.ask(type_url, "*")
    assert names(client.next()) == ["a", "b"]


def test_a_first_request_that_only_unsubscribes_is_for_nothing(client: Delta) -> None:
    client.ask(CLUSTER, unsubscribe=["*"])
    assert client.responses() == []


def test_a_first_wildcard_request_is_answered_even_with_nothing() -> None:
    client = Delta(FakeWorld())
    client.ask(CLUSTER)
    (response,) = client.responses()
    assert (response.resources, response.removed) == ((), ())


@pytest.mark.parametrize("type_url", RESOURCE_TYPES)
def test_only_what_changed_is_sent(client: Delta, world: FakeWorld, type_url: str) -> None:
    client.ask(type_url)
    client.settle()
    world.put(type_url, "b", "new")
    world.put(type_url, "c")
    (response,) = client.responses()
    assert (names(response), response.removed) == (["b", "c"], ())


def test_what_is_gone_is_removed(client: Delta, world: FakeWorld) -> None:
    client.ask(LISTENER)
    client.settle()
    world.remove(LISTENER, "a")
    world.remove(LISTENER, "never there")
    (response,) = client.responses()
    assert (names(response), response.removed) == ([], ("a",))


def test_a_named_resource_that_does_not_exist_is_reported_removed_and_sent_once_it_does(
    client: Delta, world: FakeWorld
) -> None:
    client.ask(ROUTE, "later", "a")
    (response,) = client.settle()
    assert (names(response), response.removed) == (["a"], ("later",))
    world.put(ROUTE, "later")
    (response,) = client.settle()
    assert (names(response), response.removed) == (["later"], ())


def test_subscribing_again_sends_again(client: Delta) -> None:
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    client.ask(ENDPOINT, "a")
    (response,) = client.settle()
    assert names(response) == ["a"]


def test_subscribing_to_the_star_again_sends_everything_again(client: Delta) -> None:
    client.ask(CLUSTER, "*")
    client.settle()
    client.ask(CLUSTER, "*")
    assert names(client.next()) == ["a", "b"]


def test_unsubscribed_names_are_not_sent_and_not_removed(client: Delta, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    client.ask(ENDPOINT, unsubscribe=["a", "never subscribed"])
    world.put(ENDPOINT, "a", "new")
    world.remove(ENDPOINT, "a")
    assert client.responses() == []


def test_a_name_both_subscribed_and_unsubscribed_is_asked_for_again(client: Delta) -> None:
    client.ask(ENDPOINT, "a")
    client.settle()
    client.ask(ENDPOINT, "a", unsubscribe=["a"])
    assert names(client.next()) == ["a"]


def test_a_name_beside_a_wildcard_is_settled_when_it_is_given_up(client: Delta, world: FakeWorld) -> None:
    """The client cannot know whether the wildcard still gives it: it must be told."""
    world.put(CLUSTER, "hidden", on_demand=True)
    client.ask(CLUSTER)
    client.settle()
    client.ask(CLUSTER, "a", "hidden")
    (response,) = client.settle()
    assert names(response) == ["a", "hidden"]
    client.ask(CLUSTER, unsubscribe=["a", "hidden"])
    (response,) = client.settle()
    assert (names(response), response.removed) == (["a"], ("hidden",))


def test_a_wildcard_can_be_given_up_for_a_name(client: Delta, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    client.settle()
    client.ask(CLUSTER, "a")
    client.settle()
    client.ask(CLUSTER, unsubscribe=["*"])
    world.put(CLUSTER, "b", "new")
    assert client.responses() == []
    world.put(CLUSTER, "a", "new")
    assert names(client.settle()[0]) == ["a"]
    client.ask(CLUSTER, unsubscribe=["a"])
    world.put(CLUSTER, "a", "newer")
    assert client.responses() == []


def test_a_wildcard_beside_names_sends_the_rest(client: Delta) -> None:
    client.ask(LISTENER, "a")
    client.settle()
    client.ask(LISTENER, "*")
    assert names(client.next()) == ["b"]


def test_a_reconnecting_client_is_sent_only_what_differs(world: FakeWorld) -> None:
    before = Delta(world)
    before.ask(CLUSTER)
    (response,) = before.settle()
    has = {resource.name: resource.version for resource in response.resources}
    world.put(CLUSTER, "b", "new")
    world.put(CLUSTER, "c")
    client = Delta(world, only=CLUSTER)
    client.ask(CLUSTER, has={**has, "gone": "1"})
    (response,) = client.responses()
    assert (names(response), response.removed) == (["b", "c"], ("gone",))


@pytest.mark.parametrize("subscribe", [(), ("*",), ("a", "b")])
def test_a_reconnecting_client_that_has_everything_is_sent_nothing(
    world: FakeWorld, subscribe: tuple[str, ...]
) -> None:
    has = {resource.name: resource.version for resource in world.sets[CLUSTER].all().values()}
    client = Delta(world)
    client.ask(CLUSTER, *subscribe, has=has)
    assert client.responses() == []
    world.put(CLUSTER, "a", "new")
    assert names(client.next()) == ["a"]


@pytest.mark.parametrize(
    ("changed", "sent"),
    [((), []), ((ENDPOINT,), [(ENDPOINT, ["a"])]), ((CLUSTER,), [(CLUSTER, ["a"]), (ENDPOINT, ["a"])])],
    ids=["nothing", "endpoints", "the cluster"],
)
def test_a_reconnecting_client_that_asks_for_endpoints_first_is_sent_only_what_differs(
    changed: tuple[str, ...], sent: list[tuple[str, list[str]]]
) -> None:
    """So does an Envoy with a local cluster, whose endpoints are the first thing that it needs."""
    world = FakeWorld()
    for type_url, name in ((CLUSTER, "a"), (ENDPOINT, "a"), (ENDPOINT, LOCAL_CLUSTER)):
        world.put(type_url, name)
    before = Delta(world)
    before.ask(ENDPOINT, LOCAL_CLUSTER)
    had = before.settle()
    assert [names(response) for response in had] == [[LOCAL_CLUSTER]], "it needs them before all else"
    before.ask(CLUSTER)
    had += before.settle()
    before.ask(ENDPOINT, "a")
    had += before.settle()
    before.stream.close()
    has: dict[str, dict[str, str]] = {CLUSTER: {}, ENDPOINT: {}}
    for response in had:
        has[response.type_url].update(zip(names(response), response.versions(), strict=True))
    for type_url in changed:
        world.put(type_url, "a", "new")
    client = Delta(world)
    client.ask(ENDPOINT, "a", LOCAL_CLUSTER, has=has[ENDPOINT])
    assert client.responses() == [] and client.stream.waiting_for().clusters
    client.ask(CLUSTER, has=has[CLUSTER])
    assert [(response.type_url, names(response)) for response in client.settle()] == sent
    assert not client.stream.waiting_for().clusters


def test_a_reconnecting_client_that_never_asks_for_clusters_gets_its_endpoints() -> None:
    world = FakeWorld()
    world.put(ENDPOINT, LOCAL_CLUSTER)
    client = Delta(world)
    client.ask(ENDPOINT, LOCAL_CLUSTER, has={LOCAL_CLUSTER: "1"})
    assert client.responses() == []
    client.stream.end_reconnect_grace()
    assert [names(response) for response in client.responses()] == [[LOCAL_CLUSTER]]
    assert not client.stream.waiting_for().clusters


def test_what_a_reconnecting_client_has_of_a_later_version_comes_back(world: FakeWorld) -> None:
    """The world went back to what the client does not have."""
    client = Delta(world)
    later = world.put(CLUSTER, "a", "later").version
    world.put(CLUSTER, "a", "a")
    client.ask(CLUSTER, has={"a": later, "b": world.sets[CLUSTER].all()["b"].version})
    world.put(CLUSTER, "a", "later")
    client.settle()
    world.put(CLUSTER, "a", "a")
    assert [r.body for r in client.settle()[0].resources] == [b"a"]


def test_a_version_that_only_a_client_knows_lends_its_bytes_to_nobody() -> None:
    world = FakeWorld()
    later = make_resource("a", CLUSTER, b"later").version
    world.put(CLUSTER, "a")
    client = Delta(world)
    client.ask(CLUSTER, has={"a": later})
    world.put(CLUSTER, "a", "later")
    other = Sotw(world)
    other.ask(CLUSTER)
    assert [r.body for r in other.settle()[0].resources] == [b"later"]
    assert [r.body for r in client.settle()[0].resources] == [b"later"]


def test_what_a_client_has_besides_its_subscription_is_ignored(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(ROUTE, "a", has={"b": "1", "zzz": "1"})
    (response,) = client.responses()
    assert (names(response), response.removed) == (["a"], ())


def test_a_request_with_a_stale_nonce_still_subscribes(client: Delta, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "a")
    (first,) = client.settle()
    world.put(ENDPOINT, "a", "new")
    (second,) = client.responses()
    client.ask(ENDPOINT, "b", nonce=first.nonce)
    assert client.stream.waiting_for().acks == (ENDPOINT,)
    client.ack(second)
    assert names(client.next()) == ["b"]


def test_one_response_a_type_and_changes_merge_behind_it(client: Delta, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    (response,) = client.responses()
    world.put(CLUSTER, "a", "1")
    world.put(CLUSTER, "a", "2")
    world.put(CLUSTER, "c")
    world.remove(CLUSTER, "c")
    world.remove(CLUSTER, "b")
    assert client.responses() == []
    client.ack(response)
    (merged,) = client.responses()
    assert ([r.body for r in merged.resources], merged.removed) == ([b"2"], ("b",))


def test_another_set_is_compared_and_only_the_difference_sent(client: Delta, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    client.settle()
    world.replace_set(CLUSTER)
    assert client.responses() == []
    world.replace_set(CLUSTER)
    world.put(CLUSTER, "a", "new")
    world.remove(CLUSTER, "b")
    (response,) = client.responses()
    assert (names(response), response.removed) == (["a"], ("b",))


def test_a_client_that_lags_behind_the_log_is_compared(client: Delta, world: FakeWorld) -> None:
    client.ask(ENDPOINT, "a", "b")
    (response,) = client.responses()
    world.put(ENDPOINT, "b", "new")
    world.sets[ENDPOINT].forget_history()
    client.ack(response)
    assert names(client.next()) == ["b"]


def test_the_system_version_is_that_of_everything_held(client: Delta, world: FakeWorld) -> None:
    client.ask(CLUSTER)
    client.settle()
    world.put(CLUSTER, "c")
    (response,) = client.settle()
    fresh = Delta(world)
    fresh.ask(CLUSTER)
    assert fresh.settle()[0].version == response.version


def test_a_wildcard_that_ends_and_starts_anew_while_a_response_is_under_way_takes_back_what_is_gone(
    world: FakeWorld, client: Delta
) -> None:
    """The client may read that response after it has asked again, and count it as the answer."""
    client.ask(CLUSTER)
    under_way = client.next()
    assert under_way is not None and "a" in names(under_way)
    world.remove(CLUSTER, "a")
    client.ask(CLUSTER, unsubscribe=["*"])
    client.ask(CLUSTER, "*")
    client.ack(under_way)
    (response,) = client.settle()
    assert response.removed == ("a",)


def test_a_name_that_will_exist_soon_is_not_called_gone_and_is_sent_once_it_is_there(world: FakeWorld) -> None:
    world.sets[SECRET].coming.add("default")
    client = Delta(world)
    client.ask(SECRET, "default", "a", "never")
    (response,) = client.responses()
    assert (names(response), response.removed) == (["a"], ("never",))
    client.ack(response)
    assert client.responses() == []
    world.put(SECRET, "default")
    (response,) = client.responses()
    assert (names(response), response.removed) == (["default"], ())
