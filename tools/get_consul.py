"""Fetches the real Consul that the tests drive: package `consul` of Debian's suite bullseye, unpacked, not installed.

    python tools/get_consul.py --into .cache/consul     # prints the path of the binary

Nothing of the system changes, and no root is needed. Does nothing where the binary is there already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from debian_package import unpack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/consul"), help="folder to unpack to")
    folder = parser.parse_args().into.resolve()
    binary = folder / "usr" / "bin" / "consul"
    if not binary.exists():
        unpack("consul", "bullseye", folder)
    subprocess.run([binary, "version"], check=True, stdout=subprocess.DEVNULL)
    print(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
