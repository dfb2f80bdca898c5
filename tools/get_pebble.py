"""Builds Pebble, Let's Encrypt's issuer for tests of ACME, which the tests drive.

    python tools/get_pebble.py --into .cache/pebble      # prints the path of the binary

The release is the one that tools/pebble/go.mod names. Its build needs Go and no C compiler, and costs about a minute of
one core. Two that build at once take turns. Does nothing where the binary of this release is there already.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = Path(__file__).resolve().parent / "pebble"
PACKAGE = "github.com/letsencrypt/pebble/v2"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/pebble"), help="folder to build to")
    folder = parser.parse_args().into.resolve()
    binary, built = folder / "pebble", folder / "release"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (binary.exists() and built.exists() and built.read_text() == release()):
            if shutil.which("go") is None:
                print("no go on PATH: name a Pebble in PEBBLE", file=sys.stderr)
                return 1
            build(binary)
            built.write_text(release())
    print(binary)
    return 0


def release() -> str:
    found = re.search(rf"{re.escape(PACKAGE)} (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found[1]


def build(binary: Path) -> None:
    """Replaces the binary, which may be running, only once the new one is there."""
    new = binary.with_suffix(".new")
    # -mod=readonly: what go.sum does not vouch for is refused.
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", new, f"{PACKAGE}/cmd/pebble"]
    environment = {"HOME": str(Path.home()), **os.environ, **settings}
    subprocess.run(command, check=True, cwd=MODULE, env=environment, stdout=sys.stderr)
    new.replace(binary)


if __name__ == "__main__":
    sys.exit(main())
