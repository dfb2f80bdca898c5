"""A long run: replicas of the control plane on one real Consul, with clients on all of them, whose endpoints change.

Each edit moves an instance of a service to an address that says its number, so that a client's assignment tells which
edit it has. Once a minute the edits pause until every client has the last edit of every service: none may be lost. Then
what could have grown is written down: memory, open files, tables, the state on disk. The log is a table of Markdown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import attrs

from bench.cases import Say
from bench.consul_server import OPERATIONS, ConsulServer, assignment, consul_server, instance
from bench.crew import Crew, SwarmError
from bench.load_program import load_program
from bench.server import OwnServer, process_cpu_seconds, proportional_memory

CONVERGENCE_SECONDS = 300.0
"""How long clients may take after a minute's last edit."""
MINUTE = 60.0
START_SECONDS = 900.0
COLUMNS = ("minute", "edits", "one edit s", "all converged s", "behind", "lost streams", "planes MB", "files")
MORE_COLUMNS = ("derived", "state MB", "Consul MB", "planes CPU s", "waited s", "Consul CPU s", "clients CPU s")
"""CPU seconds are those of the minute, checks included; the first row has those of the start. ``waited``: the seconds
in which planes could have run, but other programs had the cores."""


@attrs.frozen(kw_only=True)
class Soak:
    """How much of everything, for how long."""

    minutes: int
    services: int
    instances: int
    edits_per_second: int
    replicas: int
    clients: int
    variant: str
    consul: Path | None


@attrs.define
class Registry:
    """Consul as its services are edited. Mutable state: the number of the last edit, and the last of each service."""

    consul: ConsulServer
    services: int
    edit: int = 0
    last: dict[int, int] = attrs.Factory(dict)

    def change(self, count: int) -> None:
        """So many edits in one transaction, of the services whose turn it is."""
        first = self.edit + 1
        self.edit += count
        numbers = {(edit - 1) % self.services: edit for edit in range(first, self.edit + 1)}
        self.consul.transact([instance(number, 0, edit_address(edit)) for number, edit in numbers.items()])
        self.last.update(numbers)


def edit_address(edit: int) -> str:
    """An address that has the number of an edit in its last three parts; the load program reads it."""
    return f"198.{edit >> 16 & 255}.{edit >> 8 & 255}.{edit & 255}"


def soak(told: Soak, log: Path | None, say: Say) -> list[str]:
    """The whole run; returns what went wrong, as sentences."""
    with ExitStack() as stack:
        program = stack.enter_context(load_program())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mesh-pilot-bench-")))
        consul = stack.enter_context(consul_server(folder, told.consul, connections=10_000))
        consul.fill(told.services, told.instances)
        registry = Registry(consul, told.services)
        say(f"Consul has {told.services:,} services of {told.instances} instances")
        planes = list(stack.enter_context(_planes(folder, told.replicas, consul.url)))
        say(f"{told.replicas} planes are ready")
        crew = stack.enter_context(Crew(*(plane.address for plane in planes), program=program))
        crew.open(told.clients, told.variant, ["default"])
        if missing := crew.complete(START_SECONDS).missing:
            raise SwarmError(f"{missing} clients are not complete after {START_SECONDS:g} s")
        say(f"{told.clients} clients are complete")
        table = Table(log)
        run = _Run(told, registry, crew, planes, consul.process.pid)
        ends = time.monotonic() + told.minutes * MINUTE
        table.add(run.minute(0))
        for minute in count(1):
            table.add(run.minute(minute))
            if time.monotonic() >= ends:
                break
        say(table.summary())
        return [*run.problems, *table.growth()]


