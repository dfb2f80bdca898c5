"""Ten thousand clients: changes for all of them, what the pages cost then, and a rolling restart.

The clients are those of the load program (``bench/load``), whose CPU is told apart: on a machine with few cores it, the
control plane and everything else share them, so CPU seconds say more than seconds.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from bench import steady_traffic
from bench.cases import Say
from bench.crew import Crew
from bench.events import Stage, connect, endpoint_flap, route_edit
from bench.load_program import load_program
from bench.mesh import HOT_SERVICE, Mesh, edit_marker
from bench.report import Measurement
from bench.server import OwnServer, free_ports, own_server, proportional_memory

PATIENCE = 600.0
PARTS = ("endpoint", "route", "pages", "rolling")
"""What can be left out; the first three come on one control plane."""
PAGES = ("/debug/syncz", "/debug/statistics", "/ready")
RATE = 50.0
"""Requests a second through the real Envoy."""

_edits = itertools.count(5000)


def clients(
    mesh: Mesh, count: int, variants: Sequence[str], parts: Sequence[str], workers: int, repeat: int, say: Say
) -> list[Measurement]:
    """Connect, endpoint changes and route edits; then, on two control planes, a rolling restart of both."""
    options = ("--workers", str(workers)) if workers > 1 else ()
    found: list[Measurement] = []
    with load_program() as program:
        for variant in variants:
            if set(parts) - {"rolling"}:
                found += _changes(mesh, count, variant, parts, program, options, repeat, say)
            if "rolling" in parts:
                found += _rolling(mesh, count, variant, program, options, say)
    return [attrs.evolve(m, note=f"clients: {m.swarm_cpu:.2f} s CPU{'; ' if m.note else ''}{m.note}") for m in found]


def _changes(
    mesh: Mesh,
    count: int,
    variant: str,
    parts: Sequence[str],
    program: Sequence[str],
    options: Sequence[str],
    repeat: int,
    say: Say,
) -> list[Measurement]:
    with own_server("mesh-pilot", mesh.files(), options=tuple(options)) as server:
        server.start()
        with _stage(server, (server.address,), program, mesh, variant, count, say) as stage:
            connect(stage)
            _note(stage, f"MB: {', '.join(f'{proportional_memory(pid):.0f}' for pid in server.processes())}")
            for part, change in (("endpoint", endpoint_flap), ("route", route_edit)):
                for stage.repeat in range(repeat if part in parts else 0):
                    change(stage)
            if "pages" in parts:
                _read_pages(server, say)
        return stage.measured


@contextmanager
def _stage(
    server: OwnServer,
    addresses: Sequence[str],
    program: Sequence[str],
    mesh: Mesh,
    variant: str,
    count: int,
    say: Say,
) -> Iterator[Stage]:
    with Crew(*addresses, program=program) as crew:
        yield Stage(server, crew, mesh, variant, count, PATIENCE, lambda text: say(f"{variant}: {text}"))


def _note(stage: Stage, text: str) -> None:
    stage.measured[-1] = attrs.evolve(stage.measured[-1], note=text)
    stage.say(text)


def _read_pages(server: OwnServer, say: Say) -> None:
    """What a page costs while so many are connected."""
    for page in (*(f"http://{server.http}{path}" for path in PAGES), f"http://{server.monitoring}/metrics"):
        cpu, began = server.cpu_seconds(), time.monotonic()
        with urllib.request.urlopen(page, timeout=60) as answer:
            size = len(answer.read())
        seconds, cpu = time.monotonic() - began, server.cpu_seconds() - cpu
        say(f"{page}: {size / 1e3:,.0f} KB, {seconds:.2f} s, {cpu:.3f} s CPU")


def _rolling(
    mesh: Mesh, count: int, variant: str, program: Sequence[str], options: Sequence[str], say: Say
) -> list[Measurement]:
    """Two control planes over one folder are ended and started, one after the other, while a real Envoy has traffic.

    Wrong is: a failed request, a client without all that it should have, and that a client was told to forget anything.
    Each time a service changes while only one plane runs, and the Envoy's traffic is led to another backend by the one
    that has come back.
    """
    port, *behind = free_ports(3)
    files = {**mesh.files(), steady_traffic.FILE: steady_traffic.config(port, behind[0])}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mesh-pilot-bench-")))
        first = stack.enter_context(own_server("first", files, options=tuple(options)))
        second = OwnServer("second", first.folder, options=tuple(options))
        stack.callback(second.stop)
        for server in (first, second):
            server.start()
        addresses = [first.address, second.address]
        stack.enter_context(steady_traffic.backends(behind))
        traffic = stack.enter_context(steady_traffic.steady_traffic(folder, addresses, port, RATE))
        stage = stack.enter_context(_stage(first, addresses, program, mesh, variant, count, say))
        connect(stage)
        stage.measured.clear()
        for going, staying, backend in ((first, second, 1), (second, first, 0)):
            stage.server = staying
            _restart_one(stage, going)
            first.store.write(steady_traffic.FILE, steady_traffic.config(port, behind[backend]))
            traffic.wait_for(backend)
            stage.measured[-1] = _with_failures(stage.measured[-1], traffic)
        traffic.stop()
        last = stage.measured[-1] = _with_failures(stage.measured[-1], traffic)
        say(f"{variant}: {last.note}, problems: {list(last.problems)}")
        return stage.measured


def _restart_one(stage: Stage, going: OwnServer) -> None:
    """End one, wait until all clients have a change from the other, and start it."""
    edit = next(_edits)
    with stage.measuring(f"restart of the {going.name} of two") as span:
        span.began = time.monotonic()
        going.stop(30)
        ended = time.monotonic() - span.began
        stage.crew.expect([("EDS", edit_marker(edit), 1)])
        stage.write(HOT_SERVICE, stage.mesh.service(0, edit=edit, edited=1))
        span.times = stage.crew.collect(stage.patience)
        span.note = f"ended in {ended:.1f} s, ready again in {going.start():.1f} s"


def _with_failures(measured: Measurement, traffic: steady_traffic.SteadyTraffic) -> Measurement:
    """A measurement with what came of the requests so far."""
    note = measured.note.partition("; requests")[0]
    problems = [p for p in measured.problems if not p.startswith(("requests", "resources"))]
    if measured.removed:
        problems.append(f"resources taken from clients: {measured.removed}")
    if traffic.failures:
        problems.append(f"requests failed: {traffic.failures}")
    return attrs.evolve(measured, note=f"{note}; requests: {traffic.answers.total()}", problems=problems)
