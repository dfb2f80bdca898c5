"""Turns a second of the gRPC server: on each of N streams the server sends a message, the client answers, and so on.

The client is a separate process that speaks just enough HTTP/2 with frames built beforehand, so that the server is
what is measured. With ``--compare`` a git revision's server runs in turns with this one, and medians are told.
Revisions that can serve a stream where the socket is read are measured so.
Usage: python -m bench.rpc_turns [--streams 30] [--size 500] [--seconds 3] [--tls] [--rounds 5 --compare REV]
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hpack import Encoder
from hyperframe.frame import HeadersFrame, SettingsFrame, WindowUpdateFrame

from bench.server import ROOT, checkout
from mesh_pilot.net.rpc import Cardinality, Handler, ServerStream, open_listeners, serve

PATH = "/bench.Turns/Run"
WARM_UP = 1000
"""Turns before the measured ones."""


class Turns:
    """Sends a message, waits for the answer, again."""

    def __init__(self, size: int) -> None:
        self.message = bytes(size)
        self.turns = 0
        self.warm = trio.Event()

    def __mapping__(self) -> dict[str, Handler]:
        return {PATH: Handler(self.run, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def run(self, stream: ServerStream[bytes, bytes]) -> None:
        """As streams of xDS do: what needs no waiting is done where the socket is read, the rest in this task."""
        if not hasattr(stream, "receive_at_once"):
            await self._run_in_task(stream)
        left = trio.Event()

        def take(_: bytes) -> bool:
            self._count()
            if not stream.send_at_once(self.message):
                left.set()
            return True

        stream.receive_at_once(take, left.set)
        left.set()
        while True:
            await left.wait()
            left = trio.Event()
            await stream.send_message(self.message)

    async def _run_in_task(self, stream: ServerStream[bytes, bytes]) -> None:
        """For revisions that know nothing else."""
        while True:
            await stream.send_message(self.message)
            await stream.recv_message()
            self._count()

    def _count(self) -> None:
        self.turns += 1
        if self.turns == WARM_UP:
            self.warm.set()


def opening() -> bytes:
    """All that a client sends before its first message."""
    settings = SettingsFrame(0)
    settings.settings = {SettingsFrame.INITIAL_WINDOW_SIZE: 2**31 - 1}
    window = WindowUpdateFrame(0)
    window.window_increment = 2**31 - 1 - 65535
    headers = HeadersFrame(1)
    headers.flags.add("END_HEADERS")
    fields = [(":method", "POST"), (":scheme", "http"), (":path", PATH), (":authority", "bench")]
    headers.data = Encoder().encode([*fields, ("te", "trailers"), ("content-type", "application/grpc")])
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings.serialize() + window.serialize() + headers.serialize()


def client(port: int, streams: int, size: int, tls: bool) -> None:
    """Answer every message of every stream, a connection each, until the server hangs up."""
    answer = (
        struct.pack(">I", size + 5)[1:] + b"\0\0" + struct.pack(">I", 1) + struct.pack(">BI", 0, size) + bytes(size)
    )
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            sock = context.wrap_socket(sock)
            sock.setblocking(False)
        sock.sendall(opening())
        selector.register(sock, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select():
            connection, buffer = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            try:
                received = connection.recv(65536)
            except ssl.SSLWantReadError:
                continue
            except (ConnectionResetError, ssl.SSLError):
                received = b""
            if not received:
                selector.unregister(connection)
                continue
            buffer += received
            while len(buffer) >= 9 and len(buffer) >= (end := 9 + int.from_bytes(buffer[:3], "big")):
                if buffer[3] == 0:
                    connection.sendall(answer)
                del buffer[:end]


class Certificate:
    """A TLS context with a certificate that nobody else knows."""

    def __init__(self, folder: Path) -> None:
        key, name, now = ec.generate_private_key(ec.SECP256R1()), x509.Name([]), datetime.now(UTC)
        builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        form = serialization.PrivateFormat.PKCS8
        pem += key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (file := folder / "server.pem").write_bytes(pem)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(file)

    def context(self) -> ssl.SSLContext:
        return self._context


async def serve_turns(streams: int, size: int, seconds: float, tls: bool) -> None:
    """Run the server here, the client in another process, and print turns a second and CPU microseconds a turn."""
    service = Turns(size)
    with tempfile.TemporaryDirectory() as folder:
        certificate = Certificate(Path(folder)) if tls else None
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners("127.0.0.1:0")
        server = await nursery.start(partial(serve, [service], listeners, tls=certificate))
        port = server.addresses[0].rpartition(":")[2]
        command = [
            sys.executable,
            "-m",
            "bench.rpc_turns",
            "--client",
            port,
            "--streams",
            str(streams),
            "--size",
            str(size),
        ]
        await nursery.start(trio.run_process, [*command, *(["--tls"] if tls else [])])
        await service.warm.wait()
        before, cpu, clock = service.turns, time.process_time(), time.perf_counter()
        await trio.sleep(seconds)
        turns, cpu, clock = service.turns - before, time.process_time() - cpu, time.perf_counter() - clock
        print(turns / clock, cpu / turns * 1e6)
        await server.drain(0)


def measure(arguments: argparse.Namespace, revisions: list[str]) -> None:
    """Rounds in which each revision's server runs once, in a separate process; prints the medians."""
    told: dict[str, list[tuple[float, float]]] = {name: [] for name in revisions}
    streams, size, options = arguments.streams, arguments.size, ["--tls"] if arguments.tls else []
    command = [sys.executable, "-m", "bench.rpc_turns", "--serve", "--streams", str(streams), "--size", str(size)]
    command += ["--seconds", str(arguments.seconds), *options]
    with ExitStack() as stack:
        trees = {name: stack.enter_context(checkout(name)) if name else ROOT for name in revisions}
        for _ in range(arguments.rounds):
            for name, tree in trees.items():
                environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
                done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                rate, cpu = map(float, done.stdout.split())
                told[name].append((rate, cpu))
    for name, figures in told.items():
        rate, cpu = (median(column) for column in zip(*figures, strict=True))
        what = f"on {streams} streams of {size} bytes{' over TLS' if arguments.tls else ''}"
        print(f"{name or 'here'}: {rate:,.0f} turns/s {what}; {cpu:.1f} µs CPU a turn")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--compare", metavar="REV", help="run the server of this git revision, too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client, arguments.streams, arguments.size, arguments.tls)
    elif arguments.serve:
        trio.run(serve_turns, arguments.streams, arguments.size, arguments.seconds, arguments.tls)
    else:
        measure(arguments, [*([arguments.compare] if arguments.compare else []), ""])
