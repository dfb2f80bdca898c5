"""Clusters on demand (ODCDS over ADS), with a real Envoy: it has those that requests went to, all works as ever."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, service, subsets, version
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]
NODE = attrs.evolve(CLIENT, metadata={"CLUSTERS": "on-demand"})


async def outbound(envoy: RealEnvoy) -> set[str]:
    """The clusters that Envoy has of services."""
    return {name for name in await envoy.dynamic("Cluster") if name.startswith("outbound|")}


async def answer(mesh: Fleet, port: int, host: str, path: str = "/") -> str:
    reply = await mesh.get(f"http://127.0.0.1:{port}{path}", host=host)
    return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)


@pytest.mark.smoke
async def test_a_request_brings_the_cluster_that_it_needs_and_no_other(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        hosts = [f"s{n}.test" for n in range(20)]
        await mesh.apply("".join(service(host, port, at(app)) for host in hosts))
        envoy = await mesh.envoy(NODE, delta=True)
        assert await outbound(envoy) == set()
        assert await answer(mesh, port, "s7.test") == "app", "the very first request is answered"
        assert await outbound(envoy) == {f"outbound|{port}||s7.test"}
        body = b"x" * 200_000
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host="s8.test", method="POST", content=body)
        assert reply.json()["name"] == "app"
        assert await outbound(envoy) == {f"outbound|{port}||s7.test", f"outbound|{port}||s8.test"}
        await mesh.assert_all_taken()


async def test_whatever_else_than_a_request_goes_to_is_there_beforehand(tmp_path: Path, free_ports: Ports) -> None:
    """Mirrors, TCP, and the service that declares nothing of its protocol."""
    port, tcp, auto = free_ports(3)
    async with fleet(tmp_path) as mesh:
        app, mirror, raw = await mesh.backend("app"), await mesh.backend("mirror"), await mesh.backend("raw")
        http = "- {route: [{destination: {host: app.test}}], mirror: {host: mirror.test}}"
        await mesh.apply(
            service("app.test", port, at(app))
            + service("mirror.test", port, at(mirror))
            + service("raw.test", tcp, at(raw), protocol="TCP")
            + service("auto.test", auto, at(raw), protocol="")
            + routes("app.test", http)
        )
        envoy = await mesh.envoy(NODE, delta=True)
        assert await outbound(envoy) == {
            f"outbound|{port}||mirror.test",
            f"outbound|{tcp}||raw.test",
            f"outbound|{auto}||auto.test",
        }
        assert await answer(mesh, port, "app.test") == "app"
        await eventually(lambda: mirror.asked("/") == 1, what="the copy is sent")
        assert await answer(mesh, tcp, "any") == "raw"
        await mesh.assert_all_taken()


async def test_routes_move_to_clusters_that_are_not_there_yet_without_a_failure(
    tmp_path: Path, free_ports: Ports
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        v1, v2 = await mesh.backend("v1"), await mesh.backend("v2")
        base = service("app.test", port, version("v1", v1), version("v2", v2)) + subsets("app.test", "v1", "v2")
        await mesh.apply(base)
        envoy = await mesh.envoy(NODE, delta=True)
        url = f"http://127.0.0.1:{port}/"
        async with mesh.load(url, host="app.test") as load:
            for names in (("v1",), ("v2",), ("v1", "v2")):
                parts = ", ".join(
                    f"{{destination: {{host: app.test, subset: {name}}}, weight: {100 // len(names)}}}"
                    for name in names
                )
                await mesh.apply(base + routes("app.test", f"- route: [{parts}]"))
                await mesh.until_answered_by(set(names), url, host="app.test")
            assert await outbound(envoy) >= {f"outbound|{port}|{name}|app.test" for name in ("v1", "v2")}
            # A subset goes at the same moment as the route to it.
            base = service("app.test", port, version("v1", v1), version("v2", v2)) + subsets("app.test", "v1")
            to_v1 = "- route: [{destination: {host: app.test, subset: v1}}]"
            await mesh.apply(base + routes("app.test", to_v1))
            await mesh.until_answered_by({"v1"}, url, host="app.test")

            async def gone() -> bool:
                return f"outbound|{port}|v2|app.test" not in await outbound(envoy)

            await eventually(gone, what="a subset that is gone has no cluster")
        assert load.failures == []
        await mesh.assert_all_taken()


async def test_what_is_not_there_is_refused_at_once_and_found_when_it_comes(
    tmp_path: Path, free_ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is answered within the limit below is then answered without waiting.
    monkeypatch.setattr(import_module("mesh_pilot.envoy.filters.on_demand"), "CLUSTER_TIMEOUT_SECONDS", 600)
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        base = service("app.test", port, version("v1", app))
        to_v9 = routes("app.test", "- route: [{destination: {host: app.test, subset: v9}}]")
        await mesh.apply(base + subsets("app.test", "v1") + to_v9)
        envoy = await mesh.envoy(NODE, delta=True)
        with trio.fail_after(60):
            assert await answer(mesh, port, "app.test") == "503"
        some = [{"name": name, "labels": {"version": "v1"}} for name in ("v1", "v9")]
        with_v9 = base + manifest("DestinationRule", "app-test", {"host": "app.test", "subsets": some}) + to_v9
        await mesh.apply(with_v9)

        async def found() -> bool:
            return await answer(mesh, port, "app.test") == "app"

        await eventually(found, what="the subset that came is used")
        assert await outbound(envoy) == {f"outbound|{port}|v9|app.test"}
        assert await envoy.rejected() == {}


async def test_an_envoy_that_comes_back_is_sent_nothing_and_goes_on(tmp_path: Path, free_ports: Ports) -> None:
    port, grpc = free_ports(2)
    address = f"127.0.0.1:{grpc}"
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    async with fleet(tmp_path) as backends:
        app = await backends.backend("app")
        services = service("app.test", port, at(app)) + service("other.test", port, at(app))
        node = attrs.evolve(NODE, metadata={**NODE.metadata, "VIRTUAL_HOSTS": "split"})
        async with fleet(old, services, grpc_addr=address):
            backends.plane_address = address
            envoy = await backends.envoy(node, delta=True)
            assert await answer(backends, port, "app.test") == "app"
        async with fleet(new, services, grpc_addr=address) as second:
            status = second.plane.state.xds.status

            async def back() -> bool:
                connected = status.connections()
                return bool(connected) and len(connected[0].types) >= 5

            await eventually(back, what="Envoy asks for what it has")
            assert await answer(backends, port, "app.test") == "app"
            assert not {CLUSTER, ENDPOINT, LISTENER, ROUTE} & status.statistics().pushes.keys()
            assert await answer(backends, port, "other.test") == "app"
            assert await outbound(envoy) == {f"outbound|{port}||app.test", f"outbound|{port}||other.test"}
        await backends.assert_all_taken()
