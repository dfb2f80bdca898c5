"""Fetches the real Consul that the tests drive: package `consul` of Debian's suite bullseye, unpacked, not installed.

    python tools/get_consul.py --into .cache/consul     # prints the path of the binary

Uses apt with lists and caches of its own below the folder, so that nothing of the system changes and no root is needed.
The mirror is the one that the machine's own apt uses. Does nothing where the binary is there already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = "bullseye"
PACKAGE = "consul"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/consul"), help="folder to unpack to")
    folder = parser.parse_args().into.resolve()
    binary = folder / "usr" / "bin" / "consul"
    if not binary.exists():
        missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
        if missing:
            print(f"no {' and no '.join(missing)}: put a consul on PATH or its path in CONSUL instead", file=sys.stderr)
            return 1
        fetch(folder)
    subprocess.run([binary, "version"], check=True, stdout=subprocess.DEVNULL)
    print(binary)
    return 0


def fetch(folder: Path) -> None:
    """Download and unpack; a half-done earlier try does no harm."""
    work = folder / "apt"
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (work / "sources.list").write_text(f"deb {signed}{mirror()} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work / "cache",
        # The suite is closed: what its release file says of its age is of no use.
        "Acquire::Check-Valid-Until": "false",
    }
    apt = ["apt-get", "-q"]
    if os.geteuid() == 0:
        apt += ["-o", "APT::Sandbox::User=root"]
    for name, value in options.items():
        apt += ["-o", f"{name}={value}"]
    subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
    subprocess.run([*apt, "download", PACKAGE], check=True, stdout=sys.stderr, cwd=work)
    package = max(work.glob(f"{PACKAGE}_*.deb"), key=lambda path: path.stat().st_mtime)
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    shutil.rmtree(work)


def mirror() -> str:
    """Where the machine gets Debian's own packages from."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(COMPONENT)|$(RELEASE)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for line in listed:
        uri, component, release = line.split("|")
        if component == "main" and release == own_suite():
            return uri
    raise SystemExit("apt names no repository of this system's release: can't tell which mirror to use")


def own_suite() -> str:
    """The code name of this Debian, such as bookworm."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    return ""


if __name__ == "__main__":
    sys.exit(main())
