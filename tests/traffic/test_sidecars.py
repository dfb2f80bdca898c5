"""Requests through real Envoys: they go where the YAML says, and change when it changes, without one that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.echo import Backend, greeting
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.mutual import STRICT, served_by_sidecar

pytestmark = pytest.mark.envoy

HOST = "reviews.example.com"
CLIENT = EnvoyNode("web", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
EDGE = EnvoyNode("edge", "shop", "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"})


def entry(port: int, *backends: tuple[str, Backend], protocol: str = "HTTP", host: str = HOST) -> str:
    endpoints = "".join(
        f"\n  - {{address: {b.host}, ports: {{main: {b.port}}}, labels: {{version: {version}}}}}"
        for version, b in backends
    )
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {host.split(".")[0]}, namespace: shop}}
spec:
  hosts: [{host}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: main, protocol: {protocol}}}]
  endpoints: {endpoints or "[]"}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {host.split(".")[0]}, namespace: shop}}
spec:
  host: {host}
  subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]
---"""


def split(v1: int, v2: int, *, gateways: str = "[mesh]", hosts: str = HOST) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [{hosts}]
  gateways: {gateways}
  http:
  - match: [{{uri: {{exact: /only-v2}}}}, {{uri: {{regex: "/v[2]/.*"}}}}]
    route: [{{destination: {{host: {HOST}, subset: v2}}}}]
  - route:
    - {{destination: {{host: {HOST}, subset: v1}}, weight: {v1}}}
    - {{destination: {{host: {HOST}, subset: v2}}, weight: {v2}}}
---"""


async def two_versions(mesh: Fleet) -> tuple[Backend, Backend]:
    return await mesh.backend("v1"), await mesh.backend("v2")


@pytest.mark.smoke
async def test_requests_follow_the_routes_and_none_fails_while_these_change(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await two_versions(mesh)
        services = entry(port, ("v1", v1), ("v2", v2))
        mesh.write(services + split(100, 0))
        await eventually(lambda: mesh.plane.state.world.statistics().services == 1)
        await mesh.envoy(CLIENT, delta=True)
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        assert set(await mesh.names(f"{url}only-v2", host=HOST)) == {"v2"}
        assert set(await mesh.names(f"{url}v2/x", host=HOST)) == {"v2"}
        async with mesh.load(url, host=HOST) as load:
            mesh.write(services + split(0, 100))
            await mesh.until_answered_by({"v2"}, url, host=HOST)
            mesh.write(services + split(50, 50))
            await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
            mesh.write(services)
            await mesh.until_answered_by({"v1", "v2"}, url, host=HOST)
            mesh.write(services + split(100, 0))
            await mesh.until_answered_by({"v1"}, url, host=HOST)
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_services_subsets_and_endpoints_come_and_go_under_load(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, other = free_ports(2)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await two_versions(mesh)
        third = await mesh.backend("third")
        mesh.write(entry(port, ("v1", v1)))
        await mesh.envoy(CLIENT, delta=True)
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        async with mesh.load(url, host=HOST) as load:
            mesh.write(entry(port, ("v1", v1), ("v2", v2)) + split(0, 100))
            await mesh.until_answered_by({"v2"}, url, host=HOST)
            mesh.write(entry(other, ("v1", third), host="third.example.com"), "third.yaml")
            await mesh.until_answered_by({"third"}, f"http://127.0.0.1:{other}/", host="third.example.com")
            mesh.write(entry(port, ("v1", v1), ("v2", v1)) + split(0, 100))
            await mesh.until_answered_by({"v1"}, url, host=HOST)
            (tmp_path / "config" / "third.yaml").unlink()
            envoy = mesh.envoys[0]

            async def third_is_gone() -> bool:
                return not any("third" in name for name in await envoy.dynamic("Cluster"))

            await eventually(third_is_gone)
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_tcp_connections_reach_the_service_and_follow_its_endpoints(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        one, two = await mesh.tcp_backend("one"), await mesh.tcp_backend("two")
        mesh.write(entry(port, ("v1", one), protocol="TCP"))
        await mesh.envoy(CLIENT, delta=True)
        assert await greeting("127.0.0.1", port) == "one"
        mesh.write(entry(port, ("v1", two), protocol="TCP"))

        async def moved() -> bool:
            return await greeting("127.0.0.1", port) == "two"

        await eventually(moved)
        await mesh.assert_all_taken()


SERVER = EnvoyNode("reviews", "shop", "127.0.0.4", labels={"app": "reviews"}, interception=Interception.NONE)


@pytest.mark.smoke
async def test_sidecars_speak_mutual_tls_to_each_other_and_hand_on_to_the_app(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, target = free_ports(2)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        mesh.write(served_by_sidecar(port, target, app) + STRICT)
        server = EnvoyNode(
            SERVER.name, SERVER.namespace, SERVER.ip, labels=SERVER.labels, interception=SERVER.interception,
            metadata={"SERVICE_ACCOUNT": "reviews"},
        )  # fmt: skip
        await mesh.envoy(server, delta=True)
        await mesh.envoy(CLIENT, delta=True)
        url = f"http://127.0.0.1:{port}/hello"
        await mesh.until_answered_by({"app"}, url, host=HOST)
        peer = app.seen[-1]["headers"]["x-forwarded-client-cert"]
        assert "By=spiffe://cluster.local/ns/shop/sa/reviews" in peer
        assert "URI=spiffe://cluster.local/ns/shop/sa/default" in peer
        with trio.fail_after(60):
            assert await mesh_refuses_plaintext(mesh, f"http://127.0.0.4:{target}/")
        await mesh.assert_all_taken()


async def mesh_refuses_plaintext(mesh: Fleet, url: str) -> bool:
    try:
        await mesh.get(url, host=HOST)
    except Exception as error:
        return "disconnected" in str(error) or "reset" in str(error).lower()
    return False


GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec:
  selector: {{istio: edge}}
  servers: [{{port: {{number: {port}, name: http, protocol: HTTP}}, hosts: ["shop.example.com"]}}]
---"""


