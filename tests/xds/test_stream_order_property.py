"""Property 4: no client is ever sent a listener or route naming a cluster that it was not sent before.

Nor is a cluster taken from a client whose listeners or routes still name it; nor does a listener that is new to it come
while a route table that it asks for is not up to date.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.envoy.clusters.outbound import no_endpoints
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, Resource
from mesh_pilot.xds.ads.messages import Response, Variant
from tests.support.sample import examples
from tests.xds.fake_world import FakeWorld
from tests.xds.model_client import ModelClient

CLUSTERS = ("a", "b", "c", "d")
WITH_ENDPOINTS = ("a", "b")
"""Clusters that get their endpoints from us."""


class Mesh:
    """A world in which listeners and routes name clusters, and name only those there are."""

    def __init__(self) -> None:
        self.world = FakeWorld()
        self.routes: dict[tuple[str, str], frozenset[str]] = {}

    def target(self, type_url: str, name: str, clusters: frozenset[str]) -> None:
        """One change of the world: a referrer names these, and clusters come and go with those who name them."""
        before = self._named()
        self.routes[type_url, name] = clusters
        named = self._named()
        for cluster in sorted(named - before):
            self.world.put(CLUSTER, cluster)
            if cluster in WITH_ENDPOINTS:
                self.world.put(ENDPOINT, cluster)
        self.world.put(type_url, name, ",".join(sorted(clusters)) or "-")
        for cluster in sorted(before - named):
            self.world.remove(CLUSTER, cluster)
            self.world.remove(ENDPOINT, cluster)

    def change_cluster(self, cluster: str, text: str) -> None:
        if cluster in self._named():
            self.world.put(CLUSTER, cluster, text)

    def _named(self) -> set[str]:
        return set().union(*self.routes.values())


class StrictEnvoy(ModelClient):
    """An Envoy that objects to whatever is sent too early or taken too soon."""

    def __init__(self, mesh: Mesh, variant: Variant) -> None:
        super().__init__(mesh.world, variant, is_atomic=True)
        self.subscribe(CLUSTER, [])
        self.subscribe(LISTENER, [])
        self.subscribe(ROUTE, ["r"])
        self.subscribe(ENDPOINT, ["a"])

    def connect(self, *, forgotten: bool = False) -> None:
        self.sent_clusters: set[str] = set(self.resources(CLUSTER))
        self.knows_past = self.variant is Variant.DELTA
        """True if the stream can know what this client has: in State of the World, of a control plane that was started
        again, only from its first response on, and before that the clusters whose endpoints it asks for."""
        self.sent_types: set[str] = set()
        endpoints = self.interests.get(ENDPOINT)
        self.known = set(endpoints.names) if endpoints and forgotten else set()
        super().connect(forgotten=forgotten)

    def resources(self, type_url: str) -> dict[str, Resource]:
        interest = self.interests.get(type_url)
        return interest.resources if interest else {}

    def server_sends(self) -> bool:
        sent = super().server_sends()
        if sent:
            self._inspect(self.to_client[-1])
        return sent

    def _inspect(self, response: Response) -> None:
        sent = {resource.name for resource in response.resources}
        if response.type_url == CLUSTER:
            if response.variant is Variant.SOTW:
                self.sent_clusters = sent
            else:
                self.sent_clusters = (self.sent_clusters | sent) - set(response.removed)
            for type_url in (LISTENER, ROUTE):
                for resource in self.resources(type_url).values():
                    named = clusters_of(resource) if self.knows_past else clusters_of(resource) & self.known
                    assert named <= self.sent_clusters, "a cluster is taken that is still named"
            self.knows_past = True
        if response.type_url == ENDPOINT and self.known:
            emptied = {r.name for r in response.resources if r.body == no_endpoints(r.name).body}
            for type_url in (LISTENER, ROUTE):
                for resource in self.resources(type_url).values():
                    assert not clusters_of(resource) & emptied & self.known, "a cluster is emptied that is still named"
        if response.type_url == LISTENER and not sent <= self.resources(LISTENER).keys():
            table, due = self.stream.client_state(ROUTE).get("r"), self.world.sets[ROUTE].get("r")
            assert ROUTE not in self.sent_types or table == due, "a new listener comes before its table is up to date"
        self.sent_types.add(response.type_url)
        if response.type_url in (LISTENER, ROUTE):
            for resource in response.resources:
                assert clusters_of(resource) <= self.sent_clusters, "a cluster is named that was not sent"

    def client_reads(self) -> None:
        """As Envoy, ask for the endpoints of the clusters it knows."""
        before = set(self.resources(CLUSTER))
        super().client_reads()
        after = set(self.resources(CLUSTER))
        new, gone = (after - before) & set(WITH_ENDPOINTS), (before - after) & set(WITH_ENDPOINTS)
        if gone:
            self.unsubscribe(ENDPOINT, sorted(gone))
        if new:
            self.subscribe(ENDPOINT, sorted(new))


def clusters_of(resource: Resource) -> set[str]:
    return set(resource.body.decode().split(",")) - {"-"}


Step = Callable[[Mesh, StrictEnvoy], None]


def target(type_url: str, name: str, clusters: frozenset[str]) -> Step:
    return lambda mesh, envoy: mesh.target(type_url, name, clusters)


def change(cluster: str, text: str) -> Step:
    return lambda mesh, envoy: mesh.change_cluster(cluster, text)


def move(what: str) -> Step:
    return {
        "server reads": lambda mesh, envoy: envoy.server_reads(),
        "server sends": lambda mesh, envoy: envoy.server_sends() and None,
        "client reads": lambda mesh, envoy: envoy.client_reads(),
        "everything": lambda mesh, envoy: envoy.run_until_quiet(),
        "reconnect": lambda mesh, envoy: envoy.connect(),
        "restart": lambda mesh, envoy: envoy.connect(forgotten=True),
    }[what]


referrers = st.sampled_from(((LISTENER, "l"), (LISTENER, "m"), (ROUTE, "r")))
retargets = referrers.flatmap(
    lambda referrer: st.builds(
        target, st.just(referrer[0]), st.just(referrer[1]), st.frozensets(st.sampled_from(CLUSTERS), max_size=3)
    )
)
changes = st.one_of(retargets, st.builds(change, st.sampled_from(CLUSTERS), st.sampled_from(("1", "2"))))
moves = st.builds(move, st.sampled_from(("server reads", "server sends", "client reads")))
rare = st.builds(move, st.sampled_from(("everything", "everything", "reconnect", "restart")))


@pytest.mark.parametrize("variant", Variant)
@given(steps=st.lists(st.one_of(changes, moves, moves, rare), max_size=50))
@settings(max_examples=examples(400), deadline=None)
def test_nothing_is_named_before_it_is_sent_or_taken_while_it_is_named(variant: Variant, steps: list[Step]) -> None:
    mesh = Mesh()
    mesh.target(LISTENER, "l", frozenset("a"))
    mesh.target(ROUTE, "r", frozenset("ac"))
    envoy = StrictEnvoy(mesh, variant)
    for step in steps:
        step(mesh, envoy)
    envoy.run_until_quiet()
    envoy.check()
