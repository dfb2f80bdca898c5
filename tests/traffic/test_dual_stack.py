"""Proxies with addresses of both IP versions are asked over either, and reach workloads over either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.consul import real_consul
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

HOST = "app.test"
BOTH = ("127.0.0.1", "[::1]")
EDGE = EnvoyNode("edge", "shop", "127.0.0.1", NodeType.ROUTER, labels={"istio": "edge"}, other_ip="::1")
CLIENT = EnvoyNode("web", "shop", labels={"app": "web"}, interception=Interception.NONE, other_ip="::1")


def entry(port: int, backend: Backend) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: app, namespace: shop}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints: [{{address: {backend.host}, ports: {{http: {backend.port}}}}}]
---"""


def edge(port: int, servers: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec:
  selector: {{istio: edge}}
  servers: {servers.replace("PORT", f"number: {port}, protocol: HTTP")}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: app, namespace: shop}}
spec:
  hosts: [{HOST}]
  gateways: [edge]
  http: [{{route: [{{destination: {{host: {HOST}}}}}]}}]
---"""


async def answers(mesh: Fleet, port: int, host: str = HOST) -> list[bool]:
    """True where there is an answer: over IPv4, and over IPv6."""
    found = []
    for address in BOTH:
        try:
            found.append((await mesh.get(f"http://{address}:{port}/", host=host)).status_code == 200)
        except httpx.ConnectError:
            found.append(False)
    return found


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (EDGE, [True, True]),
        (attrs.evolve(EDGE, ip="::1", other_ip="127.0.0.1"), [True, True]),
        (attrs.evolve(EDGE, other_ip=""), [True, False]),
        (attrs.evolve(EDGE, ip="::1", other_ip=""), [False, True]),
    ],
    ids=["both", "IPv6 first", "IPv4 alone", "IPv6 alone"],
)
async def test_a_gateway_is_asked_at_addresses_of_its_ip_versions(
    tmp_path: Path, free_ports: Ports, node: EnvoyNode, expected: list[bool]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app", host="::1" if node.ip == "::1" else "127.0.0.1")
        await mesh.apply(entry(80, app) + edge(port, "[{port: {name: http, PORT}, hosts: ['*']}]"))
        await mesh.envoy(node)

        async def is_as_expected() -> bool:
            return await answers(mesh, port) == expected

        await eventually(is_as_expected, what=f"answers are {expected}")


async def test_a_server_at_an_ipv6_address_of_its_own_stays_beside_one_at_any_address(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    servers = "[{port: {name: any, PORT}, hosts: ['*']}, {port: {name: own, PORT}, bind: '::', hosts: ['*']}]"
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(entry(80, app) + edge(port, servers))
        envoy = await mesh.envoy(EDGE)

        async def both() -> bool:
            return await answers(mesh, port) == [True, True]

        await eventually(both, what="both are answered")
        assert await envoy.rejected() == {}


async def test_an_application_asks_its_sidecar_at_either_loopback_address(tmp_path: Path, free_ports: Ports) -> None:
    port, proxy = free_ports(2)
    async with fleet(tmp_path, mesh=f"proxyHttpPort: {proxy}") as mesh:
        app = await mesh.backend("app")
        await mesh.apply(entry(port, app))
        await mesh.envoy(CLIENT)

        async def both() -> bool:
            return await answers(mesh, port) == await answers(mesh, proxy, f"{HOST}:{port}") == [True, True]

        await eventually(both, what="both are answered")


@pytest.mark.parametrize("first", ["127.0.0.1", "::1"])
async def test_an_instance_of_consul_with_both_addresses_is_reached_at_the_one_that_answers(
    tmp_path: Path, free_ports: Ports, first: str
) -> None:
    (port,) = free_ports(1)
    other, tag = ("::1", "lan_ipv6") if first == "127.0.0.1" else ("127.0.0.1", "lan_ipv4")
    async with real_consul(tmp_path, free_ports(4)) as consul:
        registry = ConsulRegistry((ConsulSettings(agent=Agent(consul.address)),))
        async with fleet(tmp_path, registries=(registry,)) as mesh:
            app = await mesh.backend("app", host=other)
            meta = {"protocol": "http", "service_port": str(port)}
            tagged = {tag: {"Address": other, "Port": app.port}}
            await consul.register("app", address=first, port=app.port, meta=meta, TaggedAddresses=tagged)
            await mesh.envoy(CLIENT)

            async def both() -> bool:
                return await answers(mesh, port, "app.service.consul") == [True, True]

            await eventually(both, what="both are answered")
