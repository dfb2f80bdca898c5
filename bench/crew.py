"""The bench's side of the swarm: starts its processes, tells them what to do, and adds up what they answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from bench.wire import TYPES

_HERE = Path(__file__).resolve().parent.parent

Wanted = tuple[str, str, int]
"""What clients are to hold: type (``CDS``, ...), text, how often at least; 0: nowhere."""


class SwarmError(Exception):
    """A process of the swarm ended, or said something else than an answer."""


@attrs.frozen
class Times:
    """When clients had something, of ``time.monotonic()``, earliest first; and how many never had it in time."""

    at: tuple[float, ...]
    missing: int


@attrs.frozen
class Received:
    """What all clients received since they were last counted."""

    bytes: int
    responses: int
    resources: int
    needless: int
    """Responses after which a client had nothing that it did not have before."""
    removed: int
    """Resources that clients no longer have after a response; of the load program only."""
    by_type: Mapping[str, int]
    duplicates: Sequence[str]
    lost: int
    """Streams that the server ended, since the start."""
    connected: int
    cpu_seconds: float
    """Of the swarm, since its start."""


SWARM = (sys.executable, "-m", "bench.swarm")


class Crew:
    """A swarm of one or several processes; leaving the block ends them.

    ``program``: the command of a process, which is given the addresses; bench/load has one for thousands of clients.
    """

    def __init__(self, *addresses: str, processes: int = 1, program: Sequence[str] = SWARM) -> None:
        command = [*program, *addresses]
        self._processes = [
            subprocess.Popen(command, cwd=_HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        self.clients = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            assert process.stdin and process.stdout
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()

    def open(self, count: int, variant: str, namespaces: Sequence[str]) -> None:
        """Connect ``count`` clients, spread over the processes and over the namespaces."""
        share, more = divmod(count, len(self._processes))
        for number, process in enumerate(self._processes):
            own = share + (number < more)
            turned = [namespaces[(number + i * len(self._processes)) % len(namespaces)] for i in range(len(namespaces))]
            self._tell(process, do="open", count=own, variant=variant, namespaces=turned)
        self._answers()
        self.clients += count

    def disconnect(self) -> None:
        self._all(do="disconnect")

    def reconnect(self, *, keep: bool) -> None:
        """Every client opens a new stream; with ``keep`` it presents the versions it has."""
        self._all(do="reconnect", keep=keep)

    def set_role(self, role: str) -> None:
        """Of the very first client."""
        self._tell(self._processes[0], do="set_role", index=0, role=role)
        self._answer(self._processes[0])

    def expect(self, wanted: Sequence[Wanted], namespace: str = "") -> None:
        """Watch from now on for clients (of a namespace, or all) to hold all of this; ``collect`` gives the result."""
        assert all(kind in TYPES for kind, _, _ in wanted)
        self._all(do="expect", conditions=wanted, namespace=namespace)

    def collect(self, seconds: float) -> Times:
        return _times(self._all(do="collect", seconds=seconds))

    def complete(self, seconds: float) -> Times:
        """When each client had everything that it was told of."""
        return _times(self._all(do="complete", seconds=seconds))

    def quiet(self, quiet_seconds: float, seconds: float) -> list[float]:
        """Wait until nothing comes any more; when each client that was sent anything received its last response."""
        return sorted(t for a in self._all(do="quiet", quiet_seconds=quiet_seconds, seconds=seconds) for t in a["last"])

    def count(self, *, reset: bool = True) -> Received:
        answers = self._all(do="count", reset=reset)
        by_type: dict[str, int] = {}
        for answer in answers:
            for kind, count in answer["by_type"].items():
                by_type[kind] = by_type.get(kind, 0) + count
        sums = {k: sum(a[k] for a in answers) for k in ("bytes", "responses", "resources", "needless", "lost")}
        return Received(
            **sums,
            removed=sum(a.get("removed", 0) for a in answers),
            by_type=by_type,
            duplicates=[d for a in answers for d in a["duplicates"]],
            connected=sum(a["connected"] for a in answers),
            cpu_seconds=sum(a["cpu"] for a in answers),
        )

    def check(self) -> dict[str, Any]:
        """What is wrong with what clients hold (``problems``), and how many different states they are in."""
        answers = self._all(do="check")
        return {
            "states": max(a["states"] for a in answers),
            "sizes": answers[0]["sizes"],
            "problems": [p for a in answers for p in a["problems"]],
        }

    def behind(self, sequences: Mapping[str, int]) -> tuple[int, list[str]]:
        """How many clients do not hold these assignments at these sequence numbers (addresses 198.A.B.C) or later ones,
        with examples; of the load program only."""
        answers = self._all(do="behind", names=sequences)
        return sum(a["behind"] for a in answers), [e for a in answers for e in a["examples"]]

    def _all(self, **command: Any) -> list[Any]:
        for process in self._processes:
            self._tell(process, **command)
        return self._answers()

    def _answers(self) -> list[Any]:
        return [self._answer(process) for process in self._processes]

    @staticmethod
    def _tell(process: subprocess.Popen[str], **command: Any) -> None:
        assert process.stdin
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> Any:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            raise SwarmError(f"a process of the swarm ended with status {process.wait()}; its trace is above")
        return json.loads(line)


def _times(answers: Sequence[Mapping[str, Any]]) -> Times:
    return Times(tuple(sorted(t for a in answers for t in a["times"])), sum(a["missing"] for a in answers))
