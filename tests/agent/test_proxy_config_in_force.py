"""``defaultConfig`` of the mesh reaches the Envoys of agents: bootstrap, flags, and a hot restart when it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.binaries import require_binary
from tests.support.envoy import eventually, http_client
from tests.support.planes import running_plane
from tests.support.proxy_process import ProxyProcess, proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

MESH = """
defaultConfig:
  concurrency: {threads}
  terminationDrainDuration: 0.1s
  statsdUdpAddress: 127.0.0.1:9125
"""


async def started_with(proxy: ProxyProcess) -> tuple[int, int]:
    """Envoy's threads and its epoch."""
    async with http_client() as client:
        info: dict[str, Any] = (await client.get(f"http://127.0.0.1:{proxy.ports[0]}/server_info")).json()
    options = info["command_line_options"]
    return options["concurrency"], options["restart_epoch"]


@pytest.mark.smoke
async def test_the_meshs_proxy_config_is_that_of_the_envoys_and_follows_changes(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    mesh, config = tmp_path / "mesh.yaml", tmp_path / "config"
    config.mkdir()
    mesh.write_text(MESH.format(threads=1))
    async with running_plane(config, mesh_config=mesh) as plane:
        own = ("--name=web-1", "--ip=127.0.0.1", "--plaintext", f"--pilot={plane.addresses.grpc}")
        async with proxy_process(tmp_path / "proxy", free_ports(4), *own) as proxy:
            await proxy.wait_ready()
            assert await started_with(proxy) == (1, 0)
            async with http_client() as client:
                dump = (await client.get(f"http://127.0.0.1:{proxy.ports[0]}/config_dump")).text
            assert "envoy.stat_sinks.statsd" in dump
            mesh.write_text(MESH.format(threads=2))

            async def is_restarted() -> bool:
                try:
                    return await started_with(proxy) == (2, 1)
                except httpx.HTTPError:
                    return False

            await eventually(is_restarted, what="Envoy is hot restarted with two threads")
            assert await proxy.is_ready()
