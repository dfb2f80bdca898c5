"""A State of the World client comes back to a control plane that does not know its version (decision 011)."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.clusters.outbound import INITIAL_FETCH_TIMEOUT_SECONDS, placeholder
from mesh_pilot.model.proxy import LOCAL_CLUSTER
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.xds.ads.messages import Response
from mesh_pilot.xds.ads.ordering import MAX_PLACEHOLDERS
from tests.xds.driver import Sotw, names
from tests.xds.fake_world import FakeWorld

FORGOTTEN = "of the process before"


@pytest.fixture
def world() -> FakeWorld:
    """The route has moved from the cluster ``old`` to ``new`` while the client was away."""
    world = FakeWorld()
    for name in ("kept", "new"):
        world.put(CLUSTER, name)
        world.put(ENDPOINT, name)
    world.put(CLUSTER, "dns")
    world.put(LISTENER, "web")
    world.put(ROUTE, "web", "to new")
    return world


@pytest.fixture
def client(world: FakeWorld) -> Sotw:
    return Sotw(world)


def come_back(client: Sotw, *endpoints: str) -> None:
    """Ask for everything, as Envoy does when its stream is made again."""
    client.ask(CLUSTER, version=FORGOTTEN)
    client.ask(ENDPOINT, *endpoints, version=FORGOTTEN)
    client.ask(LISTENER, version=FORGOTTEN)
    client.ask(ROUTE, "web", version=FORGOTTEN)


def version_with_old(world: FakeWorld) -> str:
    """The version of clusters of a client that was here while there was ``old``, which it has."""
    world.put(CLUSTER, "old")
    world.put(ENDPOINT, "old")
    before = Sotw(world)
    before.ask(CLUSTER)
    (clusters,) = before.responses()
    before.ack(clusters)
    before.stream.close()
    return clusters.version


def shown(responses: list[Response]) -> list[tuple[str, list[str]]]:
    return [(response.type_url, names(response)) for response in responses]


def test_a_cluster_that_is_gone_stays_until_the_routes_have_moved(client: Sotw) -> None:
    come_back(client, "kept", "old")
    clusters, endpoints = client.responses()
    assert shown([clusters, endpoints]) == [(CLUSTER, ["dns", "kept", "new", "old"]), (ENDPOINT, ["kept"])]
    # Envoy does not accept the clusters before all are warm.
    client.ack(endpoints, "kept", "new", "old")
    new, routes, listeners = client.responses()
    assert shown([new, routes, listeners]) == [(ENDPOINT, ["new"]), (ROUTE, ["web"]), (LISTENER, ["web"])]
    client.ack(listeners)
    client.ack(new, "kept", "new", "old")
    assert client.responses() == [], "the old routes still name it"
    client.ack(routes)
    (none,) = client.responses()
    assert shown([none]) == [(ENDPOINT, ["old"])]
    assert none.resources[0].body == b"\n\x03old"
    client.ack(none)
    client.ack(clusters)
    assert shown(client.settle()) == [(CLUSTER, ["dns", "kept", "new"])]


def test_what_stands_for_it_waits_for_its_endpoints_but_not_for_ever() -> None:
    cluster = Cluster.FromString(placeholder("old").body)
    source = cluster.eds_cluster_config.eds_config
    assert (cluster.name, cluster.type, source.HasField("ads")) == ("old", Cluster.EDS, True)
    assert source.initial_fetch_timeout.seconds == INITIAL_FETCH_TIMEOUT_SECONDS > 0


def test_clusters_wait_for_the_client_to_ask_for_endpoints(client: Sotw) -> None:
    client.ask(CLUSTER, version=FORGOTTEN)
    client.ask(LISTENER, version=FORGOTTEN)
    assert client.responses() == []
    assert client.stream.waiting_for().referrers == (ENDPOINT, ROUTE)


def test_a_client_that_asks_for_no_endpoints_is_given_up_on(client: Sotw) -> None:
    client.ask(CLUSTER, version=FORGOTTEN)
    client.stream.end_reconnect_grace()
    assert shown(client.settle()) == [(CLUSTER, ["dns", "kept", "new"])]


def test_nothing_stands_for_anything_where_all_clusters_are_there(client: Sotw) -> None:
    come_back(client, "kept", "new")
    assert [n for r in client.settle() if r.type_url == CLUSTER for n in names(r)] == ["dns", "kept", "new"]


def test_nothing_stands_for_the_cluster_that_its_bootstrap_has(client: Sotw, world: FakeWorld) -> None:
    world.put(ENDPOINT, LOCAL_CLUSTER)
    come_back(client, "kept", LOCAL_CLUSTER)
    sent = client.settle()
    assert [n for r in sent if r.type_url == CLUSTER for n in names(r)] == ["dns", "kept", "new"]
    assert [n for r in sent if r.type_url == ENDPOINT for n in names(r)] == ["kept", LOCAL_CLUSTER]


def test_a_client_may_name_more_than_anything_stands_for(client: Sotw) -> None:
    come_back(client, *(f"gone-{number}" for number in range(3 * MAX_PLACEHOLDERS)))
    clusters = client.next()
    assert len(names(clusters)) == MAX_PLACEHOLDERS + 3


def test_a_client_that_was_never_here_waits_for_nothing(client: Sotw) -> None:
    client.ask(CLUSTER)
    assert shown(client.responses()) == [(CLUSTER, ["dns", "kept", "new"])]


def test_a_cluster_that_is_there_again_is_itself(client: Sotw, world: FakeWorld) -> None:
    come_back(client, "kept", "old")
    client.responses()
    world.put(ENDPOINT, "old")
    again = world.put(CLUSTER, "old")
    sent = client.settle()
    client.ack(next(r for r in client.observer.responses if r.type_url == CLUSTER))
    sent += client.settle()
    clusters = [r for r in sent if r.type_url == CLUSTER]
    assert again in clusters[-1].resources


def test_while_the_new_routes_are_refused_the_old_cluster_stays(client: Sotw, world: FakeWorld) -> None:
    come_back(client, "kept", "new", "old")
    sent = {response.type_url: response for response in client.responses()}
    client.nack(sent[ROUTE])
    for type_url in (ENDPOINT, LISTENER, CLUSTER):
        client.ack(sent[type_url])
    assert client.responses() == []
    assert "old" in client.stream.client_state(CLUSTER)
    world.put(ROUTE, "web", "fixed")
    sent_then = client.settle()
    assert shown(sent_then)[0] == (ROUTE, ["web"])
    assert "old" not in client.stream.client_state(CLUSTER)


def test_a_cluster_that_is_known_and_gone_keeps_its_endpoints_until_the_routes_have_moved(world: FakeWorld) -> None:
    """The client's version is known: it was here before, and its connection ended of age."""
    version = version_with_old(world)
    world.remove(CLUSTER, "old")
    world.remove(ENDPOINT, "old")
    client = Sotw(world)
    client.ask(CLUSTER, version=version)
    client.ask(ENDPOINT, "kept", "new", "old", version=FORGOTTEN)
    client.ask(LISTENER, version=FORGOTTEN)
    client.ask(ROUTE, "web", version=FORGOTTEN)
    endpoints, *referrers = client.responses()
    assert shown([endpoints]) == [(ENDPOINT, ["kept", "new"])]
    client.ack(endpoints, "kept", "new", "old")
    assert [response.type_url for response in referrers] == [ROUTE, LISTENER]
    assert client.responses() == [], "the old routes still name it"
    for response in referrers:
        client.ack(response, *(["web"] if response.type_url == ROUTE else []))
    sent = client.responses()
    assert (CLUSTER, ["dns", "kept", "new"]) in shown(sent)


def test_a_cluster_that_was_sent_anew_and_is_gone_then_is_answered_for_at_once(world: FakeWorld) -> None:
    """Envoy waits for the endpoints of a changed cluster, and takes neither clusters nor their successors till then."""
    version = version_with_old(world)
    client = Sotw(world)
    client.ask(CLUSTER, version=version)
    client.ask(LISTENER, version=FORGOTTEN)
    client.ask(ROUTE, "web", version=FORGOTTEN)
    client.settle()
    world.put(CLUSTER, "old", "changed")
    assert shown(client.responses()) == [(CLUSTER, ["dns", "kept", "new", "old"])]
    world.put(ROUTE, "web", "to kept")
    world.remove(CLUSTER, "old")
    world.remove(ENDPOINT, "old")
    client.ask(ENDPOINT, "kept", "new", "old")
    assert shown(client.responses())[0] == (ENDPOINT, ["kept", "new", "old"])
