"""Proxies that hold equal resources share their bytes, and each is told the objects that it has its own from."""

from __future__ import annotations

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, Resource
from mesh_pilot.ops.api.objects import produced_by
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import DeltaRequest, Nack, Node, Response, Variant
from mesh_pilot.xds.ads.stream import Stream, StreamObserver
from tests.support.worlds import sidecar, update, world_of

INBOUND = "inbound|9080||"


def _app(name: str, ip: str, timeout: str = "3s") -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 9080, name: http, protocol: HTTP}}]
  endpoints: [{{address: {ip}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: shop}}
spec:
  host: {name}.test
  trafficPolicy: {{connectionPool: {{tcp: {{connectTimeout: {timeout}}}}}}}
---
"""


class _Client(StreamObserver):
    """A Delta client that holds all clusters."""

    def __init__(self, catalog: WorldCatalog, proxy: Proxy) -> None:
        self.nacks: list[Nack] = []
        self.stream = Stream(catalog, Variant.DELTA, observer=self)
        self._node = Node(proxy.id, dict(proxy.metadata))
        self.stream.on_request(DeltaRequest(CLUSTER, node=self._node))
        self.take()

    def rejected(self, nack: Nack) -> None:
        self.nacks.append(nack)

    def take(self) -> list[Response]:
        found = []
        while (response := self.stream.next_response()) is not None:
            found.append(response)
            self.answer(response)
        return found

    def answer(self, response: Response, error: str | None = None) -> None:
        self.stream.on_request(DeltaRequest(CLUSTER, nonce=response.nonce, error=error))

    def inbound(self) -> Resource:
        return self.stream.explained(CLUSTER)[INBOUND]


def _mesh() -> tuple[World, WorldCatalog, dict[str, _Client]]:
    ips = {"catalog": "10.0.0.1", "reviews": "10.0.0.2"}
    world = world_of("".join(_app(name, ip) for name, ip in ips.items()))
    catalog = WorldCatalog(world)
    clients = {n: _Client(catalog, sidecar(ip, name=f"{n}-1", namespace="shop")) for n, ip in ips.items()}
    return world, catalog, clients


def _keys(name: str) -> set[ConfigKey]:
    return {ConfigKey(kind, "shop", name) for kind in ("ServiceEntry", "DestinationRule")}


def test_equal_inbound_clusters_are_one_object_and_have_origins_of_their_own() -> None:
    _, _, clients = _mesh()
    catalog, reviews = clients["catalog"], clients["reviews"]
    assert catalog.stream.client_state(CLUSTER)[INBOUND] is reviews.stream.client_state(CLUSTER)[INBOUND]
    for name, client in clients.items():
        assert set(client.inbound().configs) == _keys(name)


def test_an_object_lists_the_inbound_clusters_that_are_made_of_it() -> None:
    _, _, clients = _mesh()
    seen: dict[object, object] = {}
    held = [(name, CLUSTER, client.stream.explained(CLUSTER, seen)) for name, client in clients.items()]  # type: ignore[arg-type]
    for name in clients:
        (found,) = [p for p in produced_by(_keys(name), held) if p.name == INBOUND]
        assert (found.proxies, found.first) == (1, name)


def test_a_refusal_names_the_objects_of_the_proxy_that_refuses() -> None:
    world, _, clients = _mesh()
    update(world, _app("catalog", "10.0.0.1", "4s") + _app("reviews", "10.0.0.2", "4s"))
    for name, client in clients.items():
        response = client.stream.next_response()
        assert response is not None
        client.answer(response, f"Error: {INBOUND}: no")
        assert set(client.nacks[-1].configs) == _keys(name)


def test_a_version_that_is_not_held_any_more_explains_nothing() -> None:
    world, _, clients = _mesh()
    client = clients["reviews"]
    before = client.inbound()
    update(world, _app("reviews", "10.0.0.2", "5s"))
    assert client.inbound().version == before.version, "what is held, not what comes"
    client.take()
    assert client.inbound().version != before.version
    assert set(client.inbound().configs) == _keys("reviews")


def test_a_question_computes_nothing_and_takes_no_change_from_a_push() -> None:
    world, _, clients = _mesh()
    before = world.memo.statistics().calls
    for client in clients.values():
        client.inbound()
    assert world.memo.statistics().calls == before
    update(world, _app("reviews", "10.0.0.2", "5s"))
    clients["reviews"].inbound()  # between the change and the push
    (response,) = clients["reviews"].take()
    assert INBOUND in {resource.name for resource in response.resources}
