"""The start: what ``discovery`` needs until ``/ready`` answers 200, and CPU time of ``--help`` of each command.

`discovery` starts on an empty folder and on a small mesh, without the state of an earlier run. CPU seconds are those of
its process: unlike seconds of the clock they do not depend on who else uses the cores. Of several starts the middle
one; with ``--compare`` a git revision starts in turns with this one. Both have their modules compiled beforehand.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import attrs
import click

from bench.mesh import Mesh
from bench.server import ROOT, checkout, compiled_modules, environment, own_server
from mesh_pilot.cli import COMMANDS

GOAL_SECONDS = 0.15
"""For ``--help`` of any command."""

MESHES: Mapping[str, Mapping[str, str]] = {
    "empty folder": {},
    "10 services": Mesh(services=10, endpoints=2).files(),
}
"""What `discovery` starts on: names and texts of files."""

IMPORTED = "import time:"
"""The beginning of the line that Python logs for each module, and of one heading."""


@attrs.frozen
class Start:
    """What one start needed until it was ready."""

    cpu_seconds: float
    megabytes: float
    """Resident."""


def started(files: Mapping[str, str], source: Path) -> Start:
    """A start of a checkout's `discovery`."""
    with own_server("discovery", files, source=source) as server:
        server.start()
        return Start(server.cpu_seconds(), server.memory()[0])


def modules(files: Mapping[str, str], source: Path) -> int:
    """The number of modules that are imported until the server is ready, Python's own included."""
    with environment({"PYTHONPROFILEIMPORTTIME": "1"}), own_server("modules", files, source=source) as server:
        server.start()
        log = (server.folder.parent / "modules.log").read_text(encoding="utf-8", errors="replace")
    return sum(line.startswith(IMPORTED) for line in log.splitlines()) - 1


def starts(sources: Mapping[str, Path], repeat: int) -> Iterator[tuple[str, str, Start, int]]:
    """Of each mesh and each of the sources: the middle start, and the number of modules."""
    for mesh, files in MESHES.items():
        counts = {name: modules(files, source) for name, source in sources.items()}  # compiles what is not yet
        found: dict[str, list[Start]] = {name: [] for name in sources}
        for _ in range(repeat):
            for name, source in sources.items():
                found[name].append(started(files, source))
        for name, each in found.items():
            middle = Start(median(one.cpu_seconds for one in each), median(one.megabytes for one in each))
            yield mesh, name, middle, counts[name]


def helped(repeat: int) -> dict[str, float]:
    """The CPU seconds of ``--help`` of each command, and of Python alone: the best of several runs."""
    found = {"(python)": _best([sys.executable, "-c", ""], repeat)}
    for name in COMMANDS:
        found[name] = _best([sys.executable, "-m", "mesh_pilot.cli", name, "--help"], repeat)
    return found


def _best(command: Sequence[str], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        before = _used()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(_used() - before)
    return min(times)


def _used() -> float:
    """The CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@click.command()
@click.option("--repeat", default=5, help="Starts of each kind.")
@click.option("--compare", "revision", default="", help="Start this git revision, too.")
@click.option("--starts-only", is_flag=True, help="Leave out --help of each command.")
def main(repeat: int, revision: str, starts_only: bool) -> None:
    """CPU time, memory and modules of a start of discovery; CPU time of each command's --help."""
    with ExitStack() as stack:
        stack.enter_context(compiled_modules())
        sources = {"here": ROOT}
        if revision:
            sources[revision] = stack.enter_context(checkout(revision))
        for mesh, name, start, count in starts(sources, repeat):
            cost = f"{start.cpu_seconds * 1000:7.0f} ms {start.megabytes:6.1f} MB {count:6} modules"
            print(f"{cost}  discovery, {mesh}, {name}", flush=True)
        for name, seconds in sorted(() if starts_only else helped(repeat).items(), key=lambda each: -each[1]):
            print(f"{seconds * 1000:7.0f} ms  {name}{'  (over the goal)' if seconds > GOAL_SECONDS else ''}")


if __name__ == "__main__":
    main()
