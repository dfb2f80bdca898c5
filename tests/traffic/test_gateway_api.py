"""The Gateway API without Kubernetes: requests reach what HTTPRoutes say, between services of a real Consul."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from string import Template

import attrs
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import Interception
from tests.support.consul import Consul, real_consul
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, service

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode(
    "edge-1", "default", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
SIDECAR = EnvoyNode("web-1", "default", "127.0.0.2", interception=Interception.NONE)
OBJECTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: istio
  listeners:
  - {name: http, port: $port, protocol: HTTP, hostname: "*.test"}
  - {name: other, port: $other, protocol: HTTP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: edge, sectionName: http}]
  hostnames: [shop.test]
  rules:
  - backendRefs: [{name: reviews, port: $called}]
  - matches: [{path: {value: /new}}]
    filters:
    - {type: URLRewrite, urlRewrite: {hostname: inside.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}
    backendRefs: [{name: canary, port: $called}]
  - matches: [{headers: [{name: X-User, value: tester}]}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: X-Seen, value: "100%"}], remove: [x-user]}
    - type: ResponseHeaderModifier
      responseHeaderModifier: {add: [{name: X-From, value: canary}]}
    backendRefs: [{name: canary, port: $called}]
  - matches: [{path: {value: /split}}]
    backendRefs: [{name: reviews, port: $called, weight: 4}, {name: canary, port: $called}]
  - matches: [{path: {value: /old}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {scheme: https, hostname: new.test, path: {type: ReplaceFullPath, replaceFullPath: /moved}}
  - matches: [{path: {value: /slow}}]
    timeouts: {request: 300ms}
    backendRefs: [{name: slow, port: $called}]
  - matches: [{path: {value: /mirrored}, method: POST}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: canary, port: $called}}}]
    backendRefs: [{group: networking.istio.io, kind: Hostname, name: reviews.service.consul, port: $called}]
  - matches: [{path: {value: /nowhere}}]
    backendRefs: [{name: absent, port: $called}]
  - matches: [{path: {value: /half}}]
    backendRefs: [{name: absent, port: $called}, {name: reviews, port: $called, weight: 0}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: exact, creationTimestamp: 2024-03-01T12:00:00Z}
spec:
  parentRefs: [{name: edge}]
  hostnames: [shop.test]
  rules:
  - matches: [{path: {type: Exact, value: /new/exact}}]
    backendRefs: [{name: reviews, port: $called}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: mesh}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews}]
  rules: [{backendRefs: [{name: canary, port: $called}]}]
"""


async def register(consul: Consul, backend: Backend, service: str, port: int) -> None:
    meta = {"protocol": "http", "service_port": str(port)}
    await consul.register(service, address=backend.host, port=backend.port, meta=meta)


@pytest.mark.smoke
async def test_requests_go_where_http_routes_say(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    port, other, called, *of_consul = free_ports(7)
    objects = Template(OBJECTS).substitute(port=port, other=other, called=called)
    async with real_consul(tmp_path, of_consul) as consul:
        registry = ConsulRegistry((ConsulSettings(agent=Agent(consul.address)),))
        async with fleet(tmp_path, objects, registries=(registry,)) as mesh:
            backends = {name: await mesh.backend(name) for name in ("reviews", "canary", "slow")}
            for name, backend in backends.items():
                await register(consul, backend, name, called)
            await mesh.envoy(EDGE)
            await mesh.envoy(SIDECAR)
            url = f"http://127.0.0.1:{port}"
            await mesh.until_answered_by({"reviews"}, f"{url}/", host="shop.test")
            await mesh.until_answered_by({"canary"}, f"{url}/new", host="shop.test")

            async def who(path: str, **headers: str) -> str:
                reply = await mesh.get(url + path, host="shop.test", headers=headers)
                return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)

            assert await who("/newer") == "reviews"
            assert await who("/new/exact") == "reviews"
            assert await who("/nowhere") == "500"
            assert await who("/half") == "500"
            assert await who("/mirrored") == "reviews"
            assert (await mesh.get(f"{url}/", host="other.test")).status_code == 404
            assert (await mesh.get(f"http://127.0.0.1:{other}/", host="shop.test")).status_code == 404
            exact = await mesh.get(f"http://127.0.0.1:{other}/new/exact", host="shop.test")
            assert exact.json()["name"] == "reviews"

            rewritten = (await mesh.get(f"{url}/new/things?a=b", host="shop.test")).json()
            assert (rewritten["path"], rewritten["headers"]["host"]) == ("/things?a=b", "inside.test")
            tester = await mesh.get(f"{url}/", host="shop.test", headers={"x-user": "tester"})
            assert (tester.json()["name"], tester.headers["x-from"]) == ("canary", "canary")
            assert tester.json()["headers"]["x-seen"] == "100%"
            assert "x-user" not in tester.json()["headers"]
            redirected = await mesh.get(f"{url}/old/thing", host="shop.test")
            assert (redirected.status_code, redirected.headers["location"]) == (302, "https://new.test/moved")

            backends["slow"].gate = trio.Event()
            assert await who("/slow") == "504"
            backends["slow"].gate.set()

            share = Counter([await who("/split") for _ in range(60)])
            assert 0 < share["canary"] < 30 < share["reviews"]
            posted = await mesh.get(f"{url}/mirrored", host="shop.test", method="POST")
            assert posted.json()["name"] == "reviews"
            await eventually(lambda: backends["canary"].asked("/mirrored") == 1)

            status = mesh.plane.state.world.object_status(ConfigKey("HTTPRoute", "default", "shop"))
            assert status is not None
            accepted, resolved = status["parents"][0]["conditions"]
            assert (accepted["type"], accepted["status"]) == ("Accepted", "True")
            assert (resolved["reason"], resolved["message"]) == (
                "BackendNotFound",
                "backend(absent.service.consul) not found",
            )
            # Of the route for a service, clients in its namespace or in the route's hear.
            await mesh.until_answered_by({"canary"}, f"http://127.0.0.1:{called}/", host="reviews.service.consul")
            await mesh.assert_all_taken()


SERVED = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: $port, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{kind: Hostname, group: networking.istio.io, name: app.test, port: 80}]}]
"""


async def test_a_gateway_of_files_alone_is_programmed_while_a_router_serves_it(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, Template(SERVED).substitute(port=port)) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(service("app.test", 80, at(app)), "app.yaml")
        web = f"http://{mesh.plane.addresses.http}"

        async def programmed() -> tuple[bool, list[str]]:
            found = (await mesh.client.get(f"{web}/api/v1/objects/KubernetesGateway/shop/edge")).json()["status"]
            status = {each["type"]: each["status"] for each in found["conditions"]}
            analyzed = (await mesh.client.get(f"{web}/api/v1/analysis")).json()["warnings"]
            assert ("MP0025" in {each["code"] for each in analyzed}) == (status["Programmed"] == "False")
            listed = (await mesh.client.get(f"{web}/debug/rejections")).json()["conditions"]
            return status["Programmed"] == "True", [each["reason"] for each in listed]

        none = "No router of namespace shop with its name as a label is connected [NoResources]"
        assert await programmed() == (False, [none])
        await mesh.envoy(attrs.evolve(EDGE, namespace="shop"))
        await mesh.until_answered_by({"app"}, f"http://127.0.0.1:{port}/", host="any.test")
        assert await programmed() == (True, [])
