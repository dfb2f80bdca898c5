"""Credential plugins that hang: what waits for them ends in time, and they end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trio
import yaml

from mesh_pilot.app.config_cluster import SECOND_LOOK_SECONDS
from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.kubernetes.apiserver import Access
from mesh_pilot.kubernetes.apiserver.access import ExecPlugin
from mesh_pilot.kubernetes.apiserver.credentials import CredentialSource
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.kubernetes.source.mesh_maps import CONFIG_MAPS
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.api_double import ApiDouble, serving
from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client
from tests.support.planes import settings

pytestmark = pytest.mark.process

DEAF = "trap '' TERM; echo $$ > {noted}; (sleep 600; :) & sleep 600"
"""It does not listen to SIGTERM, and what it starts holds its standard output."""


def plugin(noted: Path) -> ExecPlugin:
    arguments = ("-c", DEAF.format(noted=noted))
    return ExecPlugin(api_version="client.authentication.k8s.io/v1", command="sh", arguments=arguments)


def group_of(noted: Path) -> list[int]:
    """The processes of the group that the plugin leads."""
    leader = int(noted.read_text())
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == leader and state != "Z":
                    found.append(int(folder.name))
    return found


async def test_a_plugin_that_is_not_waited_for_ends_with_all_that_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    source = CredentialSource(Access(server="https://127.0.0.1:1", plugin=plugin(noted)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.current)
        await eventually(lambda: noted.exists() and len(group_of(noted)) >= 2, what="the plugin runs")
        started = time.monotonic()
        nursery.cancel_scope.cancel()
    assert time.monotonic() - started < 3
    await eventually(lambda: not group_of(noted), what="the end of all of it")


def kubeconfig_of(folder: Path, noted: Path) -> Path:
    own = plugin(noted)
    user = {"exec": {"apiVersion": own.api_version, "command": own.command, "args": list(own.arguments)}}
    user["exec"]["interactiveMode"] = "Never"
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


def started(tmp_path: Path, web: int) -> subprocess.Popen[bytes]:
    config = tmp_path / "config"
    config.mkdir()
    ports = [f"--{name}-addr=127.0.0.1:0" for name in ("grpc", "secure-grpc", "monitoring")]
    kubeconfig = kubeconfig_of(tmp_path, tmp_path / "pid")
    return subprocess.Popen(
        [
            *COMMAND,
            "discovery",
            f"--config-dir={config}",
            f"--state-dir={tmp_path / 'state'}",
            f"--kubeconfig={kubeconfig}",
            f"--http-addr=127.0.0.1:{web}",
            *ports,
        ]
    )


@pytest.mark.slow
async def test_a_first_start_opens_its_ports_after_ten_seconds_and_a_signal_before_ends_it(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (web,) = free_ports(1)
    process = started(tmp_path, web)
    begun = time.monotonic()
    try:
        async with http_client() as client:

            async def is_alive() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{web}/healthz")).status_code == 200
                except httpx.HTTPError:
                    return False

            await eventually(is_alive, what="a port is open")
        assert time.monotonic() - begun < 45  # eleven, and the start itself; a plugin may take 60
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(15):
            assert await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True) == 0
        assert not group_of(tmp_path / "pid")
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
async def test_a_signal_while_the_plugin_is_waited_for_ends_the_plane_and_the_plugin(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    noted = tmp_path / "pid"
    process = started(tmp_path, *free_ports(1))
    try:
        await eventually(lambda: noted.exists() and bool(noted.read_text()), what="the plugin runs")
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(5):
            assert await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True) == 0
        assert not group_of(noted)
    finally:
        process.kill()
        process.wait()
        with suppress(ProcessLookupError, FileNotFoundError):
            os.killpg(int(noted.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("how", ["plugin", "silent"])
async def test_with_state_the_ports_are_open_at_once_and_the_last_mesh_config_counts(how: str, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    double = ApiDouble([CONFIG_MAPS])
    data = {"mesh": "trustDomain: here.org"}
    double.put(CONFIG_MAPS, {"metadata": {"name": "istio", "namespace": "istio-system"}, "data": data})

    def settings_for(access: Access) -> Settings:
        registry = KubernetesRegistry(access, has_services=False)
        return settings(tmp_path / "config", registries=(registry,), state=StateSettings(folder=tmp_path / "state"))

    async with serving(double) as access:
        async with control_plane(settings_for(access)) as plane:
            with trio.fail_after(30):
                await plane.wait_ready()
            assert plane.state.world.mesh.peek(()).trust_domain == "here.org"
        if how == "silent":
            double.silent = True
        else:
            access = Access(server=access.server, plugin=plugin(tmp_path / "pid"))
        began = time.monotonic()
        async with control_plane(settings_for(access)) as plane:
            assert time.monotonic() - began < SECOND_LOOK_SECONDS + 4
            with trio.fail_after(10):
                await plane.wait_ready()
            assert plane.state.world.mesh.peek(()).trust_domain == "here.org"