async def test_a_gateway_serves_its_hosts_and_follows_its_virtual_service(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, edge = free_ports(2)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await two_versions(mesh)
        fixed = entry(port, ("v1", v1), ("v2", v2)) + GATEWAY.format(port=edge)
        bound = {"gateways": "[edge]", "hosts": "shop.example.com"}
        mesh.write(fixed + split(100, 0, **bound))
        await mesh.envoy(EDGE, delta=True)
        url = f"http://127.0.0.1:{edge}/"
        await mesh.until_answered_by({"v1"}, url, host="shop.example.com")
        assert (await mesh.get(url, host="other.example.com")).status_code == 404
        async with mesh.load(url, host="shop.example.com") as load:
            mesh.write(fixed + split(0, 100, **bound))
            await mesh.until_answered_by({"v2"}, url, host="shop.example.com")
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_bad_yaml_is_refused_and_traffic_goes_on(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await two_versions(mesh)
        services = entry(port, ("v1", v1), ("v2", v2))
        mesh.write(services + split(100, 0))
        await mesh.envoy(CLIENT)
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"v1"}, url, host=HOST)
        async with mesh.load(url, host=HOST) as load:
            mesh.write(services + split(0, 100).replace("weight: 0", "weight: -1"))
            await eventually(lambda: len(mesh.plane.state.world.rejections()) == 1)
            (rejected,) = mesh.plane.state.world.rejections()
            assert rejected.problems[0].path == "spec.http[1].route[0].weight"
            assert rejected.problems[0].line > rejected.origin.line > 0
            mesh.write(services + split(0, 100))
            await mesh.until_answered_by({"v2"}, url, host=HOST)
            assert mesh.plane.state.world.rejections() == ()
        assert load.failures == []


async def test_a_restarted_control_plane_is_found_again_and_traffic_never_stops(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """Envoy keeps what it has while the control plane is away, and is sent what changed meanwhile."""
    port, grpc = free_ports(2)
    async with fleet(tmp_path) as outer:
        v1, v2 = await two_versions(outer)
        (tmp_path / "inner").mkdir()
        services = entry(port, ("v1", v1), ("v2", v2))
        async with fleet(tmp_path / "inner", services + split(100, 0), grpc_addr=f"127.0.0.1:{grpc}") as mesh:
            outer.plane_address = mesh.plane.addresses.grpc
            await outer.envoy(CLIENT, delta=True)
            url = f"http://127.0.0.1:{port}/"
            await outer.until_answered_by({"v1"}, url, host=HOST)
        async with outer.load(url, host=HOST) as load:
            (tmp_path / "again").mkdir()
            async with fleet(tmp_path / "again", services + split(0, 100), grpc_addr=f"127.0.0.1:{grpc}"):
                await outer.until_answered_by({"v2"}, url, host=HOST)
                await outer.assert_all_taken()
        assert load.failures == []
