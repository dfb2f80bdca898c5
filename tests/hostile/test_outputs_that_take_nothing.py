"""A line of log is not worth the mesh: whatever standard output and error do, plane and agent start, serve and end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
import trio

from tests.support.binaries import require_binary
from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client
from tests.support.outputs import KINDS, started, started_by_another_user
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import ProxyProcess

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(180)]

END_SECONDS = 12
REFUSED = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: wrong-{0}, namespace: shop}}
spec: {{hosts: []}}
---
"""


async def ended(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    with trio.fail_after(END_SECONDS):
        return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


async def text_of(url: str) -> str:
    async with http_client() as client:
        try:
            return (await client.get(url)).text
        except httpx.HTTPError:
            return ""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_plane_serves_and_ends(kind: str, tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "service.yaml").write_text(SERVICE)
    grpc, secure, web, metrics = free_ports(4)
    addresses = {"grpc": grpc, "secure-grpc": secure, "http": web, "monitoring": metrics}
    flags = [f"--{name}-addr=127.0.0.1:{port}" for name, port in addresses.items()]
    url = f"http://127.0.0.1:{web}"
    command = [*COMMAND, "discovery", f"--config-dir={config}", f"--state-dir={tmp_path / 'state'}", *flags]
    with started(command, kind) as process:

        async def is_ready() -> bool:
            return (await text_of(f"{url}/ready")).startswith("ready")

        await eventually(is_ready, what="the plane is ready")
        (config / "refused.yaml").write_text("".join(REFUSED.format(number) for number in range(40)))

        async def follows() -> bool:
            return (await text_of(f"{url}/debug/rejections")).count("wrong-") >= 40

        await eventually(follows, what="the plane has read what it refuses")
        if kind in ("full", "reader_gone"):
            lost = [line for line in (await text_of(f"{url}/metrics")).splitlines() if "dropped_lines{" in line]
            assert sum(float(line.rpartition(" ")[2]) for line in lost) >= 40, lost
        assert await ended(process) == 0


@pytest.fixture
async def plane_address(tmp_path: Path) -> AsyncIterator[str]:
    require_binary("envoy")
    config = tmp_path / "config"
    config.mkdir()
    (config / "service.yaml").write_text(SERVICE)
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("accessLogFile: /dev/stdout\n")
    async with running_plane(config, mesh_config=mesh) as plane:
        yield plane.addresses.grpc


def agent_of(tmp_path: Path, ports: list[int], plane_address: str) -> tuple[ProxyProcess, list[str]]:
    agent = ProxyProcess(tmp_path / "proxy", ports, ())
    names = ("admin", "status", "readiness", "prometheus")
    flags = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
    folders = [f"--state-dir={agent.folder / 'state'}", f"--run-dir={agent.folder / 'run'}"]
    who = ["--interception=NONE", "--name=web-1", "--ip=127.0.0.1", f"--pilot={plane_address}", "--plaintext"]
    return agent, [*COMMAND, "proxy", "sidecar", *who, *flags, *folders]


@pytest.mark.sweep(2)
@pytest.mark.envoy
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_serves_and_ends(
    kind: str, tmp_path: Path, free_ports: Callable[[int], list[int]], plane_address: str
) -> None:
    agent, command = agent_of(tmp_path, free_ports(4), plane_address)
    agent.folder.mkdir()
    with started(command, kind) as process:
        agent.process = process
        await eventually(agent.is_ready, what="Envoy is ready")
        (envoy,) = agent.envoy_pids()
        os.kill(envoy, signal.SIGKILL)
        await eventually(lambda: agent.envoy_pids() not in ([], [envoy]), what="Envoy is restarted")
        await eventually(agent.is_ready, what="Envoy is ready again")
        state = await agent.state()
        if kind in ("full", "reader_gone"):
            assert sum(state["output"]["dropped_lines_total"].values()) > 0
        assert await ended(process) == 0
        assert not agent.runs(envoy)


@pytest.mark.envoy
@pytest.mark.parametrize("through", ["file", "pipe"])
async def test_access_logs_go_to_a_standard_output_that_another_user_has_opened(
    through: str, tmp_path: Path, free_ports: Callable[[int], list[int]], plane_address: str
) -> None:
    """As `runuser -u istio-proxy -- mesh-pilot proxy sidecar > proxy.log` in root's shell: Envoy opens it by name."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can give a file to somebody else")
    agent, command = agent_of(tmp_path, free_ports(4), plane_address)
    agent.folder.mkdir()
    log = tmp_path / "proxy.log"
    with started_by_another_user(command, log, through) as process:
        agent.process = process
        await eventually(agent.is_ready, what=f"Envoy is ready: {log.read_text()[-2000:]}")
        assert "Permission denied" not in log.read_text()
        assert await ended(process) == 0
