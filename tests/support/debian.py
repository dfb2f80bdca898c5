"""A small Debian in a folder, to install into and to build containers from."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.binaries import require_binary
from tests.support.ports import free_ports

PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def require_debian() -> Path:
    """The folder that tools/get_debian.py made, named in DEBIAN. Skips without it; in CI, that is a failure."""
    folder = Path(os.environ.get("DEBIAN", ".cache/debian"))
    if os.geteuid() == 0 and (folder / "ready").exists():
        require_binary("dpkg-deb")
        return folder
    why = "needs root, and a small Debian named in DEBIAN: python tools/get_debian.py --into .cache/debian"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def copy_of(debian: Path, folder: Path) -> Path:
    subprocess.run(["cp", "-a", "--reflink=auto", debian, folder], check=True)
    return folder


def run_in(root: Path, *command: str, check: bool = True) -> str:
    """What a command in the folder, as its root, prints."""
    done = subprocess.run(["/usr/sbin/chroot", root, *command], env=PATH, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def control_plane_becomes_ready(root: Path, user: int, *, state: str, config: str) -> None:
    """Run the control plane that is installed in the folder, as a user without privileges, until it is ready; then
    let it drain. It sees the folder and ``/proc``, and keeps its state where ``state`` says."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
    flags = ("GRPC_ADDR", "SECURE_GRPC_ADDR", "HTTP_ADDR", "MONITORING_ADDR")
    addresses = {f"MESH_PILOT_{flag}": port for flag, port in zip(flags, ports, strict=True)}
    inside = f"chroot --userspec={user}:{user} --groups= {root} /opt/mesh-pilot/bin/mesh-pilot discovery"
    # A namespace of mounts of its own: /proc goes with the process.
    within = f"mount -t proc proc {root}/proc && exec {inside} --config-dir {config}"
    log = root / "tmp/log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", within],
            env={**PATH, **addresses, "STATE_DIRECTORY": state},
            stdout=written,
            stderr=written,
        )
    try:
        while process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{ports[2]}/ready", timeout=5) as answer:
                    assert answer.read().strip() == b"ready"
                break
            except OSError:
                time.sleep(0.1)  # another process: there is nothing to wait on
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(60)
    assert process.returncode == 0, log.read_text()
    assert (root / state.lstrip("/") / "state.db").stat().st_uid == user
