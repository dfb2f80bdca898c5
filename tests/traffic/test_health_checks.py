"""HealthChecks at work in a real Envoy: endpoints that fail are left out before a request fails, and come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.net.rpc.services import HealthService
from tests.rpc.rpc_support import serving
from tests.support.backends import Mesh, backends, unretried
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import fleet
from tests.support.guarded import HOST, deny, guarded
from tests.support.manifests import at, manifest, rule, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

WEB = "cluster.local/ns/shop/sa/web"
Ports = Callable[[int], list[int]]

OFTEN = "interval: 0.05s, noTrafficInterval: 0.05s, timeout: 1s, healthyThreshold: 1, unhealthyThreshold: 2"


def check(host: str, spec: str, **more: str) -> str:
    return manifest("HealthCheck", host.replace(".", "-"), f"{{host: {host}, {spec}, {OFTEN}}}", **more)


async def test_endpoints_that_fail_their_checks_are_left_out_and_come_back(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "good", "bad") as (mesh, (good, bad)):
        http = "http: {path: /health, host: checked.test, headers: {x-check: 'yes'}, expectedStatuses: [200-204]}"
        config = "".join(service(host, port, at(good), at(bad)) + unretried(host) for host in ("a.test", "b.test"))
        config += rule("b.test", "outlierDetection: {consecutive5xxErrors: 5, minHealthPercent: 60}")
        config += check("a.test", http) + check("b.test", http)
        await mesh.apply(config)
        envoy = await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        assert set(await one.names("a.test", 20)) == {"good", "bad"}
        asked = next(request for request in good.seen if request["path"] == "/health")
        assert (asked["headers"]["host"], asked["headers"]["x-check"]) == ("checked.test", "yes")

        bad.answer = lambda request, body: (500 if request.target == b"/health" else 200, {})
        await one.until_only("a.test", "good")
        assert set(await one.names("b.test", 20)) == {"good", "bad"}, "50 % is below its minHealthPercent"
        assert await failing(envoy, "a.test") == [f"{bad.host}:{bad.port}"]
        bad.answer = None

        async def both() -> bool:
            return set(await one.names("a.test", 20)) == {"good", "bad"}

        await eventually(both, what="the endpoint is back")

        good.answer = bad.answer = lambda request, body: (404, {})

        async def none() -> bool:
            return set(await one.names("a.test", 4)) == {"503"}

        await eventually(none, what="no endpoint is healthy, and none is used")
        await mesh.apply(config.replace(check("a.test", http), ""))
        good.answer = bad.answer = None
        await eventually(both, what="without checks all are used")


async def failing(envoy: RealEnvoy, host: str) -> list[str]:
    """The endpoints of a host that fail active checks."""
    clusters = (await envoy.get("/clusters?format=json")).json()["cluster_statuses"]
    return [
        f"{status['address']['socket_address']['address']}:{status['address']['socket_address']['port_value']}"
        for cluster in clusters
        if cluster["name"].endswith(f"||{host}")
        for status in cluster.get("host_statuses", ())
        if status["health_status"].get("failed_active_health_check")
    ]


async def test_what_a_registry_takes_out_is_out_though_it_is_healthy(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "stays", "goes", "comes") as (mesh, (stays, goes, comes)):
        checked = check("a.test", "http: {path: /}") + unretried("a.test")
        await mesh.apply(service("a.test", port, at(stays), at(goes)) + checked)
        await mesh.envoy(CLIENT)
        one = Mesh(mesh, port)
        assert set(await one.names("a.test", 20)) == {"stays", "goes"}
        await mesh.apply(service("a.test", port, at(stays), at(comes)) + checked)

        async def changed() -> bool:
            return set(await one.names("a.test", 20)) == {"stays", "comes"}

        await eventually(changed, what="the endpoints are the registry's")


async def test_tcp_services_are_checked_by_what_they_say(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path) as (mesh, _):
        good, bad = [await mesh.tcp_backend(name, host=f"127.0.1.{i}") for i, name in enumerate(("good", "bad"), 1)]
        config = service("a.test", port, at(good), at(bad), protocol="TCP", addresses=["127.0.9.1"])
        await mesh.apply(config + check("a.test", "tcp: {send: hello, receive: good}"))
        envoy = await mesh.envoy(CLIENT)

        async def found() -> bool:
            return await failing(envoy, "a.test") == [f"{bad.host}:{bad.port}"]

        await eventually(found, what="who says something else is out")
        await mesh.apply(config + check("a.test", "tcp: {}"))

        async def connects() -> bool:
            return await failing(envoy, "a.test") == []

        await eventually(connects, what="a connection is enough")


async def test_grpc_services_are_asked_for_their_health(tmp_path: Path, free_ports: Ports) -> None:
    port, http = free_ports(2)
    health = HealthService()
    health.set("shop.Catalog", True)
    async with serving(health) as server, fleet(tmp_path) as mesh:
        host, number = server.addresses[0].rsplit(":", 1)
        backend = at(Backend("catalog", host, int(number)))
        config = service("grpc.test", port, backend, protocol="GRPC") + service("http.test", http, backend)
        config += check("grpc.test", "grpc: {serviceName: shop.Catalog}, logEvents: true, alwaysLogFailures: true")
        await mesh.apply(config + check("http.test", "grpc: {}"))
        envoy = await mesh.envoy(CLIENT)
        clusters = await envoy.dynamic("Cluster")
        assert {name: "health_checks" in c for name, c in clusters.items() if name.endswith(".test")} == {
            f"outbound|{port}||grpc.test": True,
            f"outbound|{http}||http.test": False,
        }, "a service without HTTP/2 cannot be asked"
        assert await failing(envoy, "grpc.test") == []
        health.set("shop.Catalog", False)

        async def is_out() -> bool:
            return await failing(envoy, "grpc.test") == [f"{host}:{number}"]

        await eventually(is_out, what="it says that it does not serve")
        health.set("shop.Catalog", True)

        async def is_back() -> bool:
            return await failing(envoy, "grpc.test") == []

        await eventually(is_back, what="it serves again")
        await mesh.assert_all_taken()


@pytest.mark.smoke
async def test_checks_go_through_the_mtls_of_the_mesh(tmp_path: Path, free_ports: Ports) -> None:
    """They come as the client's identity, and what policies say of that is said of them."""
    denied = deny(
        "checks", f'[{{from: [{{source: {{principals: ["{WEB}"]}}}}], to: [{{operation: {{paths: [/no]}}}}]}}]'
    )
    async with guarded(tmp_path, free_ports(4), denied) as guard:
        assert await guard.ask() == 200
        for path, status in (("/no", 503), ("/yes", 200)):
            await guard.apply(denied, check(HOST, f"http: {{path: {path}}}"))

            async def found(status: int = status) -> bool:
                return await guard.ask() == status

            await eventually(found, what=f"checks of {path} are answered")
