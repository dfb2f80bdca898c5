"""Which routers have a Gateway of the Gateway API."""

from __future__ import annotations

from mesh_pilot.explain.plan.made_up import made_up_proxies
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.world import World
from tests.support.worlds import SOURCE, sidecar, world_of

GATEWAYS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: named, namespace: infra}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge.example.com}]
  listeners: [{name: http, port: 81, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: plain, namespace: other}
spec:
  selector: {app: edge}
  servers: [{port: {number: 82, name: http, protocol: HTTP}, hosts: ["*"]}]
"""


def gateways(world: World, *, namespace: str = "infra", **labels: str) -> list[str]:
    known = {name.replace("_", "-").replace("gateway-name", "gateway.networking.k8s.io/gateway-name"): value
             for name, value in labels.items()}  # fmt: skip
    router = sidecar("10.1.9.9", name="edge", namespace=namespace, labels=known, node_type="router")
    return [key.name.partition("~")[0] for key in proxy_keys(world.view, proxy_facts(router)).scope.gateways]


def test_a_gateway_is_for_the_routers_with_its_name_as_a_label_or_of_its_services() -> None:
    world = world_of(GATEWAYS)
    assert gateways(world) == []
    assert gateways(world, gateway_name="web") == ["web"]
    assert gateways(world, gateway_name="web", namespace="other") == []
    assert gateways(world, app="edge") == ["plain"]
    service = Service("edge.example.com", "infra", (Port(81, "http", Protocol.HTTP),), declared_by_users=False)
    world.apply([Upsert(SOURCE, service)])
    world.apply([Upsert(SOURCE, Endpoints(service.key, (Endpoint("10.1.9.9", 8081, "http"),)))])
    assert gateways(world) == ["named"]
    assert gateways(world, app="edge", gateway_name="web") == ["named", "plain", "web"]
    assert gateways(world, namespace="other") == [], "its namespace is the Gateway's"


def test_a_plan_makes_up_a_router_for_each_gateway() -> None:
    made = {each.proxy.name: each.proxy for each in made_up_proxies(world_of(GATEWAYS))}
    assert made["web.infra"].labels == {"gateway.networking.k8s.io/gateway-name": "web"}
    assert {"web.infra", "named.infra", "edge.other"} <= made.keys()
