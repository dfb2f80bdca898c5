"""``mesh-pilot proxy sidecar`` as people run it: a process, a real control plane, a real Envoy."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import admission, proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

FreePorts = Callable[[int], list[int]]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    require_binary("envoy")
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "reviews.yaml").write_text(SERVICE)
    return folder


@pytest.mark.parametrize("variant", ["--delta", "--sotw"])
async def test_one_command_makes_a_machine_part_of_the_mesh_and_keeps_it_so_without_a_control_plane(
    tmp_path: Path, config: Path, free_ports: FreePorts, variant: str
) -> None:
    flags = admission(tmp_path)
    secure, *ports = free_ports(5)
    plane_settings = {"ca_dir": tmp_path / "ca", "secure_grpc_addr": f"localhost:{secure}"}
    arguments = ("--name=web-1", "--ip=127.0.0.1", f"--pilot=localhost:{secure}", variant, *flags)
    async with (
        running_plane(config, **plane_settings),
        proxy_process(tmp_path / "proxy", ports, *arguments) as proxy,
    ):
        await proxy.wait_ready()
        assert any("reviews.test" in name for name in await proxy.clusters())
        first = await proxy.clusters()
        state = await proxy.state()
        assert state["identity"]["identity"] == "spiffe://cluster.local/ns/shop/sa/web"
        assert state["planes"]["connected"] == f"localhost:{secure}"

        async def kept() -> bool:
            return (await proxy.state())["relay"]["kept"] > 0

        await eventually(kept, what="what Envoy accepted is on disk")
        (envoy,) = proxy.envoy_pids()
        os.kill(envoy, signal.SIGKILL)
        await eventually(lambda: proxy.envoy_pids() not in ([], [envoy]), what="Envoy is restarted")
        await proxy.wait_ready()
    # the agent was killed with its Envoy, and the control plane is gone
    async with proxy_process(tmp_path / "proxy", ports, *arguments) as proxy:
        await proxy.wait_ready()
        assert await proxy.clusters() == first
        assert (await proxy.state())["relay"]["offline"] == 1
        async with running_plane(config, **plane_settings):

            async def joined() -> bool:
                state = await proxy.state()
                return bool(state["planes"]["connected"]) and state["relay"]["offline"] == 0 < state["relay"]["streams"]

            await eventually(joined, what="Envoy is served by the control plane again")
            assert await proxy.clusters() == first
            await proxy.end(signal.SIGTERM)
    assert "Traceback" not in proxy.log.read_text()


@pytest.mark.smoke
async def test_an_agent_drains_and_leaves_no_envoy_behind(tmp_path: Path, config: Path, free_ports: FreePorts) -> None:
    ports = free_ports(4)
    async with (
        running_plane(config) as plane,
        proxy_process(
            tmp_path / "proxy",
            ports,
            "--name=web-1",
            "--ip=127.0.0.1",
            f"--pilot={plane.addresses.grpc}",
            "--plaintext",
        ) as proxy,
    ):
        await proxy.wait_ready()
        (envoy,) = proxy.envoy_pids()
        assert await proxy.end(signal.SIGTERM) == 0
        assert not proxy.runs(envoy)
        assert "Traceback" not in proxy.log.read_text()
