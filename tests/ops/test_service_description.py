"""A service is described with the policies that its proxies apply, and as its registry declares it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.service import (
    SERVICE_LABEL,
    Endpoint,
    Health,
    Port,
    Protocol,
    Registration,
    Service,
    ServiceKey,
)
from mesh_pilot.ops.explain.description import Description
from mesh_pilot.ops.explain.service_description import ConnectedWorkloads, describe_service
from mesh_pilot.world import World
from tests.support.worlds import world_of

REVIEWS = ServiceKey("reviews.service.consul", "default")
EVERYBODY = "everybody: no AuthorizationPolicy applies"
ONLY_WEB = {"rules": [{"from": [{"source": {"principals": ["cluster.local/ns/default/sa/web"]}}]}]}
SERVES_REVIEWS = {"selector": {"matchLabels": {f"{SERVICE_LABEL}reviews": "true"}}}


def world(*policies: str) -> World:
    """A World with a service of Consul that has two instances, with these objects."""
    found = world_of("".join(policies))
    ports = (
        Port(9080, "http", Protocol.HTTP, said_by="metadata or tag protocol"),
        Port(5000, "tcp-db", Protocol.TCP, said_by="the port name"),
    )
    endpoints = tuple(
        Endpoint(f"10.0.0.{n}", 9080, "http", labels={"app": "reviews"}, namespace="default",
                 registration=Registration(f"n{n}", "reviews", f"reviews-{n}"))
        for n in (1, 2)
    )  # fmt: skip
    service = Service(host=REVIEWS.host, namespace=REVIEWS.namespace, ports=ports, registry="Consul")
    found.apply([Upsert("consul", service), Upsert("consul", Endpoints(REVIEWS, endpoints))])
    return found


def policy(name: str, spec: Any, *, kind: str = "AuthorizationPolicy", namespace: str = "default", **more: str) -> str:
    metadata = {"name": name, "namespace": namespace, "annotations": more}
    return "\n---\n" + json.dumps(
        {"apiVersion": "security.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
    )


def described(found: World, connected: ConnectedWorkloads | None = None, key: ServiceKey = REVIEWS) -> Description:
    service = found.view.service(key)
    assert service is not None
    return describe_service(found.view, service, "default", connected or {})


def lines(description: Description, title: str) -> list[str]:
    return [line.text for name, section in description.sections if name.startswith(title) for line in section]


@pytest.mark.parametrize(
    "text",
    [
        policy("by-service", SERVES_REVIEWS | ONLY_WEB),
        policy("by-label", {"selector": {"matchLabels": {"app": "reviews"}}} | ONLY_WEB),
        policy("all", ONLY_WEB),
        policy("mesh", ONLY_WEB, namespace="istio-system"),
    ],
)
def test_who_may_reach_it_is_what_the_policies_say_that_its_proxies_apply(text: str) -> None:
    assert lines(described(world(text)), "Who may reach") == [
        "allows requests from identity cluster.local/ns/default/sa/web",
        "everything else is denied, because an ALLOW policy applies",
    ]


@pytest.mark.parametrize(
    "text",
    [
        policy("others", {"selector": {"matchLabels": {f"{SERVICE_LABEL}ratings": "true"}}} | ONLY_WEB),
        policy("elsewhere", ONLY_WEB, namespace="shop"),
        policy(
            "gateway",
            {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}]} | ONLY_WEB,
        ),
    ],
)
def test_policies_of_other_workloads_are_not_its_own(text: str) -> None:
    assert lines(described(world(text)), "Who may reach") == [EVERYBODY]


def test_the_labels_of_a_connected_proxy_count_in_place_of_the_registrys() -> None:
    own = world(policy("by-label", {"selector": {"matchLabels": {"tier": "back"}}} | ONLY_WEB))
    proxy = ("default", frozenset({("app", "reviews"), ("tier", "back")}))
    found = described(own, {("10.0.0.1", 9080): [proxy]})
    titles = [title for title, _ in found.sections if title.startswith("Who may reach")]
    assert titles == [
        "Who may reach workloads of default with app=reviews, tier=back",
        "Who may reach workloads of default with app=reviews",
    ]
    assert lines(found, titles[0])[0].startswith("allows requests from identity")
    assert described(own, {("127.0.0.1", 9080): [proxy]}).sections[-1][1][0].text == EVERYBODY


def test_a_policy_in_dry_run_denies_nothing() -> None:
    found = described(world(policy("p", ONLY_WEB, **{"istio.io/dry-run": "true"})))
    assert lines(found, "Who may reach") == [
        "only noted, in dry run: allows requests from identity cluster.local/ns/default/sa/web",
        EVERYBODY,
    ]


def test_what_all_workloads_say_alike_is_said_once() -> None:
    strict = policy("default", {"mtls": {"mode": "STRICT"}}, kind="PeerAuthentication")
    two = {("10.0.0.1", 9080): [("default", frozenset({("a", "1")}))], ("10.0.0.2", 9080): [("default", frozenset())]}
    assert lines(described(world(strict), two), "mTLS").count("port 9080 accepts mTLS only (STRICT)") == 1


SPOKEN = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  ports:
  - {number: 80, name: http-main, protocol: HTTP}
"""


def test_the_origin_of_a_protocol_is_where_it_was_declared() -> None:
    assert lines(described(world()), "Ports") == [
        "9080 http: HTTP, by metadata or tag protocol",
        "5000 tcp-db: TCP, by the port name",
    ]
    entry = described(world_of(SPOKEN), key=ServiceKey("web.test", "default"))
    assert lines(entry, "Ports") == ["80 http-main: HTTP, by protocol"]


def test_endpoints_that_clients_are_not_told_of_are_known_to_the_world() -> None:
    own = world()
    endpoints = (
        Endpoint("10.0.0.1", 9080, "http"),
        Endpoint("10.0.0.2", 9080, "http", workload="reviews-2", health=Health.UNLISTED),
    )
    own.apply([Upsert("consul", Endpoints(REVIEWS, endpoints))])
    assert [each.address for each in own.view.endpoints(REVIEWS)] == ["10.0.0.1"]
    assert [each.workload for each in own.unlisted_endpoints(REVIEWS)] == ["reviews-2"]
    own.apply([Upsert("consul", Endpoints(REVIEWS, endpoints[:1]))])
    assert own.unlisted_endpoints(REVIEWS) == ()
