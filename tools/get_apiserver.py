"""Builds the real API server of Kubernetes that the tests drive, and fetches its etcd.

The API server is the release that tests/apiserver/go.mod names; etcd is package `etcd-server` of Debian's suite trixie,
because that of bookworm is too old for streaming lists.

    python tools/get_apiserver.py --into .cache/apiserver     # prints the paths of the binaries
    python tools/get_apiserver.py --controllers               # kube-controller-manager as well: one more minute or two

Needs Go. The modules come from Go's module proxy, the build needs no C compiler. Does nothing where the binaries of
this release are there already. A build from nothing costs about eight minutes of one core, and 2.5 GB below Go's own
cache; one that finds that cache costs seconds. A build that another has begun is waited for.
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

MODULE = Path(__file__).resolve().parent.parent / "tests" / "apiserver"
SERVER, CONTROLLERS = "kube-apiserver", "kube-controller-manager"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/apiserver"), help="folder to build to")
    parser.add_argument("--controllers", action="store_true", help="build kube-controller-manager, too")
    options = parser.parse_args()
    folder = options.into.resolve()
    etcd = folder / "etcd" / "usr" / "bin" / "etcd"
    binaries = [folder / SERVER, *([folder / CONTROLLERS] if options.controllers else [])]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not etcd.exists():
            unpack("etcd-server", "trixie", folder / "etcd")
        for binary in binaries:
            if not is_built(binary):
                if shutil.which("go") is None:
                    print(f"no go on PATH: put a {binary.name} on PATH, or name one in its variable", file=sys.stderr)
                    return 1
                build(binary)
    print(*binaries, etcd, sep="\n")
    return 0


def is_built(binary: Path) -> bool:
    """True if it is there, in this release."""
    if not binary.exists():
        return False
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1] == release()


def release() -> str:
    """The release that go.mod requires, such as v1.35.8."""
    found = re.search(r"^require k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def build(binary: Path) -> None:
    """Replaces the binary, which may be running, only once the new one is there."""
    new = binary.with_suffix(".new")
    # Without its version, the server would take itself for v0.0.0 and refuse its own feature gates.
    flags = f"-s -w -X k8s.io/component-base/version.gitVersion={release()}"
    # -mod=readonly: what go.sum does not vouch for is refused.
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOGC": "400"}
    command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", new, f"k8s.io/kubernetes/cmd/{binary.name}"]
    environment = {"HOME": str(Path.home()), **os.environ, **settings}
    subprocess.run(command, check=True, cwd=MODULE, env=environment, stdout=sys.stderr)
    new.replace(binary)


if __name__ == "__main__":
    sys.exit(main())
