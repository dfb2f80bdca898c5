"""What signing certificates costs pushes: the same edits with and without CSRs at a steady rate, by turns.

One server has both; see ``stuck.py`` for why by turns.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.cases import Say, on_stage
from bench.events import Stage
from bench.mesh import Mesh
from bench.report import Measurement
from bench.server import ROOT, own_server
from bench.stuck import BLOCK, EDITS, Side

CONNECTIONS = 10
"""Callers, each with an identity and a connection of its own."""

WARM_SECONDS = 0.5
"""The time from the first CSR to the first edit."""


ALONE_SECONDS = 3.0
"""The time for which certificates are signed while nothing else happens."""


@attrs.define
class Signing:
    """The process that has certificates signed, and its totals."""

    process: subprocess.Popen[str]
    signed: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.signed / self.seconds if self.seconds else 0.0

    def begin(self) -> None:
        self._tell("on")
        time.sleep(WARM_SECONDS)

    def end(self) -> None:
        self._tell("off")
        signed, failed, seconds = json.loads(self.answer())
        self.signed, self.failed, self.seconds = self.signed + signed, self.failed + failed, self.seconds + seconds

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


def signing(
    mesh: Mesh, clients: int, variants: Sequence[str], edits: int, rate: float, kind: str, say: Say
) -> list[Measurement]:
    """Both kinds of edit, so many with and so many without CSRs; ``kind`` is that of the callers' keys."""
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="mesh-pilot-bench-") as scratch:
        folder = Path(scratch)
        write_certificates(folder)
        for variant in variants:
            address = free_address()
            with own_server("mesh-pilot", mesh.files(), options=secure_options(folder, address)) as server:
                server.start()
                with (
                    on_stage(server, mesh, variant, clients, say) as stage,
                    _load(address, folder, rate, kind) as load,
                ):
                    for edit in EDITS:
                        found += _compare(stage, edit, edits, load)
    return found


def _alone(stage: Stage, load: Signing) -> float:
    """CPU seconds of the server for each certificate while nothing else happens."""
    signed, cpu = load.signed, stage.server.cpu_seconds()
    load.begin()
    time.sleep(ALONE_SECONDS)
    load.end()
    return (stage.server.cpu_seconds() - cpu) / max(1, load.signed - signed)


@contextmanager
def _load(address: str, folder: Path, rate: float, kind: str) -> Iterator[Signing]:
    command = [sys.executable, "-m", "bench.csr_load", address, str(folder), str(CONNECTIONS), str(rate), kind]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        load = Signing(process)
        load.answer()
        yield load
    finally:
        process.kill()
        process.wait()


def _compare(stage: Stage, kind: str, edits: int, load: Signing) -> list[Measurement]:
    sides = {False: Side(), True: Side()}
    stage.change("warming up", *EDITS[kind](stage))
    order = itertools.cycle((False, True, True, False))
    load.signed, load.failed, load.seconds = 0, 0, 0.0
    while len(sides[False].edits) < edits or len(sides[True].edits) < edits:
        with_load = next(order)
        if with_load:
            load.begin()
        for _ in range(BLOCK):
            do, wanted = EDITS[kind](stage)
            with stage.measuring(f"{kind} edit", alone=not with_load) as span:
                stage.crew.expect(wanted, stage.mesh.seen_by)
                span.began = do()
                span.times = stage.crew.collect(stage.patience)
            sides[with_load].edits.append(stage.measured.pop())
            sides[with_load].times += [at - span.began for at in span.times.at]
        if with_load:
            load.end()
    alone = _alone(stage, load)
    without, beside = sides[False].summary(f"{kind} edit"), sides[True].summary(f"{kind} edit next to CSRs")
    note = (
        f"{len(sides[True].edits)} edits each, {load.rate:.0f} certificates a second ({load.failed} calls failed; "
        f"{alone * 1000:.2f} ms of CPU each): "
        f"p99 {beside.p99 / without.p99 - 1:+.1%}, p50 {beside.p50 / without.p50 - 1:+.1%}"
    )
    stage.say(note)
    return [without, attrs.evolve(beside, note=note)]


def secure_options(folder: Path, address: str) -> tuple[str, ...]:
    """Flags of a server that shows and trusts the certificates in a folder, and signs as many as it can."""
    files = {"--tls-cert": "server.pem", "--tls-key": "server.key", "--tls-ca": "ca.pem"}
    options = tuple(f"{flag}={folder / name}" for flag, name in files.items())
    return (*options, f"--secure-grpc-addr={address}", "--certificates-per-second=0")


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def write_certificates(folder: Path) -> None:
    """A CA, a server and the callers."""
    root_key = ec.generate_private_key(ec.SECP256R1())
    root = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)

    def write(name: str, key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], *, is_ca: bool) -> None:
        builder = x509.CertificateBuilder(root, root if is_ca else x509.Name([]), key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(minutes=5))
        builder = builder.not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        certificate = builder.sign(root_key, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    write("ca", root_key, [], is_ca=True)
    write("server", ec.generate_private_key(ec.SECP256R1()), [x509.IPAddress(ip_address("127.0.0.1"))], is_ca=False)
    for number in range(CONNECTIONS):
        name = x509.UniformResourceIdentifier(f"spiffe://cluster.local/ns/shop/sa/caller-{number}")
        write(f"client-{number}", ec.generate_private_key(ec.SECP256R1()), [name], is_ca=False)
