"""An upgrade of the agent under load, with a real control plane and Envoy: SIGHUP, and nothing fails."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.agent.envoy.load import load_on
from tests.agent.envoy.test_runner import envoys_of, is_alive
from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client
from tests.support.plane_process import PlaneProcess

pytestmark = [pytest.mark.process, pytest.mark.envoy]

TAKEN_OVER = "envoy is taken over"


@contextmanager
def proxy(folder: Path, envoy: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """``mesh-pilot proxy sidecar``, its log in ``folder/agent.log``."""
    (folder / "run").mkdir()
    command = [*COMMAND, "proxy", "sidecar", "--ip=127.0.0.1", "--plaintext", f"--envoy={envoy}"]
    command += [f"--state-dir={folder / 'state'}", f"--run-dir={folder / 'run'}", *flags]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def logged(folder: Path) -> str:
    return (folder / "agent.log").read_text()


def told(manager: socket.socket) -> list[str]:
    """The first assignments of what the agent told its service manager since the last look."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(manager.recv(4096, socket.MSG_DONTWAIT).decode().split("\n")[0])
    return found


@pytest.mark.parametrize("moment", ["while it is tested", "while it starts"])
async def test_an_end_that_is_asked_for_amid_an_upgrade_drains(
    envoy_binary: Path, tmp_path: Path, free_ports: Callable[[int], list[int]], moment: str
) -> None:
    names = ("admin", "status", "readiness", "prometheus")
    flags = [f"--{name}-port={number}" for name, number in zip(names, free_ports(4), strict=True)]
    (nobody,) = free_ports(1)
    with proxy(tmp_path, envoy_binary, f"--pilot=127.0.0.1:{nobody}", *flags) as agent:
        await eventually(lambda: "envoy started" in logged(tmp_path), what="an Envoy")
        (envoy,) = envoys_of(tmp_path)
        agent.send_signal(signal.SIGHUP)
        if moment == "while it is tested":
            await eventually(lambda: len(children(agent.pid)) > 1, what="the self test")
        else:
            await eventually(lambda: "another version of the agent takes over" in logged(tmp_path), what="the next")
            await eventually(lambda: is_blocked(agent.pid, signal.SIGTERM), what="its start")
        agent.send_signal(signal.SIGTERM)
        await eventually(lambda: agent.poll() is not None, what="its end")
        assert agent.returncode == 0
        assert logged(tmp_path).count("agent ends: draining") == 1
        assert (TAKEN_OVER in logged(tmp_path)) is (moment == "while it starts")
        assert not is_alive(envoy)


def children(pid: int) -> list[str]:
    return [child for each in Path(f"/proc/{pid}/task").glob("*/children") for child in each.read_text().split()]


def is_blocked(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigBlk:")[2].split()[0], 16) >> (number - 1) & 1)


async def test_sighup_executes_the_agent_anew_without_a_failed_request(
    envoy_binary: Path,
    tmp_path: Path,
    free_ports: Callable[[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    ports = free_ports(8)
    names = ("admin", "status", "readiness", "prometheus", "dns")
    port = dict(zip(names, ports, strict=False))
    (tmp_path / "config").mkdir()
    plane = PlaneProcess(tmp_path / "plane.log", ports[5:], "--config-dir", str(tmp_path / "config"))
    await plane.start()
    settings = tmp_path / "proxy.yaml"
    settings.write_text("name: web-1\n")
    flags = [f"--config={settings}", *(f"--{name}-port={number}" for name, number in port.items())]
    try:
        with proxy(tmp_path, envoy_binary, f"--pilot={plane.grpc}", "--dns", *flags) as agent:
            async with http_client() as client:

                async def ready() -> bool:
                    with suppress(httpx.HTTPError):
                        return (await client.get(f"http://127.0.0.1:{port['status']}/healthz/ready")).status_code == 200
                    return False

                await eventually(ready, what="readiness")
            (envoy,) = envoys_of(tmp_path)
            waiting, ready = told(manager)
            assert waiting.startswith("STATUS=waits until Envoy is ready")
            assert ready == "READY=1"
            async with (
                load_on(port["readiness"], "/healthz/ready") as load,
                load_on(port["status"], "/healthz/ready", clients=4) as direct,
            ):
                for count in (1, 2):
                    agent.send_signal(signal.SIGHUP)
                    await eventually(lambda count=count: logged(tmp_path).count(TAKEN_OVER) == count, what="the next")
                    so_far = load.count
                    await eventually(lambda so_far=so_far: load.count > so_far + 50, what="load")
                settings.write_text("no-such-setting: 1\n")
                agent.send_signal(signal.SIGHUP)
                await eventually(lambda: "another version is not executed" in logged(tmp_path), what="the self test")
            assert Counter(load.failures) == {}
            assert Counter(direct.failures) == {}
            assert told(manager) == ["RELOADING=1", "READY=1"] * 3
            assert "no-such-setting" in logged(tmp_path)
            assert logged(tmp_path).count(TAKEN_OVER) == 2
            assert envoys_of(tmp_path) == [envoy]
            assert agent.returncode is None
            agent.kill()
            agent.wait()
            await eventually(lambda: not is_alive(envoy), what="the end of Envoy")
    finally:
        await plane.kill()
        manager.close()
