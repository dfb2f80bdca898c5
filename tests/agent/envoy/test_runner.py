"""Envoy's life under the agent: started, ready, restarted, drained, and gone whatever happens."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.envoy.binary import EnvoyError
from tests.agent.envoy.conftest import answering
from tests.support.envoy import eventually, http_client

pytestmark = [pytest.mark.process, pytest.mark.envoy]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def envoys_of(folder: Path) -> list[int]:
    """The processes whose command line names a folder, other than ourselves."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes()
        except OSError:
            continue
        if b"--admin-address-path" in command and os.fsencode(folder) in command:
            found.append(int(each.parent.name))
    return found


async def test_it_gets_ready_answers_and_is_gone_at_the_end(life: Callable[..., Any]) -> None:
    async with life() as one, http_client() as client:
        await one.ready()
        assert (await client.get(f"http://127.0.0.1:{one.port}/")).text == "hello"
        statistics = one.runner.statistics()
        assert statistics.ready
        assert statistics.reason == ""
        assert (statistics.epoch, statistics.restarts, statistics.draining) == (0, 0, 0)
        assert mode(one.folders.run / "envoy-bootstrap.json") == 0o600
        shared = Path(f"/dev/shm/envoy_shared_memory_{statistics.base_id * 10}")
        assert shared.name in names(shared.parent)
    assert not is_alive(statistics.pid)
    assert shared.name not in names(shared.parent)
    assert names(one.folders.run) == ["envoy-bootstrap.json"]


async def test_one_that_dies_is_started_again_and_the_log_says_why(life: Callable[..., Any]) -> None:
    async with life() as one:
        await one.ready()
        first = one.pid
        with capture_logs() as logs:
            os.kill(first, signal.SIGSEGV)
            await one.runner.ready.wait_for(lambda ready: not ready)
            await one.ready()
        assert one.pid != first
        assert one.runner.statistics().restarts == 1
        (event,) = [entry for entry in logs if entry["event"] == "Envoy has ended; it is started again"]
        assert event["reason"].startswith("killed by SIGSEGV: Caught Segmentation fault")


async def test_without_a_first_configuration_it_is_not_ready(
    life: Callable[..., Any], free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    ads = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    bootstrap = {
        "node": {"id": "a", "cluster": "a"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "nobody"}}],
            },
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "nobody",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "load_assignment": {"cluster_name": "nobody"},
                }
            ]
        },
    }
    async with life(bootstrap) as one:
        await eventually(lambda: "no clusters" in one.runner.why_not_ready, what="the reason")
        assert not one.runner.ready.value


async def test_a_refused_bootstrap_is_one_line_and_no_hot_loop(life: Callable[..., Any]) -> None:
    with capture_logs() as logs:
        async with life({"no_such_field_at_all": {}}, extra_flags=("--reject-unknown-dynamic-fields",)) as one:
            bad = {"admin": {"address": {"socket_address": {"address": "not an address", "port_value": 1}}}}
            one.bootstrap.set(bad)
            await eventually(lambda: one.runner.statistics().restarts >= 3, what="three attempts")
            good = answering(one.port, one.admin)
            one.bootstrap.set(good)
            await one.ready()
    ends = [entry["reason"] for entry in logs if entry["event"] == "Envoy has ended; it is started again"]
    assert ends
    assert all("\n" not in reason for reason in ends)
    assert any("not an address" in reason for reason in ends)


async def test_no_envoy_is_an_error_at_the_start(life: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(EnvoyError, match="does not exist"), flatten_subgroups=True):
        async with life(binary=tmp_path / "none"):
            await trio.sleep_forever()


async def test_cancelled_in_the_middle_of_the_start_it_leaves_nothing(life: Callable[..., Any], tmp_path: Path) -> None:
    async with life() as one:
        await eventually(lambda: one.pid != 0, what="a process")
        pid = one.pid
    assert not is_alive(pid)


AGENT = """
import sys, trio
from pathlib import Path
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports
import json
run, envoy, bootstrap = sys.argv[1:]
folders = AgentFolders(Path(run), Path(run))
runner = EnvoyRunner(EnvoySettings(binary=Path(envoy)), Ports(), folders)
trio.run(runner.run, Observable(json.loads(bootstrap)))
"""


def agent_process(folder: Path, envoy: Path, bootstrap: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", AGENT, str(folder), str(envoy), json.dumps(bootstrap)])


@pytest.mark.parametrize("early", [True, False], ids=["while Envoy starts", "later"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_it_ends_with_an_agent_that_is_killed(
    number: int, early: bool, envoy_binary: Path, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    agent = agent_process(tmp_path, envoy_binary, answering(*free_ports(2)))
    try:
        if early:
            await eventually(lambda: bool(envoys_of(tmp_path)), what="an Envoy")
        else:
            await eventually(lambda: any(tmp_path.glob("envoy-admin-*")), what="Envoy's admin interface")
    finally:
        agent.send_signal(number)
        agent.wait()
    await eventually(lambda: not envoys_of(tmp_path), what="the end of Envoy")
