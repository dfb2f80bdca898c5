"""The agent is light: what it loads, how soon its help is there, and the memory of one with everything on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel

import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import admission, proxy_process

pytestmark = pytest.mark.process

HEAVY = {
    "betterproto2",
    "dns",
    "envoy.config",
    "google.protobuf",
    "greenlet",
    "httpx",
    "joserfc",
    "mesh_pilot.api",
    "mesh_pilot.app",
    "mesh_pilot.istio.reading.scalars",
    "mesh_pilot.envoy",
    "mesh_pilot.ops",
    "mesh_pilot.world",
    "msgspec",
    "prometheus_client",
    "re2",
    "rich",
    "starlette",
    "watchfiles",
}
"""Modules that ``mesh-pilot proxy sidecar`` does without until it needs them."""

MOST_KB = 60 * 1024
"""60 MB in the kernel's kB, which are 1,024 bytes."""


def loaded(code: str) -> set[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(mesh_pilot.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*(n for n, m in sys.modules.items() if m is not None))"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return set(done.stdout.split())


@pytest.mark.smoke
def test_what_the_agent_runs_loads_nothing_heavy() -> None:
    names = loaded(
        "from mesh_pilot.cli.lib.libraries import load_structlog; load_structlog()\n"
        "import mesh_pilot.agent.run.agent, mesh_pilot.cli.proxy.run, mesh_pilot.cli.proxy.settings"
    )
    assert "mesh_pilot.agent.relay.relay" in names
    assert sorted(name for name in names if any(name == one or name.startswith(f"{one}.") for one in HEAVY)) == []


def test_httpx_comes_without_its_command_line() -> None:
    names = loaded(
        "from mesh_pilot.cli.lib.libraries import load_structlog; load_structlog()\n"
        "from mesh_pilot.cli.proxy.run import prepare_process; prepare_process()\n"
        "import httpx; httpx.AsyncClient(trust_env=False, timeout=60)"
    )
    assert "httpx" in names
    assert not names & {"rich", "pygments", "httpx._main"}


@pytest.mark.smoke
def test_the_help_loads_no_library_but_clicks() -> None:
    names = loaded(
        "from mesh_pilot.cli import cli\n"
        "cli.main(['proxy', 'sidecar', '--help'], standalone_mode=False) if False else None\n"
        "import click, mesh_pilot.cli.proxy as p\n"
        "p.command.commands['sidecar'].get_help(click.Context(p.command.commands['sidecar']))"
    )
    assert not names & {"attr", "trio", "yaml", "structlog", "mesh_pilot.agent"}


@pytest.mark.envoy
@pytest.mark.slow
async def test_an_agent_with_everything_on_stays_small(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "reviews.yaml").write_text(SERVICE)
    secure, dns, *ports = free_ports(6)
    flags = admission(tmp_path)
    own = ("--name=web-1", "--ip=127.0.0.1", f"--pilot=localhost:{secure}", "--dns", f"--dns-port={dns}")
    async with (
        running_plane(folder, ca_dir=tmp_path / "ca", secure_grpc_addr=f"localhost:{secure}"),
        proxy_process(tmp_path / "proxy", ports, *own, *flags) as proxy,
    ):
        await proxy.wait_ready()
        await trio.lowlevel.checkpoint()
        assert proxy.resident_kb() < MOST_KB


@pytest.mark.envoy
@pytest.mark.slow
async def test_probes_and_metrics_over_http_cost_it_little_more(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """They need httpx, which an agent without them does not load."""
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "reviews.yaml").write_text(SERVICE)
    secure, dns, *ports = free_ports(6)
    flags = admission(tmp_path)
    own = ("--name=web-1", "--ip=127.0.0.1", f"--pilot=localhost:{secure}", "--dns", f"--dns-port={dns}")
    http = (f"--probe={{periodSeconds: 1, httpGet: {{port: {ports[1]}, path: /metrics}}}}", "--scrape={port: 1}")
    async with (
        running_plane(folder, ca_dir=tmp_path / "ca", secure_grpc_addr=f"localhost:{secure}"),
        proxy_process(tmp_path / "proxy", ports, *own, *http, *flags) as proxy,
    ):
        await proxy.wait_ready()

        async def is_probed() -> bool:
            return bool((await proxy.state())["health"]["checks_total"] > 2)

        await eventually(is_probed, what="probes, which read the page of metrics")
        assert proxy.resident_kb() < MOST_KB + 4 * 1024
