"""What a run found: measurements, as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

import attrs
from rich.console import Console
from rich.table import Table

from bench.server import ROOT

FORMAT = 1
"""Of the JSON; grows when fields change their meaning."""


@attrs.frozen(kw_only=True)
class Measurement:
    """One event on one mesh, seen from all clients. Seconds are from the moment at which the change was in the file."""

    server: str
    """``mesh-pilot``, ``peer``, or a git revision."""
    mesh: str
    variant: str
    clients: int
    event: str
    repeat: int = 0
    p50: float = 0.0
    p99: float = 0.0
    last: float = 0.0
    waited: float = 0.0
    """Seconds of ``last`` in which the server could have run, but other programs had the cores."""
    missing: int = 0
    """Clients that did not have it in time."""
    publish: float = 0.0
    """Of the last: mean seconds from a first event to the publication, as the server tells; debouncing, mostly."""
    bytes: int = 0
    responses: int = 0
    by_type: Mapping[str, int] = attrs.Factory(dict)
    resources: int = 0
    needless: int = 0
    """Responses that changed nothing for their client."""
    removed: int = 0
    """Resources that clients no longer have afterwards; told by the load program only."""
    cpu: float = 0.0
    """CPU seconds of the server."""
    swarm_cpu: float = 0.0
    memory: float = 0.0
    """Resident megabytes of the server afterwards."""
    calls: int = 0
    """Translator calls; 0 where the server can't be asked."""
    calls_by_function: Mapping[str, int] = attrs.Factory(dict)
    problems: Sequence[str] = ()
    """What clients found wrong: references that lead nowhere, duplicates, lost streams, different states."""
    note: str = ""


class Spread(TypedDict):
    p50: float
    p99: float
    last: float


def spread(times: Sequence[float]) -> Spread:
    """The middle, the 99th hundredth and the last of some seconds."""
    held = sorted(times)
    if not held:
        return {"p50": 0.0, "p99": 0.0, "last": 0.0}
    return {"p50": held[(len(held) - 1) // 2], "p99": held[max(0, -(-len(held) * 99 // 100) - 1)], "last": held[-1]}


def middle(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Repeats as one: the one whose time is in the middle, with the median of the CPU."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.server, m.mesh, m.variant, str(m.clients), m.event), []).append(m)
    found = []
    for group in groups.values():
        chosen = sorted(group, key=lambda m: m.last)[(len(group) - 1) // 2]
        problems = list(dict.fromkeys(problem for m in group for problem in m.problems))
        found.append(attrs.evolve(chosen, cpu=median(m.cpu for m in group), problems=problems))
    return found


def tables(measurements: Sequence[Measurement]) -> Iterable[Table]:
    """A table for each mesh and number of clients."""
    cases: dict[tuple[str, int], list[Measurement]] = {}
    for m in middle(measurements):
        cases.setdefault((m.mesh, m.clients), []).append(m)
    for (mesh, clients), rows in cases.items():
        table = Table(title=f"{mesh}; {clients:,} clients", title_justify="left")
        table.add_column("event")
        table.add_column("variant")
        if len({m.server for m in rows}) > 1:
            table.add_column("server")
        for name in (
            "p50 s",
            "p99 s",
            "last s",
            "waited s",
            "published s",
            "CPU s",
            "MB sent",
            "responses",
            "calls",
            "RSS MB",
        ):
            table.add_column(name, justify="right")
        table.add_column("wrong")
        for m in rows:
            servers = [m.server] if len({m.server for m in rows}) > 1 else []
            wrong = [f"{m.missing} missing"] if m.missing else []
            wrong += (
                [m.problems[0] + (f" and {len(m.problems) - 1} more" if len(m.problems) > 1 else "")]
                if m.problems
                else []
            )
            cells = [f"{m.p50:.3f}", f"{m.p99:.3f}", f"{m.last:.3f}", f"{m.waited:.3f}" if m.waited else ""]
            cells += [f"{m.publish:.3f}" if m.publish else "", f"{m.cpu:.3f}", f"{m.bytes / 1e6:.2f}"]
            cells += [f"{m.responses:,}", f"{m.calls:,}", f"{m.memory:.0f}"]
            table.add_row(m.event, m.variant, *servers, *cells, "; ".join(wrong + ([m.note] if m.note else [])))
        yield table


def surroundings() -> dict[str, Any]:
    """Where a run took place: what explains differences between runs."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {
        "format": FORMAT,
        "revision": revision,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def write_json(path: Path, measurements: Sequence[Measurement], started: Mapping[str, Any]) -> None:
    told = {**started, "load_at_end": os.getloadavg()[0], "measurements": [attrs.asdict(m) for m in measurements]}
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Measurement]:
    """Measurements of an earlier run. Raises ValueError for another format."""
    told = json.loads(path.read_text(encoding="utf-8"))
    if told.get("format") != FORMAT:
        raise ValueError(f"{path}: format {told.get('format')}, and this bench reads {FORMAT}")
    return [Measurement(**m) for m in told["measurements"]]


def show(measurements: Sequence[Measurement], console: Console) -> None:
    for table in tables(measurements):
        console.print(table)
