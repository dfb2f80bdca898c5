"""Config entries and intentions of a real Consul, carried out by real Envoys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.consul import Consul, real_consul
from tests.support.echo import Backend
from tests.support.envoy import eventually
from tests.support.fleet import fleet

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.usefixtures("each_consul")]

CLIENT = EnvoyNode("web", "default", "127.0.0.2", interception=Interception.NONE)
MESH = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"
HOST = "shop.service.consul"
SERVER = "127.0.0.6"

DRAIN = ("--drain-time-s", "45", "--drain-strategy", "immediate")
"""A connection that is kept alive carries one more request at most once a policy has changed; else it is a draw."""

Ports = Callable[[int], list[int]]


@pytest.fixture
async def consul(tmp_path: Path, free_ports: Ports) -> AsyncIterator[Consul]:
    async with real_consul(tmp_path, free_ports(4), config={"connect": {"enabled": True}}) as agent:
        yield agent


def registries(consul: Consul) -> tuple[ConsulRegistry, ...]:
    timing = ConsulTiming(hold_seconds=0.3)
    return (ConsulRegistry((ConsulSettings(agent=Agent(consul.address), mesh=True, timing=timing),)),)


async def write(consul: Consul, kind: str, name: str, **entry: Any) -> None:
    await consul.ask("PUT", "/v1/config", json={"Kind": kind, "Name": name, **entry})


async def put(consul: Consul, name: str, backend: Backend, port: int, **meta: str) -> None:
    """Register a backend as an instance, with a sidecar of Consul's own next to it."""
    sidecar = {"sidecar_service": {"Port": 1}}
    await consul.register(
        name,
        id=backend.name,
        address=backend.host,
        port=backend.port,
        meta={"service_port": str(port), **meta},
        Connect=sidecar,
    )


async def test_routers_splitters_and_resolvers_route_requests(
    tmp_path: Path, free_ports: Ports, consul: Consul
) -> None:
    port, admin_port, old_port = free_ports(3)
    url = f"http://127.0.0.1:{port}"
    await write(consul, "proxy-defaults", "global", Config={"protocol": "http"})
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul), guard=None) as mesh:
        for version in ("v1", "v2"):
            await put(consul, "shop", await mesh.backend(version), port, version=version)
        await put(consul, "admin", await mesh.backend("admin"), admin_port)
        subsets = {name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")}
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        await write(consul, "service-resolver", "shop", DefaultSubset="v1", Subsets=subsets, ConnectTimeout="3s")
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        splits = [{"Weight": 50, "ServiceSubset": "v1"}, {"Weight": 50, "ServiceSubset": "v2"}]
        await write(consul, "service-splitter", "shop", Splits=splits)
        await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
        routes = [
            {
                "Match": {"HTTP": {"PathPrefix": "/admin", "Header": [{"Name": "x-staff", "Present": True}]}},
                "Destination": {"Service": "admin", "PrefixRewrite": "/rewritten", "RequestTimeout": "7s"},
            },
            {"Match": {"HTTP": {"PathExact": "/old"}}, "Destination": {"ServiceSubset": "v1"}},
        ]
        await write(consul, "service-router", "shop", Routes=routes)
        await mesh.until_answered_by({"v1"}, f"{url}/old", host=HOST)
        staff = {"x-staff": "1"}

        async def is_rewritten() -> bool:
            reply = await mesh.get(f"{url}/admin/x", host=HOST, headers=staff)
            return reply.status_code == 200 and (reply.json()["name"], reply.json()["path"]) == (
                "admin",
                "/rewritten/x",
            )

        # The split may have chosen v1 by chance until now, and the catalog may tell of admin after the router.
        await eventually(is_rewritten, what="the router's rule for admin is in force")
        await mesh.until_answered_by({"v1", "v2"}, f"{url}/admin/x", host=HOST)
        await write(consul, "service-resolver", "old-shop", Redirect={"Service": "shop", "ServiceSubset": "v2"})
        await put(consul, "old-shop", await mesh.backend("old"), old_port)
        await mesh.until_answered_by({"v2"}, f"http://127.0.0.1:{old_port}", host="old-shop.service.consul")
        await mesh.apply(_USERS)
        await mesh.until_answered_by({"v2"}, f"{url}/old", host=HOST)
        (tmp_path / "config" / "config.yaml").unlink()
        await mesh.until_answered_by({"v1"}, f"{url}/old", host=HOST)
        for name in (
            "service-router/shop",
            "service-splitter/shop",
            "service-resolver/old-shop",
            "service-resolver/shop",
        ):
            await consul.ask("DELETE", f"/v1/config/{name}")
        await mesh.until_answered_by({"v1", "v2"}, f"{url}/old", host=HOST)
        await mesh.assert_all_taken()


_USERS = f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: mine}}
spec:
  hosts: [{HOST}]
  http: [{{route: [{{destination: {{host: {HOST}, subset: v2}}}}]}}]
