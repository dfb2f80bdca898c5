"""Make before break: which type goes first, what waits for what, and what follows what."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mesh_pilot.model.resource import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    NAME_TABLE,
    PROXY_CONFIG,
    RESOURCE_TYPES,
    ROUTE,
    SECRET,
    VIRTUAL_HOST,
)
from mesh_pilot.xds.ads.messages import Response, Variant
from tests.xds.driver import Delta, Sotw, names
from tests.xds.fake_world import FakeWorld

Client = Sotw | Delta


@pytest.fixture
def world() -> FakeWorld:
    world = FakeWorld()
    for name in ("a", "b"):
        world.put(CLUSTER, name)
        world.put(ENDPOINT, name)
    world.put(LISTENER, "web")
    world.put(ROUTE, "web")
    return world


@pytest.fixture(params=[Sotw, Delta])
def client(world: FakeWorld, request: pytest.FixtureRequest) -> Client:
    """An Envoy that has everything."""
    client: Client = request.param(world)
    client.ask(CLUSTER)
    client.settle()
    client.ask(ENDPOINT, "a", "b")
    client.ask(LISTENER)
    client.settle()
    client.ask(ROUTE, "web")
    client.settle()
    return client


def ask_endpoints(client: Client, *names: str, new: str) -> None:
    """Ask for the endpoints of a new cluster, in the way of the variant."""
    if isinstance(client, Delta):
        client.ask(ENDPOINT, new)
    else:
        client.ask(ENDPOINT, *names, new)


def kinds(responses: list[Response]) -> list[str]:
    return [response.type_url for response in responses]


@pytest.mark.parametrize("make", [Sotw, Delta])
def test_types_are_sent_in_order(make: type[Client]) -> None:
    world = FakeWorld()
    client = make(world)
    for type_url in reversed(RESOURCE_TYPES):
        world.put(type_url, "a")
        client.ask(type_url, *([] if type_url in (CLUSTER, LISTENER) else ["a"]))
    assert kinds(client.responses()) == [
        CLUSTER, ENDPOINT, LISTENER, ROUTE, VIRTUAL_HOST, SECRET, EXTENSION, NAME_TABLE, PROXY_CONFIG
    ]  # fmt: skip


def test_a_cluster_change_is_followed_by_the_endpoints_of_the_touched_clusters(
    client: Client, world: FakeWorld
) -> None:
    world.put(CLUSTER, "b", "new")
    clusters, endpoints = client.settle()
    assert (clusters.type_url, clusters.touched) == (CLUSTER, ("b",))
    assert (endpoints.type_url, names(endpoints)) == (ENDPOINT, ["b"])


def test_endpoints_follow_a_cluster_that_changes_while_endpoints_are_unacked(client: Client, world: FakeWorld) -> None:
    world.put(ENDPOINT, "b", "new")
    (endpoints,) = client.responses()
    world.put(CLUSTER, "b", "new")
    (clusters,) = client.responses()
    client.ack(endpoints)
    (again,) = client.responses()
    assert (clusters.type_url, again.type_url, names(again)) == (CLUSTER, ENDPOINT, ["b"])


def test_endpoints_the_client_did_not_ask_for_do_not_follow(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a")
    client.settle()
    world.put(CLUSTER, "b", "new")
    assert kinds(client.settle()) == [CLUSTER]


def versions(responses: Iterable[Response]) -> dict[str, str]:
    """What a Delta client keeps of its responses: versions by name."""
    return {r.name: v for response in responses for r, v in zip(response.resources, response.versions(), strict=True)}


def test_endpoints_follow_clusters_that_a_reconnecting_delta_client_was_just_sent(world: FakeWorld) -> None:
    """It has the endpoints, but the changed cluster waits for them to come again."""
    before = Delta(world)
    before.ask(CLUSTER)
    clusters = versions(before.settle())
    before.ask(ENDPOINT, "a", "b")
    endpoints = versions(before.settle())
    world.put(CLUSTER, "b", "new")
    client = Delta(world)
    client.ask(CLUSTER, has=clusters)
    assert [names(r) for r in client.settle()] == [["b"]]
    client.ask(ENDPOINT, "a", "b", has=endpoints)
    assert [names(r) for r in client.settle()] == [["b"]]


def test_a_new_cluster_that_is_gone_before_its_endpoints_were_asked_for_has_none(
    client: Client, world: FakeWorld
) -> None:
    """Envoy accepts clusters only once it has their endpoints: without any it would never learn that one is gone."""
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "c", "1")
    clusters = client.next()
    assert clusters is not None and clusters.type_url == CLUSTER
    world.remove(CLUSTER, "c")
    world.remove(ENDPOINT, "c")
    ask_endpoints(client, "a", "b", "c", new="c")
    answer = client.next()
    assert answer is not None and answer.type_url == ENDPOINT
    if answer.variant is Variant.SOTW:
        assert [(r.name, r.body) for r in answer.resources] == [("c", b"\n\x01c")]
    else:
        assert answer.removed == ("c",)
    client.ack(answer)
    client.ack(clusters)
    last = client.settle()
    assert CLUSTER in kinds(last)
    assert "c" not in client.stream.client_state(CLUSTER)


def test_a_reconnecting_client_that_waits_for_the_endpoints_of_a_cluster_that_is_gone_is_told_of_none(
    world: FakeWorld,
) -> None:
    """Envoy does not ask for clusters while one of those it has waits for its endpoints."""
    client = Sotw(world)
    client.ask(ENDPOINT, "a", "gone")
    assert [names(r) for r in client.settle()] == [["a"]]
    assert client.stream.waiting_for().clusters
    client.stream.end_reconnect_grace()
    assert not client.stream.waiting_for().clusters
    assert [(r.name, r.body) for response in client.settle() for r in response.resources] == [("gone", b"\n\x04gone")]
    client.ask(CLUSTER, version="of another replica")
    assert kinds(client.settle()) == [CLUSTER, ENDPOINT]


def test_a_reconnecting_client_that_asks_for_its_clusters_too_is_told_of_no_endpoints_before(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER, version="of another replica")
    client.ask(ENDPOINT, "a", "gone")
    assert not client.stream.waiting_for().clusters
    client.stream.end_reconnect_grace()
    assert [n for r in client.settle() for n in names(r)] == ["a", "b", "a"]


def test_a_changed_cluster_that_is_gone_before_its_endpoints_followed_gets_those_it_had(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER)
    client.settle()
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    world.put(ENDPOINT, "a", "new")
    endpoints = client.next()
    world.put(CLUSTER, "b", "new")
    clusters = client.next()
    world.remove(CLUSTER, "b")
    world.remove(ENDPOINT, "b")
    assert client.next() is None
    assert endpoints is not None and clusters is not None
    client.ack(endpoints, "a", "b")
    answer = client.next()
    assert names(answer) == ["b"]
    assert answer is not None and answer.resources[0].body
    client.ack(answer, "a", "b")
    client.ack(clusters)
    assert kinds(client.settle()) == [CLUSTER]


def test_endpoints_that_a_broken_stream_still_owed_follow_on_the_next_one(world: FakeWorld) -> None:
    """It has the changed cluster and endpoints from before: nothing is new, but the cluster waits for them."""
    before = Delta(world)
    before.ask(CLUSTER)
    before.ask(ENDPOINT, "a", "b")
    has = {response.type_url: versions([response]) for response in before.settle()}
    world.put(CLUSTER, "b", "new")
    response = before.next()
    assert names(response) == ["b"]
    has[CLUSTER] |= versions([response])
    for _ in range(2):
        client = Delta(world)
        client.ask(CLUSTER, has=has[CLUSTER])
        client.ask(ENDPOINT, "a", "b", has=has[ENDPOINT])
        following = client.settle()
        assert [names(r) for r in following] == ([["b"]] if following else [])
        has[ENDPOINT] |= versions(following)
    assert following == []


def test_listeners_and_routes_wait_for_clusters_that_could_not_be_sent_yet(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "a", "new")
    clusters, endpoints = client.responses()
    world.put(CLUSTER, "dns")
    world.put(LISTENER, "web", "to dns")
    world.put(ROUTE, "web", "to dns")
    client.ack(endpoints)
    assert client.responses() == []
    client.ack(clusters)
    assert kinds(client.responses()) == [CLUSTER, LISTENER, ROUTE]


def test_endpoints_do_not_wait_for_clusters(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "a", "new")
    client.ack(client.responses()[1])
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "b", "new")
    assert kinds(client.responses()) == [ENDPOINT]


def test_routes_wait_until_the_client_has_the_endpoints_of_a_new_cluster(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "c")
    world.put(ROUTE, "web", "to c")
    (clusters,) = client.responses()
    client.ack(clusters)
    assert client.responses() == []
    assert client.stream.waiting_for().endpoints == {"c"}
    ask_endpoints(client, "a", "b", new="c")
    endpoints, routes = client.responses()
    assert (endpoints.type_url, names(endpoints), routes.type_url) == (ENDPOINT, ["c"], ROUTE)


def test_a_client_that_never_asks_for_those_endpoints_can_be_given_up_on(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "c")
    world.put(ROUTE, "web", "to c")
    client.settle()
    client.stream.end_warming()
    assert kinds(client.responses()) == [ROUTE]


def test_new_clusters_without_endpoints_from_us_keep_nothing_waiting(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "dns")
    world.put(ROUTE, "web", "to dns")
    assert kinds(client.responses()) == [CLUSTER, ROUTE]


def test_a_refused_cluster_keeps_nothing_waiting(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "c")
    world.put(ROUTE, "web", "to c")
    (clusters,) = client.responses()
    client.nack(clusters)
    assert kinds(client.responses()) == [ROUTE]


def test_after_a_refusal_endpoints_follow_all_that_may_not_have_been_taken(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    world.put(CLUSTER, "a", "bad")
    world.put(CLUSTER, "b", "new")
    clusters, endpoints = client.responses()
    client.nack(clusters)
    client.ack(endpoints)
    world.put(CLUSTER, "a", "fixed")
    clusters, endpoints = client.responses()
    assert (clusters.touched, names(endpoints)) == (("a",), ["a", "b"])


def test_a_new_cluster_that_was_refused_is_new_again(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "c", "bad")
    world.put(ENDPOINT, "c")
    (clusters,) = client.responses()
    client.nack(clusters)
    world.put(CLUSTER, "c", "fixed")
    world.put(ROUTE, "web", "to c")
    assert kinds(client.settle()) == [CLUSTER]
    assert client.stream.waiting_for().endpoints == {"c"}


def test_a_new_cluster_that_goes_again_keeps_nothing_waiting(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "c")
    world.put(ENDPOINT, "c")
    client.settle()
    world.put(ROUTE, "web", "elsewhere")
    world.remove(CLUSTER, "c")
    assert kinds(client.settle()) == [ROUTE, CLUSTER]


def test_a_cluster_goes_only_once_listeners_and_routes_have_let_go_of_it(client: Client, world: FakeWorld) -> None:
    world.put(ROUTE, "web", "to a only")
    world.put(LISTENER, "web", "to a only")
    world.remove(CLUSTER, "b")
    world.remove(ENDPOINT, "b")
    listeners, routes = client.responses()
    assert kinds([listeners, routes]) == [LISTENER, ROUTE]
    client.ack(listeners)
    assert client.responses() == []
    client.ack(routes)
    clusters = client.responses()[0]
    assert clusters.type_url == CLUSTER
    assert clusters.removed == ("b",) if isinstance(client, Delta) else names(clusters) == ["a"]


def test_a_cluster_that_must_stay_does_not_keep_new_ones_away(client: Client, world: FakeWorld) -> None:
    world.remove(CLUSTER, "b")
    world.put(CLUSTER, "dns")
    world.put(ROUTE, "web", "to dns")
    clusters, routes = client.responses()
    assert names(clusters) == (["dns"] if isinstance(client, Delta) else ["a", "b", "dns"])
    assert (clusters.removed, routes.type_url) == ((), ROUTE)
    client.ack(clusters)
    client.ack(routes)
    (clusters,) = client.settle()
    assert clusters.removed == ("b",) if isinstance(client, Delta) else names(clusters) == ["a", "dns"]


def test_a_cluster_that_nothing_named_goes_at_once(client: Client, world: FakeWorld) -> None:
    world.remove(CLUSTER, "b")
    assert kinds(client.responses()) == [CLUSTER]


def test_a_cluster_stays_while_the_routes_that_let_go_of_it_are_refused(client: Client, world: FakeWorld) -> None:
    """The client then continues with the old routes, which need it."""
    world.put(ROUTE, "web", "bad")
    world.remove(CLUSTER, "b")
    (routes,) = client.responses()
    client.nack(routes)
    assert client.responses() == []
    world.put(ROUTE, "web", "fixed")
    assert kinds(client.settle()) == [ROUTE, CLUSTER]


def test_a_cluster_that_comes_back_in_time_never_went(client: Client, world: FakeWorld) -> None:
    world.put(ROUTE, "web", "to a only")
    world.remove(CLUSTER, "b")
    (routes,) = client.responses()
    world.put(CLUSTER, "b")
    client.ack(routes)
    assert client.responses() == []


def test_endpoints_stay_as_long_as_their_cluster(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a", "b")
    client.ask(ROUTE, "web")
    client.settle()
    world.put(ROUTE, "web", "to a only")
    world.remove(CLUSTER, "b")
    world.remove(ENDPOINT, "b")
    sent = client.settle()
    assert [(r.type_url, r.removed) for r in sent] == [(ROUTE, ()), (CLUSTER, ("b",)), (ENDPOINT, ("b",))]


def test_endpoints_stay_while_the_removal_of_their_cluster_waits_behind_an_unacked_response(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    world.put(CLUSTER, "dns")
    (clusters,) = client.responses()
    world.remove(CLUSTER, "b")
    world.remove(ENDPOINT, "b")
    assert client.responses() == []
    client.ack(clusters)
    assert [(r.type_url, r.removed) for r in client.responses()] == [(CLUSTER, ("b",)), (ENDPOINT, ("b",))]


def test_endpoints_that_go_without_their_cluster_go_at_once(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER)
    client.ask(ENDPOINT, "a", "b")
    client.settle()
    world.remove(ENDPOINT, "b")
    assert [(r.type_url, r.removed) for r in client.settle()] == [(ENDPOINT, ("b",))]


def test_a_type_on_hold_is_left_out_and_keeps_what_needs_it_back(client: Client, world: FakeWorld) -> None:
    world.put(CLUSTER, "dns")
    world.put(ENDPOINT, "a", "new")
    world.put(ROUTE, "web", "to dns")
    response = client.stream.next_response({CLUSTER})
    assert response is not None
    assert response.type_url == ENDPOINT
    assert client.stream.next_response({CLUSTER}) is None
    assert kinds(client.responses()) == [CLUSTER, ROUTE]


def test_a_client_without_clusters_gets_routes_at_once(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(ROUTE, "web")
    assert kinds(client.responses()) == [ROUTE]


def test_a_reconnecting_delta_client_keeps_clusters_until_it_has_asked_for_listeners_and_routes(
    world: FakeWorld,
) -> None:
    has = {name: resource.version for name, resource in world.sets[CLUSTER].all().items()}
    routes = {name: resource.version for name, resource in world.sets[ROUTE].all().items()}
    world.put(ROUTE, "web", "to a only")
    world.remove(CLUSTER, "b")
    client = Delta(world)
    client.ask(CLUSTER, has=has)
    assert client.responses() == []
    assert client.stream.waiting_for().referrers == (LISTENER, ROUTE)
    client.ask(LISTENER)
    client.ask(ROUTE, "web", has=routes)
    assert [(r.type_url, r.removed) for r in client.settle()] == [(ROUTE, ()), (LISTENER, ()), (CLUSTER, ("b",))]


def test_a_reconnecting_delta_client_without_routes_is_given_up_on(world: FakeWorld) -> None:
    client = Delta(world)
    client.ask(CLUSTER, has={"gone": "1"})
    assert kinds(client.settle()) == [CLUSTER]
    client.stream.end_reconnect_grace()
    assert [r.removed for r in client.settle()] == [("gone",)]


def test_a_reconnecting_sotw_client_is_named_new_clusters_only_with_their_endpoints(world: FakeWorld) -> None:
    """What it has is unknown, but which endpoints it asks for tells which clusters are new to it."""
    client = Sotw(world)
    client.ask(CLUSTER, version="of another replica")
    client.ask(ENDPOINT, "a")
    client.ask(ROUTE, "web")
    assert kinds(client.settle()) == [CLUSTER, ENDPOINT]
    assert client.stream.waiting_for().endpoints == {"b"}
    client.ask(ENDPOINT, "a", "b")
    assert kinds(client.settle()) == [ENDPOINT, ROUTE]


def test_a_sotw_client_that_comes_back_soon_is_known(world: FakeWorld) -> None:
    """Then clusters that are gone can wait for its routes, as if it had never been away."""
    before = Sotw(world)
    before.ask(CLUSTER)
    (response,) = before.settle()
    before.stream.close()
    for number in range(20):
        other = FakeWorld()
        other.put(CLUSTER, f"passing-{number}")
        passing = Sotw(other)
        passing.ask(CLUSTER)
        passing.settle()
    world.put(ROUTE, "web", "to a only")
    world.put(CLUSTER, "c")
    world.remove(CLUSTER, "b")
    client = Sotw(world)
    client.ask(CLUSTER, version=response.version)
    (clusters,) = client.settle()
    assert (names(clusters), clusters.touched) == (["a", "b", "c"], ("c",))
    client.ask(LISTENER)
    client.ask(ROUTE, "web")
    assert kinds(client.responses()) == [ROUTE, LISTENER]
    for response in client.observer.responses[-2:]:
        client.ack(response)
    assert names(client.next()) == ["a", "c"]


def test_a_listener_that_comes_back_finds_its_route_table_up_to_date(client: Client, world: FakeWorld) -> None:
    """Envoy has its old table as long as the listener drained, and asks for it all the time."""
    world.remove(LISTENER, "web")
    client.settle()
    world.put(LISTENER, "web")
    world.put(ROUTE, "web", "to b")
    assert kinds(client.responses()) == [ROUTE, LISTENER]


def test_a_new_listener_waits_for_the_ack_of_a_table_that_has_changed_again(client: Client, world: FakeWorld) -> None:
    world.put(ROUTE, "web", "to b")
    (routes,) = client.responses()
    world.put(ROUTE, "web", "to a")
    world.put(LISTENER, "new")
    assert client.responses() == []
    client.ack(routes)
    assert kinds(client.responses()) == [ROUTE, LISTENER]


def test_a_new_listener_does_not_wait_for_tables_that_are_refused(client: Client, world: FakeWorld) -> None:
    world.put(ROUTE, "web", "bad")
    (routes,) = client.responses()
    client.nack(routes)
    world.put(ROUTE, "web", "bad too")
    world.put(LISTENER, "new")
    response = client.stream.next_response({ROUTE})
    assert response is not None and response.type_url == LISTENER


def test_a_listener_that_changes_does_not_wait_for_tables(client: Client, world: FakeWorld) -> None:
    world.put(LISTENER, "web", "other")
    world.put(ROUTE, "web", "to b")
    assert kinds(client.responses()) == [LISTENER, ROUTE]


def test_tables_of_a_client_that_comes_back_go_before_listeners_that_may_be_new_to_it(world: FakeWorld) -> None:
    client = Sotw(world)
    client.ask(CLUSTER, version="of another process")
    client.ask(ENDPOINT, "a", "b")
    client.ask(LISTENER, version="of another process")
    client.ask(ROUTE, "web", version="of another process")
    assert kinds(client.responses()) == [CLUSTER, ENDPOINT, ROUTE, LISTENER]
