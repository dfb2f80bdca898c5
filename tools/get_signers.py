"""Builds CAs that the tests of signers drive: step-ca, and an EST server.

    python tools/get_signers.py --into .cache/signers      # prints the paths of the binaries

The releases are those that tools/step_ca/go.mod and tools/est/go.mod name. The build needs Go and no C compiler, and
costs about four minutes of one core. Two that build at once take turns. Does nothing for a binary of its release that
is there already.
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

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    "step-ca": (HERE / "step_ca", "github.com/smallstep/certificates"),
    "estserver": (HERE / "est", "github.com/globalsign/est"),
}
"""The folder with go.mod, and the module, whose command has the program's name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".cache/signers"), help="folder to build to")
    folder = parser.parse_args().into.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, (module, package) in PROGRAMS.items():
            binary, built = folder / name, folder / f"{name}.release"
            release = release_of(module, package)
            if not (binary.exists() and built.exists() and built.read_text() == release):
                if shutil.which("go") is None:
                    print("no go on PATH: name the programs in STEP_CA and ESTSERVER", file=sys.stderr)
                    return 1
                build(binary, module, f"{package}/cmd/{name}")
                built.write_text(release)
            print(binary)
    return 0


def release_of(module: Path, package: str) -> str:
    found = re.search(rf"{re.escape(package)} (v\S+)", (module / "go.mod").read_text())
    assert found is not None
    return found[1]


def build(binary: Path, module: Path, command: str) -> None:
    """Replaces the binary, which may be running, only once the new one is there."""
    new = binary.with_suffix(".new")
    # -mod=readonly: what go.sum does not vouch for is refused.
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    line = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", new, command]
    environment = {"HOME": str(Path.home()), **os.environ, **settings}
    subprocess.run(line, check=True, cwd=module, env=environment, stdout=sys.stderr)
    new.replace(binary)


if __name__ == "__main__":
    sys.exit(main())