"""


@pytest.mark.parametrize("api", ["istio", "gateway"])
async def test_a_gateway_follows_routers_splitters_and_resolvers(
    tmp_path: Path, free_ports: Ports, consul: Consul, api: str
) -> None:
    port, admin_port, edge_port = free_ports(3)
    url = f"http://127.0.0.1:{edge_port}"
    await write(consul, "proxy-defaults", "global", Config={"protocol": "http"})
    subsets = {name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")}
    async with fleet(tmp_path, mesh=MESH, registries=registries(consul), guard=None) as mesh:
        await mesh.apply(
            (_ISTIO_EDGE if api == "istio" else _GATEWAY_API_EDGE)
            .replace("$port", str(edge_port))
            .replace("$shop", str(port))
        )
        for version in ("v1", "v2"):
            await put(consul, "shop", await mesh.backend(version), port, version=version)
        await put(consul, "admin", await mesh.backend("admin"), admin_port)
        labels = {"istio": "edge", "gateway.networking.k8s.io/gateway-name": "edge"}
        await mesh.envoy(EnvoyNode("edge", "default", "127.0.0.3", NodeType.ROUTER, labels=labels))
        await mesh.until_answered_by({"v1", "v2"}, url, host="edge.test")
        await write(consul, "service-resolver", "shop", DefaultSubset="v1", Subsets=subsets)
        await mesh.until_answered_by({"v1"}, url, host="edge.test")
        splits = [{"Weight": 50, "ServiceSubset": "v2"}, {"Weight": 50, "Service": "admin"}]
        await write(consul, "service-splitter", "shop", Splits=splits)
        await mesh.until_answered_by({"v2", "admin"}, url, host="edge.test")
        routes = [{"Match": {"HTTP": {"PathPrefix": "/admin"}}, "Destination": {"Service": "admin"}}]
        await write(consul, "service-router", "shop", Routes=routes)
        await mesh.until_answered_by({"admin"}, f"{url}/admin", host="edge.test")
        await consul.ask("DELETE", "/v1/config/service-router/shop")
        await consul.ask("DELETE", "/v1/config/service-splitter/shop")
        await write(consul, "service-resolver", "shop", Redirect={"Service": "admin"})
        await mesh.until_answered_by({"admin"}, url, host="edge.test")
        await mesh.assert_all_taken()


_ISTIO_EDGE = f"""
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  selector: {{istio: edge}}
  servers: [{{port: {{number: $port, name: http, protocol: HTTP}}, hosts: ["*"]}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: edge}}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{{route: [{{destination: {{host: {HOST}}}}}]}}]
"""

_GATEWAY_API_EDGE = f"""
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: istio}}
spec: {{controllerName: istio.io/gateway-controller}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: istio
  listeners: [{{name: http, port: $port, protocol: HTTP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: edge}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{group: networking.istio.io, kind: Hostname, name: {HOST}, port: $shop}}]}}]
"""


@pytest.mark.usefixtures("newest_consul")
async def test_defaults_of_upstreams_and_virtual_names_of_services_in_consuls_mesh(
    tmp_path: Path, free_ports: Ports
) -> None:
    """Consul has ``UpstreamConfig`` since 1.10, and virtual addresses for the services of its mesh since 1.11."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    async with (
        real_consul(tmp_path, free_ports(4), config={"connect": {"enabled": True}}) as consul,
        fleet(tmp_path, mesh=MESH, registries=registries(consul), guard=None) as mesh,
    ):
        await write(consul, "proxy-defaults", "global", Config={"protocol": "http"})
        await put(consul, "shop", await mesh.backend("app"), port)
        await consul.register("web", address=CLIENT.ip, port=1, meta={"service_port": "1"})
        envoy = await mesh.envoy(CLIENT)
        for host in (HOST, "shop.virtual.consul"):
            await mesh.until_answered_by({"app"}, url, host=host)
        defaults = {"Defaults": {"ConnectTimeoutMs": 1234, "Limits": {"MaxConnections": 77}}}
        await write(consul, "service-defaults", "web", Protocol="http", UpstreamConfig=defaults)

        async def is_so() -> bool:
            cluster = (await envoy.dynamic("Cluster"))[f"outbound|{port}||{HOST}"]
            limits = cluster["circuit_breakers"]["thresholds"][0]
            return bool(cluster["connect_timeout"] == "1.234s" and limits["max_connections"] == 77)

        await eventually(is_so, what="the settings for web's upstreams are in force")
        await mesh.until_answered_by({"app"}, url, host=HOST)
        await mesh.assert_all_taken()


async def test_intentions_let_callers_in_or_not(tmp_path: Path, free_ports: Ports, consul: Consul) -> None:
    port, own = free_ports(2)
    await write(consul, "proxy-defaults", "global", Config={"protocol": "http"})
    async with fleet(tmp_path, registries=registries(consul), guard=None) as mesh:
        await mesh.apply(_CALLS_NOBODY)
        app = await mesh.backend("app", port=own)
        await put(consul, "shop", attrs.evolve(app, host=SERVER), port, tls_mode="istio")
        for name, ip in (("shop", SERVER), ("web", "127.0.0.2")):
            node = EnvoyNode(name, "default", ip, labels={"app": name}, interception=Interception.NONE)
            await mesh.envoy(attrs.evolve(node, metadata={"SERVICE_ACCOUNT": name}), flags=DRAIN)

        async def asked(expected: int) -> None:
            async def is_so() -> bool:
                return (await mesh.get(f"http://127.0.0.1:{port}/", host=HOST)).status_code == expected

            await eventually(is_so, what=f"the answer is {expected}")

        await asked(200)
        made = await intend(consul, "web", "shop", "deny")
        await asked(403)
        await consul.ask("DELETE", f"/v1/connect/intentions/{made}")
        await asked(200)
        await intend(consul, "*", "*", "deny")
        await asked(403)
        await intend(consul, "web", "shop", "allow")
        await asked(200)
        await mesh.assert_all_taken()


_CALLS_NOBODY = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: shop, namespace: default}
spec:
  workloadSelector: {labels: {app: shop}}
  egress: [{hosts: ["~/*"]}]
"""
"""Both Envoys are on one machine. Without it each listens where applications call the service, and either answers."""


async def intend(consul: Consul, source: str, destination: str, action: str) -> str:
    body = {"SourceName": source, "DestinationName": destination, "SourceType": "consul", "Action": action}
    reply = await consul.ask("POST", "/v1/connect/intentions", json=body)
    identifier: str = reply.json()["ID"]
    return identifier
