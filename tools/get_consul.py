"""Fetches the real Consuls that the tests drive.

    python tools/get_consul.py --into .cache/consul            # prints the path of the binary
    python tools/get_consul.py --new --into .cache/consul-new   # builds the newest one

The first is package `consul` of Debian's suite bullseye, unpacked, not installed: 1.8.7, the oldest that people still
have. Nothing of the system changes, and no root is needed.

The newest is the release that tools/consul/go.mod names, 1.16.3. It is the last one under an open-source licence (MPL
2.0; 1.17 and later are under the Business Source License) whose modules is available from Go's module proxy. Its build
needs Go and no C compiler, and costs about ten minutes of one core; one that finds Go's cache costs seconds. A build
that another has begun is waited for.

Both do nothing where the binary is there already.
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

from debian_package import unpack

MODULE = Path(__file__).resolve().parent / "consul"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/consul"), help="folder to put it in")
    parser.add_argument("--new", action="store_true", help="build the newest one instead")
    options = parser.parse_args()
    folder = options.into.resolve()
    binary = folder / "consul" if options.new else folder / "usr" / "bin" / "consul"
    if options.new:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_built(binary):
                if shutil.which("go") is None:
                    print("no go on PATH: name a newer Consul in CONSUL_NEW", file=sys.stderr)
                    return 1
                build(binary)
    elif not binary.exists():
        unpack("consul", "bullseye", folder)
    subprocess.run([binary, "version"], check=True, stdout=subprocess.DEVNULL)
    print(binary)
    return 0


def is_built(binary: Path) -> bool:
    """True if it is there, in the release that go.mod requires."""
    if not binary.exists():
        return False
    said = subprocess.run([binary, "version"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()[0] == f"Consul {release()}"


def release() -> str:
    found = re.search(r"^\s*github\.com/hashicorp/consul (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def build(binary: Path) -> None:
    """Replaces the binary, which may be running, only once the new one is there."""
    new = binary.with_suffix(".new")
    # -mod=readonly: what go.sum does not vouch for is refused.
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOGC": "400"}
    command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", new, "github.com/hashicorp/consul"]
    environment = {"HOME": str(Path.home()), **os.environ, **settings}
    subprocess.run(command, check=True, cwd=MODULE, env=environment, stdout=sys.stderr)
    new.replace(binary)


if __name__ == "__main__":
    sys.exit(main())
