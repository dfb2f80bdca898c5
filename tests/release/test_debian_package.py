"""The Debian package, installed in a small Debian: it runs as its service does, and a purge leaves only state."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.debian import control_plane_becomes_ready, copy_of, require_debian, run_in
from tools import build_deb

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SERVICE_USER = 61184
"""The first of those that systemd gives to services with DynamicUser."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian with the package installed."""
    debian = require_debian()
    folder = tmp_path_factory.mktemp("debian")
    package = build_deb.build(folder / "dist")
    root = copy_of(debian, folder / "root")
    shutil.copy(package, root / "tmp/mesh-pilot.deb")
    run_in(root, "dpkg", "--install", "/tmp/mesh-pilot.deb")
    yield root
    shutil.rmtree(root)


def test_an_installed_package_runs_serves_as_its_user_and_a_purge_leaves_the_state_alone(machine: Path) -> None:
    assert run_in(machine, "mesh-pilot", "--version").startswith(f"mesh-pilot {build_deb.version()} ")
    assert "/mesh-pilot.1.gz" in run_in(machine, "man", "-w", "mesh-pilot")
    assert "/mesh-pilot-proxy-sidecar.1.gz" in run_in(machine, "man", "-w", "mesh-pilot-proxy-sidecar")
    assert run_in(machine, "getent", "passwd", "istio-proxy").split(":")[5:] == ["/", "/usr/sbin/nologin\n"]
    assert run_in(machine, "dpkg", "--verify", "mesh-pilot") == ""

    units = machine / "usr/lib/systemd/system"
    samples = {path.name: path.read_text() for path in (ROOT / "samples/systemd").glob("*.service")}
    assert {path.name: path.read_text() for path in units.glob("mesh-pilot*")} == samples
    # tests/test_samples.py and tests/cli/test_proxy_install.py let systemd judge these; here, their program is there.
    assert (machine / "opt/mesh-pilot/bin/mesh-pilot").stat().st_mode & 0o111
    assert all("/opt/mesh-pilot/bin/mesh-pilot" in text for text in samples.values())

    shutil.copytree(ROOT / "samples/hello/config", machine / "etc/mesh-pilot/config")
    run_in(machine, "install", "-d", "-o", str(SERVICE_USER), "-m", "0700", "/var/lib/mesh-pilot")
    control_plane_becomes_ready(machine, SERVICE_USER, state="/var/lib/mesh-pilot", config="/etc/mesh-pilot/config")
    shutil.rmtree(machine / "etc/mesh-pilot/config")
    run_in(machine, "dpkg", "--purge", "mesh-pilot")
    left = run_in(machine, "find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-name", "*mesh-pilot*", "-print")
    assert set(left.split()) == {"/tmp/mesh-pilot.deb", "/var/lib/mesh-pilot"}
    assert not (machine / "etc/mesh-pilot").exists()
