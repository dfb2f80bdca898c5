"""Makes a folder with a small Debian, in which tests install the package and build containers. Needs root.

    python tools/get_debian.py --into .cache/bookworm

It is of this machine's release, from its mirror, with Python, man-db and what tests ask of it. Does nothing where it is
there already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from debian_package import mirror, own_suite

INCLUDED = "ca-certificates,man-db,python3,python3-venv,systemd-standalone-sysusers,util-linux"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/debian"), help="the folder")
    folder = parser.parse_args().into.resolve()
    if not (folder / "ready").exists():
        os.environ["PATH"] += os.pathsep + "/usr/sbin"
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise SystemExit("a small Debian needs root and debootstrap: apt-get install debootstrap")
        shutil.rmtree(folder, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", own_suite(), str(folder), mirror()]
        subprocess.run(command, check=True, stdout=sys.stderr)
        subprocess.run(["chroot", folder, "apt-get", "clean"], check=True)
        (folder / "ready").touch()
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
