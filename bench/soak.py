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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import httpx

from bench.cases import Say
from bench.consul_flaps import start_consul
from bench.crew import Crew, SwarmError
from bench.load_program import load_program
from bench.server import OwnServer, free_ports, process_cpu_seconds

PORT = 8080
OPERATIONS = 60
"""Of a transaction; Consul takes 64."""
CONVERGENCE_SECONDS = 120.0
"""How long clients may take after a minute's last edit."""
MINUTE = 60.0
START_SECONDS = 900.0
COLUMNS = ("minute", "edits", "one edit s", "all converged s", "behind", "lost streams", "planes MB", "files")
MORE_COLUMNS = ("derived", "state MB", "planes CPU s", "Consul CPU s", "clients CPU s")


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
    """Consul as the bench fills it. Mutable state: the number of the last edit, and the last of each service."""

    client: httpx.Client
    services: int
    instances: int
    edit: int = 0
    last: dict[int, int] = attrs.Factory(dict)

    def fill(self) -> None:
        """All services, a node for each rank of their instances."""
        for rank in range(self.instances):
            node = {"Node": f"node-{rank}", "Address": f"10.{rank}.0.1"}
            self._put("/v1/catalog/register", node)
            for start in range(0, self.services, OPERATIONS):
                numbers = range(start, min(start + OPERATIONS, self.services))
                self._transact([instance(number, rank) for number in numbers])

    def change(self, count: int) -> None:
        """So many edits in one transaction, of the services whose turn it is."""
        first = self.edit + 1
        self.edit += count
        numbers = {(edit - 1) % self.services: edit for edit in range(first, self.edit + 1)}
        self._transact([instance(number, 0, edit) for number, edit in numbers.items()])
        self.last.update(numbers)

    def _transact(self, operations: Sequence[Any]) -> None:
        self._put("/v1/txn", operations)

    def _put(self, path: str, body: Any) -> None:
        self.client.put(path, json=body).raise_for_status()


def instance(number: int, rank: int, edit: int = 0) -> dict[str, Any]:
    """The operation that registers an instance of a service, at the address of an edit if there was one."""
    address = edit_address(edit) if edit else f"10.{rank}.{number // 250}.{number % 250 + 1}"
    service = {"ID": f"s-{number}-{rank}", "Service": f"s-{number}", "Address": address, "Port": PORT}
    return {"Service": {"Verb": "set", "Node": f"node-{rank}", "Service": service}}


def edit_address(edit: int) -> str:
    """An address that has the number of an edit in its last three parts; the load program reads it."""
    return f"198.{edit >> 16 & 255}.{edit >> 8 & 255}.{edit & 255}"


def assignment(number: int) -> str:
    return f"outbound|{PORT}||s-{number}.service.consul"


def soak(told: Soak, log: Path | None, say: Say) -> list[str]:
    """The whole run; returns what went wrong, as sentences."""
    with ExitStack() as stack:
        program = stack.enter_context(load_program())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mesh-pilot-bench-")))
        consul, registry = stack.enter_context(_consul(folder, told))
        say(f"Consul has {told.services:,} services of {told.instances} instances")
        planes = list(stack.enter_context(_planes(folder, told.replicas, str(registry.client.base_url))))
        say(f"{told.replicas} planes are ready")
        crew = stack.enter_context(Crew(*(plane.address for plane in planes), program=program))
        crew.open(told.clients, told.variant, ["default"])
        if missing := crew.complete(START_SECONDS).missing:
            raise SwarmError(f"{missing} clients are not complete after {START_SECONDS:g} s")
        say(f"{told.clients} clients are complete")
        table = _Table(log)
        run = _Run(told, registry, crew, planes, consul)
        for minute in range(told.minutes + 1):
            table.add(run.minute(minute))
        return [*run.problems, *table.growth()]


@attrs.define
class _Run:
    """What a minute needs. Mutable state: what went wrong."""

    told: Soak
    registry: Registry
    crew: Crew
    planes: Sequence[OwnServer]
    consul: int
    problems: list[str] = attrs.Factory(list)

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
        cpu = [plane.cpu_seconds() for plane in self.planes]
        return [
            *(str(number), f"{self.registry.edit:,}", f"{one:.2f}", f"{converged:.1f}", str(behind)),
            *(str(received.lost), _each(memory), _each(files), _each(derived), _each(state, 1), _each(cpu)),
            *(f"{process_cpu_seconds(self.consul):.0f}", f"{received.cpu_seconds:.0f}"),
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


class _Table:
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
            column = (*COLUMNS, *MORE_COLUMNS).index(name)
            before, after = (
                max(map(float, row[column].replace(",", "").split(" / ")))
                for row in (self._rows[len(self._rows) // 3], self._rows[-1])
            )
            if after > before * 1.1:
                found.append(f"{name}: {before:,.0f} after a third of the run, {after:,.0f} at its end")
        return found


def _each(values: Sequence[float], digits: int = 0) -> str:
    return " / ".join(f"{value:,.{digits}f}" for value in values)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def _consul(folder: Path, told: Soak) -> Iterator[tuple[int, Registry]]:
    """A Consul with the services in it, and its process."""
    http, *others = free_ports(4)
    process = start_consul(folder, http, others, 10_000, told.consul)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{http}", timeout=60, trust_env=False) as client:
            ends = time.monotonic() + START_SECONDS
            while not _takes_writes(client):
                if time.monotonic() > ends or process.poll() is not None:
                    raise SwarmError("Consul does not start")
                time.sleep(0.1)
            registry = Registry(client, told.services, told.instances)
            registry.fill()
            yield process.pid, registry
    finally:
        process.kill()
        process.wait()


def _takes_writes(client: httpx.Client) -> bool:
    try:
        return client.put("/v1/catalog/register", json={"Node": "n", "Address": "10.0.0.1"}).is_success
    except httpx.TransportError:
        return False


@contextmanager
def _planes(folder: Path, count: int, consul: str) -> Iterator[Sequence[OwnServer]]:
    """Replicas, each with a folder of its own."""
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
