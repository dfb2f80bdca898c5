"""Fetches an OpenID Connect provider, the issuer that tests of logins drive.

    python tools/get_oidc_provider.py --into .cache/oidc-provider      # prints the path of its program

tools/oidc_provider/package-lock.json names the releases and vouches for every file. Needs npm and Node.js, and takes
some seconds. Two that fetch at once take turns. Does nothing where these releases are there already.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "oidc_provider"
FILES = ("package.json", "package-lock.json", "provider.mjs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/oidc-provider"), help="folder to fetch to")
    folder = parser.parse_args().into.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_there(folder):
            if shutil.which("npm") is None:
                print("no npm on PATH: name the program of a fetched provider in OIDC_PROVIDER", file=sys.stderr)
                return 1
            (folder / "provider.mjs").unlink(missing_ok=True)
            for name in FILES[:-1]:
                shutil.copyfile(SOURCE / name, folder / name)
            # No scripts of packages are run.
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(command, check=True, cwd=folder, stdout=sys.stderr)
            shutil.copyfile(SOURCE / FILES[-1], folder / FILES[-1])
            (folder / FILES[-1]).chmod(0o755)
    print(folder / FILES[-1])
    return 0


def is_there(folder: Path) -> bool:
    """True if all files of the source are there as they are: the program is copied last."""
    return all(
        (folder / name).exists() and (folder / name).read_bytes() == (SOURCE / name).read_bytes() for name in FILES
    )


if __name__ == "__main__":
    sys.exit(main())
