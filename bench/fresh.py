"""Envoys that are new come at once: a TLS handshake, a certificate, another handshake with that, the first answer.

All take each step together, so that the server's CPU can be told by step: ``connect`` is a handshake with evidence of
who they are (a certificate of another CA), ``certificate`` a call with a CSR, ``reconnect`` a handshake with what was
signed, ``answer`` a stream whose first request names Envoy's extensions, until clusters come. Revisions take turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cases import Say
from bench.fresh_load import STEPS
from bench.mesh import Mesh
from bench.report import Measurement
from bench.server import ROOT, OwnServer, checkout, own_server
from bench.signing import CONNECTIONS, free_address, secure_options, write_certificates


def fresh(mesh: Mesh, clients: int, repeat: int, say: Say, *, revision: str = "") -> list[Measurement]:
    """So many Envoys at once, so often; ``revision``: they come to this git revision, too."""
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="mesh-pilot-bench-") as scratch:
        folder = Path(scratch)
        write_certificates(folder)
        if not revision:
            return _by_turns(mesh, clients, repeat, {"mesh-pilot": None}, folder, say)
        with checkout(revision) as tree:
            found += _by_turns(mesh, clients, repeat, {"mesh-pilot": None, revision: tree}, folder, say)
    return found


def _by_turns(
    mesh: Mesh, clients: int, repeat: int, sources: dict[str, Path | None], folder: Path, say: Say
) -> list[Measurement]:
    found = []
    for number in range(repeat):
        for name, source in sources.items():
            address = free_address()
            options = (*secure_options(folder, address), "--max-requests-per-second=0", "--certificates-per-second=0")
            with own_server(name, mesh.files(), source=source, options=options) as server:
                server.start()
                with _crowd(address, folder, 1) as warm:  # makes what all of them share
                    for step in STEPS:
                        _take(warm, step)
                with _crowd(address, folder, clients) as crowd:
                    found += [_measured(server, crowd, step, mesh, clients, number, say) for step in STEPS]
    return found


def _measured(
    server: OwnServer, crowd: subprocess.Popen[str], step: str, mesh: Mesh, clients: int, number: int, say: Say
) -> Measurement:
    cpu, began = server.cpu_seconds(), time.monotonic()
    failed = _take(crowd, step)
    last, cpu = time.monotonic() - began, server.cpu_seconds() - cpu
    note = f"{cpu / clients * 1e6:.0f} us of CPU each"
    say(f"{server.name}: {step}: {last:.2f} s, {note}" + (f", {failed} failed so far" if failed else ""))
    return Measurement(
        server=server.name,
        mesh=mesh.label,
        variant="delta",
        clients=clients,
        event=step,
        repeat=number,
        last=last,
        missing=failed,
        cpu=cpu,
        memory=server.memory()[0],
        note=note,
    )


def _take(crowd: subprocess.Popen[str], step: str) -> int:
    assert crowd.stdin is not None and crowd.stdout is not None
    crowd.stdin.write(step + "\n")
    crowd.stdin.flush()
    return int(crowd.stdout.readline())


@contextmanager
def _crowd(address: str, folder: Path, clients: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.fresh_load", address, str(folder), str(CONNECTIONS), str(clients)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
