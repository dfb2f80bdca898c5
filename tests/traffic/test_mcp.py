"""Traffic through a real Envoy whose control plane has no configuration but what it reads from another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.app.control_plane import ControlPlane
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.planes import running_plane
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


def drinks(origin: Fleet, plane: ControlPlane) -> Fleet:
    """The tools of a fleet, with Envoys started from now on connected to another control plane."""
    origin.plane_address = plane.addresses.grpc
    return origin


@pytest.mark.smoke
@pytest.mark.parametrize(("path", "delta"), [("{}", True), ("xds://{}", False)])
async def test_an_envoy_follows_what_its_plane_reads_over_mcp(
    tmp_path: Path, free_ports: Ports, path: str, delta: bool
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, mesh="outboundTrafficPolicy: {mode: REGISTRY_ONLY}") as origin:
        one, two = await origin.backend("one"), await origin.backend("two")
        await origin.apply(service("first.test", port, at(one)) + service("second.test", port, at(two)))
        address = origin.plane.addresses.grpc
        async with running_plane(mcp_servers=(path.format(address),), debounce_after=0.02) as plane:
            mesh = drinks(origin, plane)
            await mesh.envoy(CLIENT, delta=delta)
            await mesh.until_answered_by({"one"}, url, host="first.test")
            moved = {
                "hosts": ["first.test"],
                "http": [{"route": [{"destination": {"host": "second.test", "port": {"number": port}}}]}],
            }
            async with mesh.load(url, host="first.test") as load:
                await mesh.apply(manifest("VirtualService", "moved", moved), "moved.yaml")
                await eventually(lambda: load.answers["two"] > 0, what="the route moves")
                (mesh.folder / "config" / "moved.yaml").unlink()
                before = load.answers["one"]
                await eventually(lambda: load.answers["one"] > before + 20, what="and moves back")
            assert load.failures == []
            assert plane.state.world.rejections() == ()
            await mesh.assert_all_taken()