@attrs.define
class _Run:
    """What a minute needs. Mutable state: what went wrong, and the seconds so far that each process ran and waited."""

    told: Soak
    registry: Registry
    crew: Crew
    planes: Sequence[OwnServer]
    consul: int
    problems: list[str] = attrs.Factory(list)
    times: list[float] = attrs.Factory(list)

    def minute(self, number: int) -> list[str]:
        """Edits for a minute (none before the first), then a row of the table."""
        one = self._edits() if number else 0.0
        began = time.monotonic()
        wanted = {assignment(service): edit for service, edit in self.registry.last.items()}
        behind, examples = self.crew.behind(wanted)
        while behind and time.monotonic() < began + CONVERGENCE_SECONDS:
            self.crew.quiet(0.2, 1)
            behind, examples = self.crew.behind(wanted)
        converged = time.monotonic() - began
        received = self.crew.count(reset=False)
        if behind:
            self.problems.append(f"minute {number}: {behind} clients lack an edit: {examples[0]}")
        if received.connected != self.told.clients:
            self.problems.append(f"minute {number}: {self.told.clients - received.connected} clients have no stream")
        memory = [plane.memory()[0] for plane in self.planes]
        files = [sum(1 for _ in Path(f"/proc/{plane.pid}/fd").iterdir()) for plane in self.planes]
        derived = [plane.get("/debug/statistics")["memo"]["derived"] for plane in self.planes]
        state = [_size(plane.state_folder) / 1e6 for plane in self.planes]
        consul = proportional_memory(self.consul)
        before = self.times or [0.0] * (2 * len(self.planes) + 2)
        self.times = [plane.cpu_seconds() for plane in self.planes]
        self.times += [plane.waited_seconds()[plane.pid] for plane in self.planes]
        self.times += [process_cpu_seconds(self.consul), received.cpu_seconds]
        spent = [now - then for now, then in zip(self.times, before, strict=True)]
        return [
            *(str(number), f"{self.registry.edit:,}", f"{one:.2f}", f"{converged:.1f}", str(behind)),
            *(str(received.lost), _each(memory), _each(files), _each(derived), _each(state, 1), f"{consul:.0f}"),
            *(_each(spent[: len(self.planes)], 1), _each(spent[len(self.planes) : -2], 1)),
            *(f"{spent[-2]:.1f}", f"{spent[-1]:.1f}"),
        ]

    def _edits(self) -> float:
        """A minute of them; the seconds until the last client had one of them, or a later one of its service."""
        over = threading.Event()
        thread = threading.Thread(target=self._edit_until, args=(over,))
        ends = time.monotonic() + MINUTE
        thread.start()
        try:
            time.sleep(MINUTE / 4)
            sampled = self.registry.edit + 2 * self.told.edits_per_second  # it comes in two seconds
            while self.registry.edit < sampled and thread.is_alive():
                time.sleep(0.001)
            began = time.monotonic()
            wanted = {assignment((sampled - 1) % self.told.services): sampled}
            while self.crew.behind(wanted)[0] and time.monotonic() < began + CONVERGENCE_SECONDS:
                self.crew.quiet(0.02, 0.02)
            seconds = time.monotonic() - began
            time.sleep(max(0.0, ends - time.monotonic()))
        finally:
            over.set()
            thread.join()
        return seconds

    def _edit_until(self, over: threading.Event) -> None:
        """Edits at the rate, a transaction at a time; a Consul that is slower gets fewer."""
        rate, due = self.told.edits_per_second, time.monotonic()
        count = min(OPERATIONS, self.told.services, max(1, rate // 5))
        while not over.is_set():
            self.registry.change(count)
            due = max(due + count / rate, time.monotonic() - 1)
            over.wait(max(0.0, due - time.monotonic()))


class Table:
    """The log, written row by row."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._rows: list[list[str]] = []
        self._write("w", (*COLUMNS, *MORE_COLUMNS), ("---",) * len((*COLUMNS, *MORE_COLUMNS)))

    def add(self, row: list[str]) -> None:
        self._rows.append(row)
        self._write("a", row)

    def _write(self, mode: str, *rows: Sequence[str]) -> None:
        text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        print(text, end="", flush=True)
        if self._log is not None:
            with self._log.open(mode, encoding="utf-8") as file:
                file.write(text)

    def growth(self) -> list[str]:
        """Columns that grew by more than a tenth from the first third to the end, for runs long enough to tell."""
        if len(self._rows) < 9:
            return []
        found = []
        for name in ("planes MB", "files", "derived"):
            column = self._column(name)
            before, after = max(column[len(column) // 3]), max(column[-1])
            if after > before * 1.1:
                found.append(f"{name}: {before:,.0f} after a third of the run, {after:,.0f} at its end")
        return found

    def summary(self) -> str:
        """The whole run in a few lines."""
        last = [self._column(name)[-1][0] for name in ("edits", "behind", "lost streams")]
        lines = [f"{last[0]:,.0f} edits; clients behind {last[1]:.0f}, streams lost {last[2]:.0f}"]
        for name in ("one edit s", "all converged s"):
            column = [row[0] for row in self._column(name)[1:]]
            lines.append(f"{name}: median {median(column):.2f}, at most {max(column):.2f}")
        for name in ("planes MB", "Consul MB", "state MB"):
            place = (*COLUMNS, *MORE_COLUMNS).index(name)
            first, third, end = (self._rows[at][place] for at in (0, len(self._rows) // 3, -1))
            lines.append(f"{name}: {first} at first, {third} after a third, {end} at the end")
        for name in ("planes CPU s", "waited s", "Consul CPU s", "clients CPU s"):
            minutes = [sum(row) for row in self._column(name)[1:]]
            lines.append(f"{name}: {median(minutes):.1f} a minute together, at most {max(minutes):.1f}")
        return "\n  ".join(lines)

    def _column(self, name: str) -> list[list[float]]:
        at = (*COLUMNS, *MORE_COLUMNS).index(name)
        return [[float(part) for part in row[at].replace(",", "").split(" / ")] for row in self._rows]


def _each(values: Sequence[float], digits: int = 0) -> str:
    return " / ".join(f"{value:,.{digits}f}" for value in values)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def _planes(folder: Path, count: int, consul: str) -> Iterator[Sequence[OwnServer]]:
    """Replicas, each with its own folder."""
    with ExitStack() as stack:
        planes = []
        for number in range(count):
            config = folder / f"plane-{number}" / "config"
            config.mkdir(parents=True)
            plane = OwnServer(f"plane-{number}", config, options=("--consul-server-url", consul))
            stack.callback(plane.stop)
            plane.start(START_SECONDS)
            planes.append(plane)
        yield planes
