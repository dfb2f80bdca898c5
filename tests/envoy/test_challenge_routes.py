"""The routes by which gateways answer issuers of certificates: where they are, and what they leave alone."""

from __future__ import annotations

from mesh_pilot.model.events import ChallengeAnswer, Challenges, Delete, Upsert, item_key
from mesh_pilot.world import World
from tests.support.routing import gateway_table, router
from tests.support.worlds import SOURCE, world_of

MESH = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    hosts: ["*.shop.test", plain.test]
  - port: {number: 8080, name: redirecting, protocol: HTTP}
    hosts: [moved.test]
    tls: {httpsRedirect: true}
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: ["*.shop.test"]
    tls: {mode: SIMPLE, credentialName: edge}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: shop}
spec:
  hosts: ["*.shop.test"]
  gateways: [edge]
  http: [{directResponse: {status: 204}}]
"""

HTTPS = "https.443.https.edge.shop"


def edge(*hosts: str) -> World:
    world = world_of(MESH)
    answers = tuple(ChallengeAnswer(host, f"t-{host}", f"text of {host}") for host in hosts)
    world.apply([Upsert(SOURCE, Challenges(answers))])
    return world


def paths(world: World, table: str) -> dict[str, list[str]]:
    """The paths, or the names, of the routes of each virtual host."""
    found = gateway_table(world, table, router(labels={"istio": "edge"}))
    return {name: [route.match.path or route.name for route in host.routes] for name, host in found.items()}


def test_the_answer_is_at_the_virtual_host_that_envoy_selects_for_the_host() -> None:
    world = edge("a.shop.test")
    (first, *rest) = paths(world, "http.80")["*.shop.test:80"]
    assert first == "/.well-known/acme-challenge/t-a.shop.test"
    assert len(rest) == 1
    assert list(paths(world, "http.80")) == ["*.shop.test:80"]
    host = gateway_table(world, "http.80", router(labels={"istio": "edge"}))["*.shop.test:80"]
    assert host.routes[0].direct_response.status == 200
    assert host.routes[0].direct_response.body.inline_string == "text of a.shop.test"


def test_a_host_without_routes_gets_a_virtual_host_for_the_answer() -> None:
    assert paths(edge("plain.test"), "http.80")["plain.test:80"] == ["/.well-known/acme-challenge/t-plain.test"]


def test_the_answer_precedes_redirects() -> None:
    (first, *rest) = paths(edge("moved.test"), "http.8080")["moved.test:8080"]
    assert first == "/.well-known/acme-challenge/t-moved.test"
    assert rest == ["https-redirect", "https-redirect"]


def test_hosts_of_others_and_tables_of_https_stay_as_they_are() -> None:
    world = edge()
    before = [paths(world, table) for table in ("http.80", "http.8080", HTTPS)]
    world = edge("other.test", "a.shop.test")
    assert paths(world, HTTPS) == before[2]
    assert paths(world, "http.8080") == before[1]
    assert "t-other.test" not in str(paths(world, "http.80"))


def test_when_the_order_is_over_the_table_is_as_before() -> None:
    world = world_of(MESH)
    before = gateway_table(world, "http.80", router(labels={"istio": "edge"}))
    found = Challenges((ChallengeAnswer("a.shop.test", "t", "x"), ChallengeAnswer("plain.test", "t", "x")))
    world.apply([Upsert(SOURCE, found)])
    assert gateway_table(world, "http.80", router(labels={"istio": "edge"})) != before
    world.apply([Delete(SOURCE, item_key(found))])
    assert gateway_table(world, "http.80", router(labels={"istio": "edge"})) == before
