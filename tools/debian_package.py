"""Programs of other releases of Debian, unpacked next to the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def unpack(package: str, suite: str, folder: Path, *, dependencies: bool = False) -> None:
    """Download a package of another release of Debian and unpack it to a folder, without installing it.

    ``dependencies``: with all that it depends on, down to the C library.

    Uses apt with lists and caches of its own below the folder, so that nothing of the system changes and no root is
    needed. The mirror is the one that the machine's own apt uses. A half-done earlier try does no harm. Raises
    SystemExit, with what to do, where there is no apt.
    """
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"no {' and no '.join(missing)} to fetch {package} with: install it yourself")
    work = folder / "apt"
    (work / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    (work / "sources.list").write_text(f"deb {signed}{mirror()} {suite} main\n")
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": work,
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work / "cache",
        # A suite may be closed: what its release file says of its age is of no use then.
        "Acquire::Check-Valid-Until": "false",
    }
    apt = ["apt-get", "-q"]
    if os.geteuid() == 0:
        apt += ["-o", "APT::Sandbox::User=root"]
    for name, value in options.items():
        apt += ["-o", f"{name}={value}"]
    subprocess.run([*apt, "update"], check=True, stdout=sys.stderr)
    if dependencies:
        # Nothing is installed in the empty status: so apt takes the whole tree.
        tree = ["install", "--download-only", "--no-install-recommends", "-y", package]
        subprocess.run([*apt, "-o", "Debug::NoLocking=true", *tree], check=True, stdout=sys.stderr)
        found = sorted((work / "cache" / "archives").glob("*.deb"))
    else:
        subprocess.run([*apt, "download", package], check=True, stdout=sys.stderr, cwd=work)
        found = [max(work.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)]
    for file in found:
        subprocess.run(["dpkg-deb", "-x", file, folder], check=True)
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
