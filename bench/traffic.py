"""What reports of traffic cost the control plane: CPU and memory, and what pushes notice, edit by edit by turns.

    python -m bench.traffic --proxies 1000 --clusters 100 --busy 10

Two forms: ``relay`` is what our agents send, what has changed; ``stock`` is what Envoys without an agent send, the
whole node and all clusters each time. See ``stuck.py`` for why by turns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import attrs

from bench.cases import on_stage
from bench.events import Stage
from bench.mesh import Mesh
from bench.server import ROOT, OwnServer, own_server
from bench.stuck import BLOCK, EDITS, Side

FORMS = ("relay", "stock")


@attrs.define
class Reporters:
    """The process with the proxies."""

    process: subprocess.Popen[str]

    def tell(self, line: str) -> int:
        """Have it do something; returns how many reports were sent so far."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline() or 0)


@contextmanager
def reporting(server: OwnServer, form: str, options: argparse.Namespace) -> Iterator[Reporters]:
    command = [sys.executable, "-m", "bench.reporters", server.address, form]
    command += [str(each) for each in (options.proxies, options.clusters, options.busy, options.interval)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        reporters = Reporters(process)
        reporters.answer()
        yield reporters
    finally:
        process.kill()
        process.wait()


def measure(mesh: Mesh, form: str, options: argparse.Namespace) -> None:
    """One form on a server of its own."""
    flags = (f"--traffic-reports={options.interval:g}s", "--no-state")
    with own_server("mesh-pilot", mesh.files(), options=flags) as server:
        server.start()
        with reporting(server, form, options) as reporters:
            time.sleep(1)
            idle = cpu_share(server, options.seconds)
            before = server.memory()[0]
            reporters.tell("open")
            time.sleep(1)
            opened = server.memory()[0]
            sent = reporters.tell("on")
            time.sleep(options.interval)  # all have reported once: every row has all its slots
            busy = cpu_share(server, options.seconds)
            sent = reporters.tell("off") - sent
            full = server.memory()[0]
            per_report = (busy - idle) * (options.seconds + options.interval) / sent
            print(
                f"{form}: {sent / (options.seconds + options.interval):.0f} reports a second: "
                f"{busy - idle:.2%} of a core ({idle:.2%} without), {per_report * 1e6:.0f} us each; "
                f"memory +{full - before:.1f} MB, {opened - before:.1f} of it for the streams",
                flush=True,
            )
            if options.edits:
                with on_stage(server, mesh, "delta", options.clients, lambda text: None) as stage:
                    for kind in EDITS:
                        compare(stage, kind, form, options.edits, reporters)


def cpu_share(server: OwnServer, seconds: float) -> float:
    """CPU seconds of the server in a second."""
    began, cpu = time.monotonic(), server.cpu_seconds()
    time.sleep(seconds)
    return (server.cpu_seconds() - cpu) / (time.monotonic() - began)


def compare(stage: Stage, kind: str, form: str, edits: int, reporters: Reporters) -> None:
    """The same edits with and without reports."""
    sides = {False: Side(), True: Side()}
    stage.change("warming up", *EDITS[kind](stage))
    order = itertools.cycle((False, True, True, False))
    while len(sides[False].edits) < edits or len(sides[True].edits) < edits:
        with_reports = next(order)
        if with_reports:
            reporters.tell("on")
        for _ in range(BLOCK):
            do, wanted = EDITS[kind](stage)
            with stage.measuring(f"{kind} edit", alone=not with_reports) as span:
                stage.crew.expect(wanted, stage.mesh.seen_by)
                span.began = do()
                span.times = stage.crew.collect(stage.patience)
            sides[with_reports].edits.append(stage.measured.pop())
            sides[with_reports].times += [at - span.began for at in span.times.at]
        if with_reports:
            reporters.tell("off")
    without, beside = (sides[side].summary(kind) for side in (False, True))
    middle = [median(m.p99 for m in sides[side].edits) for side in (False, True)]
    print(
        f"{form}: {kind} edits, {len(sides[True].edits)} each: p99 {beside.p99 / without.p99 - 1:+.1%} "
        f"({without.p99 * 1000:.0f} ms without), p99 of the middle edit {middle[1] / middle[0] - 1:+.1%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", type=int, default=1000)
    parser.add_argument("--clusters", type=int, default=100, help="of each proxy")
    parser.add_argument("--busy", type=int, default=10, help="of these with traffic")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two reports")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement of CPU")
    parser.add_argument("--clients", type=int, default=100, help="that are pushed to")
    parser.add_argument("--edits", type=int, default=30, help="of each kind with reports, and as many without; 0: none")
    parser.add_argument("--form", choices=FORMS, help="only this one")
    options = parser.parse_args()
    mesh = Mesh(services=options.clusters, virtual_services=options.clusters)
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{options.proxies:,} proxies x {options.clusters}, {options.busy} busy; load {load}", flush=True)
    for form in (options.form,) if options.form else FORMS:
        measure(mesh, form, options)


if __name__ == "__main__":
    main()
