"""An Envoy with several control planes: the nearest that is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from mesh_pilot.model.service import Locality
from tests.support.envoy import eventually, http_client, real_envoy
from tests.support.plane_process import PlaneProcess
from tests.support.planes import SERVICE
from tests.support.shop import CLIENT

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

NODE = attrs.evolve(CLIENT, locality=Locality("eu", "eu-1"))


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_an_envoy_turns_to_the_far_plane_and_comes_back_with_its_connections_age(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "service.yaml").write_text(SERVICE)
    ports = free_ports(6)
    flags = (f"--config-dir={tmp_path / 'config'}", "--max-connection-age=2s")
    near = PlaneProcess(tmp_path / "near.log", ports[:3], *flags)
    far = PlaneProcess(tmp_path / "far.log", ports[3:], *flags)
    pilots = (f"{far.grpc}@us/us-1", f"{near.grpc}@eu/eu-1")
    try:
        await far.start()
        await near.start()
        async with real_envoy(pilots, tmp_path, NODE, delta=delta) as envoy:
            await envoy.wait_live()
            assert (await streams(near), await streams(far)) == (1, 0)
            await near.kill()
            await eventually(lambda: serves(far), seconds=30, what="the far plane serves it")
            await near.start()
            await eventually(lambda: serves(near), seconds=90, what="the near plane serves it again")
            await eventually(lambda: left(far), seconds=30, what="the far plane does not")
            assert await envoy.rejected() == {}
    finally:
        await near.kill()
        await far.kill()


async def serves(plane: PlaneProcess) -> bool:
    return await streams(plane) == 1


async def left(plane: PlaneProcess) -> bool:
    return await streams(plane) == 0


async def streams(plane: PlaneProcess) -> int:
    async with http_client() as client:
        found = (await client.get(f"{plane.web}/debug/syncz")).json()
    return len(found)
