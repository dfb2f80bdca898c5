"""The start of ``discovery``: what it imports before it is ready, and what it does not until somebody needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mesh_pilot

pytestmark = pytest.mark.process

LATER = {
    "OpenSSL",
    "acme",
    "httpcore",
    "httpx",
    "jinja2",
    "josepy",
    "mesh_pilot.agent",
    "mesh_pilot.app.other_worker",
    "mesh_pilot.consul.client",
    "mesh_pilot.consul.source",
    "mesh_pilot.envoy.catalog.diagnostics",
    "mesh_pilot.envoy.catalog.generators",
    "mesh_pilot.envoy.filters",
    "mesh_pilot.envoy.listeners",
    "mesh_pilot.envoy.routes",
    "mesh_pilot.explain",
    "mesh_pilot.kubernetes.apiserver",
    "mesh_pilot.kubernetes.source",
    "mesh_pilot.migration",
    "mesh_pilot.ops.access.gate",
    "mesh_pilot.ops.api.app",
    "mesh_pilot.ops.causes",
    "mesh_pilot.ops.explain",
    "mesh_pilot.ops.istiod.pages",
    "mesh_pilot.ops.metrics",
    "mesh_pilot.ops.page",
    "mesh_pilot.sources.acme.protocol",
    "mesh_pilot.sources.mcp",
    "prometheus_client",
    "requests",
    "rich.console",
}
"""Modules that a control plane on an empty folder does without until somebody connects or asks."""

MOST = 1400
"""Modules that it imports, Python's own included; there were 2,293 when everything was imported at the start."""

IMPORTED = "import time:"
"""The beginning of Python's line about an import."""


def test_a_control_plane_on_an_empty_folder_imports_little(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    addresses = [f"--{name}-addr=127.0.0.1:0" for name in ("grpc", "secure-grpc", "http", "monitoring")]
    folders = [f"--config-dir={tmp_path / 'config'}", f"--state-dir={tmp_path / 'state'}"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(mesh_pilot.__file__).parents[1]),
        "PYTHONPROFILEIMPORTTIME": "1",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("MESH_PILOT_NO_STATE", None)
    command = [sys.executable, "-m", "mesh_pilot.cli", "discovery", *folders, *addresses]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        is_ready = any(line.startswith("ready after") for line in process.stdout)
        lines = (tmp_path / "log").read_text().splitlines()
        process.send_signal(signal.SIGKILL)
    assert is_ready, lines[-20:]
    names = {line.rpartition("|")[2].strip() for line in lines if line.startswith(IMPORTED)}
    assert "mesh_pilot.sources.files.source" in names
    assert sorted(name for name in names if any(name == one or name.startswith(f"{one}.") for one in LATER)) == []
    assert len(names) < MOST
