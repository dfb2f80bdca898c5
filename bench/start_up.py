"""The start-up of commands: the CPU time of ``--help`` of each, the best of several runs, and of Python alone."""

from __future__ import annotations

import resource
import subprocess
import sys

from mesh_pilot.cli import COMMANDS

RUNS = 5
GOAL_SECONDS = 0.15


def measured() -> dict[str, float]:
    """The seconds of each command, and of Python alone."""
    found = {"(python)": _best([sys.executable, "-c", ""])}
    for name in COMMANDS:
        found[name] = _best([sys.executable, "-m", "mesh_pilot.cli", name, "--help"])
    return found


def _best(command: list[str]) -> float:
    times = []
    for _ in range(RUNS):
        before = _used()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(_used() - before)
    return min(times)


def _used() -> float:
    """The CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    found = measured()
    for name, seconds in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{seconds * 1000:7.0f} ms  {name}{'  (over the goal)' if seconds > GOAL_SECONDS else ''}")


if __name__ == "__main__":
    main()
