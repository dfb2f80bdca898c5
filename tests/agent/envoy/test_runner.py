"""Envoy's life under the agent: started, ready, restarted, drained, and gone whatever happens."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.envoy import command
from mesh_pilot.agent.envoy.binary import EnvoyError
from tests.agent.envoy.conftest import answering
from tests.support.envoy import eventually, http_client
from tests.support.troubles import is_quoted

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


@pytest.mark.smoke
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
        (event,) = [entry for entry in logs if entry["event"] == "envoy exited; restarting"]
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
    ends = [entry["reason"] for entry in logs if entry["event"] == "envoy exited; restarting"]
    assert ends
    assert all("\n" not in reason for reason in ends)
    assert any("not an address" in reason for reason in ends)


def script(folder: Path, text: str, mode: int = 0o755) -> Path:
    path = folder / "my-envoy"
    path.write_text(text)
    path.chmod(mode)
    return path


OLD = """#!/bin/sh
echo "envoy  version: 0123/1.20.4/Clean/RELEASE/BoringSSL"
"""


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (None, 0, "does not exist"),
        ("#!/bin/sh\n", 0o644, "is not an executable file"),
        ("\x7fELF of another machine", 0o755, "Exec format error; is it built for this machine"),
        ("#!/bin/sh\necho hello\n", 0o755, "is not Envoy"),
        ("#!/bin/sh\necho of no use >&2; exit 3\n", 0o755, "ended with 3: of no use"),
        (OLD, 0o755, "is Envoy 1.20.4; 1.31 or newer is needed"),
    ],
)
async def test_no_envoy_is_an_error_at_the_start(
    text: str | None, mode: int, says: str, life: Callable[..., Any], tmp_path: Path
) -> None:
    binary = tmp_path / "none" if text is None else script(tmp_path, text, mode)
    with pytest.RaisesGroup(pytest.RaisesExc(EnvoyError, match=says), flatten_subgroups=True):
        async with life(binary=binary):
            await trio.sleep_forever()


async def test_an_envoy_that_is_away_at_a_restart_is_waited_for(
    life: Callable[..., Any], envoy_binary: Path, tmp_path: Path
) -> None:
    binary = script(tmp_path, f'#!/bin/sh\nexec {envoy_binary} "$@"\n')
    async with life(binary=binary) as one:
        await one.ready()
        binary.chmod(0o644)
        with capture_logs() as logs:
            os.kill(one.pid, signal.SIGKILL)
            await eventually(lambda: any("not an executable" in str(entry) for entry in logs), what="the reason")
            binary.chmod(0o755)
            await one.runner.ready.wait_for(lambda ready: not ready)
            await one.ready()


@pytest.mark.parametrize("why", ["missing", "full"])
async def test_without_shared_memory_it_runs_and_is_replaced_all_the_same(
    why: str, life: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if why == "full":
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    else:
        monkeypatch.setattr(command, "SHARED_MEMORY", tmp_path / "shm")
    with capture_logs() as logs:
        async with life(drain_seconds=1.0, parent_shutdown_seconds=1.0) as one:
            await one.ready()
            first = one.pid
            assert one.runner.statistics().base_id == 0
            one.bootstrap.set(answering(one.port, one.admin, "second"))
            await eventually(lambda: one.pid != first and one.runner.ready.value, what="another")
            async with http_client() as client:
                assert (await client.get(f"http://127.0.0.1:{one.port}/")).text == "second"
    (event,) = [entry for entry in logs if entry["event"] == "envoy runs without hot restart: no shared memory"]
    assert event["reason"].endswith("No such file or directory" if why == "missing" else "No space left on device")


async def test_a_full_run_folder_leaves_envoy_as_it_is(
    life: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    async with life() as one:
        await one.ready()
        first = one.pid
        with monkeypatch.context() as patched, capture_logs() as logs:
            patched.setattr("mesh_pilot.agent.envoy.files.replace", refuse)
            one.bootstrap.set(answering(one.port, one.admin, "second"))
            await eventually(lambda: one.runner.statistics().failed_hot_restarts == 1, what="a failure")
        (event,) = [entry for entry in logs if entry["log_level"] == "error"]
        assert event["reason"].endswith("envoy-bootstrap.candidate.json: No space left on device")
        assert (one.pid, one.runner.ready.value) == (first, True)


async def test_a_run_folder_without_room_is_one_line_with_what_to_do(
    life: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mesh_pilot.agent.envoy.files.replace", refuse)
    says = "/run: No space left on device; Envoy's files go there: make room, or name another folder with --run-dir$"
    assert is_quoted(f"mesh-pilot: {says.removesuffix('$')}")
    with pytest.RaisesGroup(pytest.RaisesExc(EnvoyError, match=says), flatten_subgroups=True):
        async with life():
            await trio.sleep_forever()


async def test_a_port_of_envoy_that_is_taken_is_told_with_what_to_do(life: Callable[..., Any]) -> None:
    with capture_logs() as logs, socket.create_server(("127.0.0.1", 0)) as other:
        address = {"address": "127.0.0.1", "port_value": other.getsockname()[1]}
        async with life({"admin": {"address": {"socket_address": address}}}) as one:
            await eventually(lambda: one.runner.statistics().restarts >= 1, what="an attempt")
    event = next(entry for entry in logs if entry["event"] == "envoy exited; restarting")
    assert "Address already in use" in event["reason"]
    assert is_quoted(event)


async def test_what_a_killed_agent_left_is_removed(life: Callable[..., Any], tmp_path: Path) -> None:
    left = tmp_path / "run" / "envoy-admin-12-abcd"
    left.parent.mkdir(mode=0o700)
    left.touch()
    async with life() as one:
        await one.ready()
        assert not left.exists()
        (file,) = one.folders.run.glob("envoy-admin-*")
        assert mode(file) == 0o600


async def test_cancelled_in_the_middle_of_the_start_it_leaves_nothing(life: Callable[..., Any], tmp_path: Path) -> None:
    async with life() as one:
        await eventually(lambda: one.pid != 0, what="a process")
        pid = one.pid
    assert not is_alive(pid)


AGENT = """
import sys, trio
from pathlib import Path
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports
import json
run, envoy, bootstrap = sys.argv[1:]
folders = AgentFolders(Path(run), Path(run))
runner = EnvoyRunner(EnvoySettings(binary=Path(envoy)), Ports(), folders)
trio.run(runner.run, Observable(json.loads(bootstrap)))
"""


def has_admin(folder: Path) -> bool:
    return any(file.stat().st_size for file in folder.glob("envoy-admin-*"))


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
            await eventually(lambda: has_admin(tmp_path), what="Envoy's admin interface")
    finally:
        agent.send_signal(number)
        agent.wait()
    await eventually(lambda: not envoys_of(tmp_path), what="the end of Envoy")
