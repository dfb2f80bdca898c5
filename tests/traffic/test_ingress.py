"""An Ingress without Kubernetes: a real Envoy leads requests by its hosts and paths, as soon as it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import Template

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from tests.support.fleet import fleet
from tests.support.manifests import at, service

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode("edge-1", "istio-system", "127.0.0.3", type="router", labels={"istio": "ingressgateway"})
INGRESS = """
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop, annotations: {kubernetes.io/ingress.class: $of}}
spec:
  rules:
  - host: shop.test
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: one, port: {number: 80}}}}
      - {path: /two, pathType: Prefix, backend: {service: {name: two, port: {name: main}}}}
      - {path: /two/exact, pathType: Exact, backend: {service: {name: one, port: {number: 80}}}}
"""


@pytest.mark.smoke
async def test_requests_go_where_an_ingress_says(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    # The router's own service: it listens at the target of port 80.
    ports = [{"number": 80, "name": "main", "protocol": "HTTP", "targetPort": port}]
    edge = service("edge.test", 80, {"address": EDGE.ip}, ports=ports, namespace="istio-system")
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.backend("one"), await mesh.backend("two")
        services = edge + "".join(
            service(f"{name}.shop.svc.cluster.local", 80, at(backend)) for name, backend in (("one", one), ("two", two))
        )
        await mesh.apply(services + Template(INGRESS).substitute(of="istio"))
        await mesh.envoy(EDGE)
        url = f"http://127.0.0.1:{port}"
        await mesh.until_answered_by({"one"}, f"{url}/", host="shop.test")

        async def who(path: str, host: str = "shop.test") -> str:
            reply = await mesh.get(url + path, host=host)
            return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)

        found = [await who(path) for path in ("/two", "/two/more", "/twofold", "/two/exact")]
        assert found == ["two", "two", "one", "one"]
        assert await who("/", "other.test") == "404"
        await mesh.apply(services + Template(INGRESS).substitute(of="nginx"))
        assert not mesh.plane.state.world.configs_of.peek("Gateway")
        mesh.assert_nothing_refused()
