"""Plants the small faults of ``tests/faults.yaml``, one at a time, and says which of them the tests find.

    python -m tools.faults                        # every fault, with the tests that its row names
    python -m tools.faults --only two-crls        # one of them
    python -m tools.faults --list                 # what there is
    python -m tools.faults --only two-crls --command 'pytest -n 2 -m "not slow"'      # would this find it?

The checkout stays as it is: faults are planted in a copy of ``src`` and ``tests`` in a temporary folder, where
everything runs, also what tests start. Before the first fault the same tests run without any, and must pass. The exit
code is 1 if they do not, or if a fault is not found.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import yaml

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.yaml"
PACKAGE = Path("src", "mesh_pilot")

COPIED = ("src", "tests")
LEFT_OUT = (".git",)
"""What the copy does not have: a test must not change the checkout's repository. All else in it is a link."""

PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", "-x")
LONGEST_SECONDS = 3600.0
"""A run that takes longer hangs, which is a failure of it."""


class FaultError(Exception):
    """A row that cannot be planted, or tests that fail without a fault: one line for people."""


@attrs.frozen
class Fault:
    """A row of the file."""

    name: str
    file: str
    """Below ``src/mesh_pilot``."""
    before: str
    """Text that the file has once."""
    after: str
    """The text instead."""
    what: str
    """What a user would lose."""
    found_by: tuple[str, ...] = attrs.field(converter=tuple)
    """Tests that fail with it, as pytest names them, the cheapest first."""

    @property
    def room(self) -> str:
        return self.file.split("/")[0].removesuffix(".py")

    def planted(self, text: str) -> str:
        """The text of the file with the fault in it. Raises FaultError."""
        if text.count(self.before) != 1:
            raise FaultError(f"{self.name}: {self.file} has the text {text.count(self.before)} times, expected once")
        return text.replace(self.before, self.after)


def read_faults(path: Path = FAULTS) -> list[Fault]:
    rows: list[Mapping[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [Fault(**row) for row in rows]


class Copy:
    """A copy of the checkout, in which commands run. The folder is the caller's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for entry in ROOT.iterdir():
            if entry.name in COPIED:
                shutil.copytree(entry, folder / entry.name, symlinks=True)
            elif entry.name not in LEFT_OUT:
                (folder / entry.name).symlink_to(entry)

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Plant a fault for the block. Raises FaultError."""
        place = PACKAGE / fault.file
        text = fault.planted((ROOT / place).read_text(encoding="utf-8"))
        (self.folder / place).write_text(text, encoding="utf-8")
        try:
            yield
        finally:
            shutil.copy2(ROOT / place, self.folder / place)  # with its time, by which bytecode is known to be old

    def run(self, command: Sequence[str]) -> tuple[bool, str]:
        """Run a command: whether it succeeds, and what it wrote."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder / "src"),  # comes before the checkout, which may be installed as editable
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
            "TEST_EXAMPLES": "all",  # the few of a default run may miss a fault
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LONGEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"no end within {LONGEST_SECONDS:g} s"
        if command[: len(PYTEST)] == list(PYTEST) and done.returncode > 1:
            raise FaultError(f"pytest ran no tests (exit code {done.returncode}):\n{done.stdout}")
        return done.returncode == 0, done.stdout


def try_faults(faults: Sequence[Fault], copy: Copy, command: Sequence[str] = ()) -> int:
    """Try faults one by one, and print what comes of each; returns the number that is not found. Raises FaultError.

    ``command``: what has to find them, in place of the tests that they name.
    """
    named = dict.fromkeys(test for fault in faults for test in fault.found_by)
    began = time.monotonic()
    passes, output = copy.run(list(command) or [*PYTEST, *named])
    if not passes:
        raise FaultError(f"this fails without any fault:\n{output}")
    print(f"without a fault: passed ({time.monotonic() - began:.1f} s)", flush=True)
    missed = sum(not is_found(fault, copy, command) for fault in faults)
    print(f"{len(faults) - missed} of {len(faults)} found")
    return missed


def is_found(fault: Fault, copy: Copy, command: Sequence[str] = ()) -> bool:
    """Try a fault, and print what comes of it. Raises FaultError."""
    began = time.monotonic()
    with copy.with_fault(fault):
        passes, output = copy.run(list(command) or [*PYTEST, *fault.found_by])
    print(f"{fault.name}: {'NOT FOUND' if passes else 'found'} ({time.monotonic() - began:.1f} s)", flush=True)
    if passes:
        print(f"  {fault.file}: {fault.what}\n  {(output.splitlines() or ['no output'])[-1]}", flush=True)
    return not passes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this fault; may be given several times")
    parser.add_argument("--list", action="store_true", help="list the faults, and plant none")
    parser.add_argument("--command", type=shlex.split, default=(), help="run this in place of the named tests")
    arguments = parser.parse_args()
    faults = read_faults()
    if unknown := set(arguments.only or ()) - {fault.name for fault in faults}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; --list has the names")
    faults = [fault for fault in faults if not arguments.only or fault.name in arguments.only]
    if arguments.list:
        for fault in faults:
            print(f"{fault.name} ({fault.file}): {fault.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mesh-pilot-faults.") as folder:
        try:
            return 1 if try_faults(faults, Copy(Path(folder)), arguments.command) else 0
        except FaultError as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
