"""Sidecars and policies that were suggested of traffic, applied to real Envoys: what was called still works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.traffic.server import reporting_proxy
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.guarded import HOST, guarded
from tests.support.manifests import at, manifest, service
from tests.support.shop import CLIENT
from tests.support.traffic_counts import row

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


async def command(mesh: Fleet, *arguments: str) -> Done:
    """A command of the control plane's; what the plane itself logs is apart."""
    pilot = ("--pilot", mesh.plane.addresses.http or "")
    return await trio.to_thread.run_sync(lambda: mesh_pilot(*arguments, *pilot))


def count(mesh: Fleet, name: str, *clusters: str) -> None:
    """Have the proxy of a name report that it used clusters."""
    traffic = mesh.plane.state.traffic
    assert traffic is not None
    (proxy,) = (each.proxy for each in mesh.plane.state.xds.status.proxies() if each.proxy and each.proxy.name == name)
    traffic.table.add(reporting_proxy(proxy), [row(cluster, requests=9) for cluster in clusters], of_agent=True)


async def test_what_was_called_still_works_and_nothing_else_is_reached(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    front = manifest(
        "VirtualService", "front", "hosts: [front.test]\nhttp: [{route: [{destination: {host: near.test}}]}]"
    )
    registry_only = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"
    async with fleet(tmp_path, mesh=registry_only, traffic_reports=1.0) as mesh:
        near, far, other = [await mesh.backend(name) for name in ("near", "far", "other")]
        services = (
            service("near.test", port, at(near))
            + service("front.test", port, at(other))
            + service("far.test", port, at(far), namespace="bank")
            + service("other.test", port, at(other), namespace="bank")
            + front
        )
        await mesh.apply(services)
        envoy = await mesh.envoy(CLIENT, delta=True)
        name = f"{CLIENT.name}.{CLIENT.namespace}"
        url = f"http://127.0.0.1:{port}/"

        async def are_counted() -> bool:
            assert set(await mesh.names(url, host="front.test", count=2)) == {"near"}
            assert set(await mesh.names(url, host="far.test", count=2)) == {"far"}
            traffic = mesh.plane.state.traffic
            assert traffic is not None
            called = {f"outbound|{port}||near.test", f"outbound|{port}||far.test"}
            return called <= {edge.name for edge in traffic.table.edges()}

        await eventually(are_counted, what="Envoy's load reports tell both clusters")
        found = json.loads((await command(mesh, "suggest", "sidecars", "-o", "json")).out)
        (suggested,) = found["objects"]
        assert suggested["object"]["spec"]["egress"] == [{"hosts": ["./front.test", "./near.test", "bank/far.test"]}]
        cost = suggested["cost"]
        assert cost["after"]["bytes"] < cost["before"]["bytes"]
        assert (cost["proxy"], cost["lost"]) == (name, [])
        assert found["warnings"][0].startswith("Traffic has been counted for ")

        written = await command(mesh, "suggest", "sidecars", "-n", CLIENT.namespace)
        assert f"# {name}: listeners" in written.out
        assert "    - ./front.test  # VirtualService/shop/front routes to near.test" in written.out
        file = tmp_path / "suggested.yaml"
        file.write_text(written.out)
        planned = await command(mesh, "plan", str(file))
        assert planned.code == 0, planned
        assert "Objects: 1 to add" in planned.out

        async with mesh.load(url, host="front.test") as load:
            await mesh.apply(written.out, "suggested.yaml")

            async def gone() -> bool:
                return f"outbound|{port}||other.test" not in await envoy.dynamic("Cluster")

            await eventually(gone, what="the cluster that was not used goes")
        assert load.failures == []
        answers = {host: set(await mesh.names(url, host=f"{host}.test", count=2)) for host in ("near", "far", "other")}
        assert answers == {"near": {"near"}, "far": {"far"}, "other": {"502"}}
        again = json.loads((await command(mesh, "suggest", "sidecars", "-o", "json")).out)
        assert [each["reason"] for each in again["skipped"]] == ["Sidecar/shop/web selects it already"]
        await mesh.assert_all_taken()


async def test_callers_that_were_seen_are_admitted_and_others_are_not(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4)) as guard:
        assert (await guard.ask(), await guard.ask(plain=True)) == (200, 200)
        count(guard.mesh, "web.shop", f"outbound|{guard.http}||{HOST}")
        count(guard.mesh, "front.shop", f"inbound|{guard.own_http}||")
        written = await command(guard.mesh, "suggest", "policies")
        assert "- cluster.local/ns/shop/sa/web" in written.out, written
        assert "stays open" not in written.out
        await guard.apply(written.out)
        assert (await guard.ask(), await guard.ask(plain=True)) == (200, 403)
        assert await guard.connect() == ""
        await guard.mesh.assert_all_taken()
