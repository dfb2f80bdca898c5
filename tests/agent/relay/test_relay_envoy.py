"""Real Envoys on the agent's relay: through it to a control plane, and from disk without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.planes import SERVICE, running_plane
from tests.support.relayed import relayed

NODE = EnvoyNode("web-1", labels={"app": "web"})
VARIANTS = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


async def has_reviews(envoy: RealEnvoy) -> bool:
    return any("reviews.test" in name for name in await envoy.dynamic("Cluster"))


@VARIANTS
async def test_envoy_starts_from_disk_while_no_control_plane_is_there(tmp_path: Path, delta: bool) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "reviews.yaml").write_text(SERVICE)
    async with running_plane(config) as plane:
        address = plane.addresses.grpc
        async with (
            relayed(tmp_path, address) as relay,
            real_envoy(relay.address, tmp_path, NODE, delta=delta, name="first") as envoy,
        ):
            await envoy.wait_live()
            await eventually(partial_has(envoy), what="the service has come through the relay")
            first = {kind: set(await envoy.dynamic(kind)) for kind in KINDS}
            assert await envoy.rejected() == {}
    async with (
        relayed(tmp_path, address) as relay,
        real_envoy(relay.address, tmp_path, NODE, delta=delta, name="second") as envoy,
    ):
        with trio.fail_after(30):
            await envoy.wait_live()
        await eventually(envoy.takes_traffic, what="its workers run")
        second = {kind: set(await envoy.dynamic(kind)) for kind in KINDS}
        assert second == first
        assert await envoy.rejected() == {}
        assert relay.relay.statistics().offline == 1


KINDS = ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration")


def partial_has(envoy: RealEnvoy):  # type: ignore[no-untyped-def]
    async def has() -> bool:
        return await has_reviews(envoy)

    return has
