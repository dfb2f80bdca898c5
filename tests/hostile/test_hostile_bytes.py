"""Whatever bytes arrive on whatever port, in whatever framing: the process serves the next client."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import urllib.request
from collections.abc import Callable, Iterator

import attrs
import pytest

from tests.support.certificates import CertificateFiles, write_certificates
from tests.support.pilot import Pilot, running, served

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(180)]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ROUNDS = 40
"""Connections with each framing on each port."""


def http2_frames(pick: random.Random) -> bytes:
    """A preface, and frames of known and unknown types with payloads that may or may not fit."""
    frames = [PREFACE, b"\0\0\0\4\0\0\0\0\0"]
    for _ in range(pick.randrange(1, 60)):
        kind, stream = pick.randrange(12), pick.choice([0, 1, 1, 3, 2, 2**31 - 1])
        size = pick.choice([0, 4, 5, 6, 8, 30, 200])
        payload = pick.choice([pick.randbytes(size), bytes(size)])
        frames.append(struct.pack(">I", size)[1:] + bytes((kind, pick.choice([0, 1, 4, 5, 8, 255]))))
        frames.append(struct.pack(">I", stream) + payload)
    return b"".join(frames)


def grpc_call(pick: random.Random) -> bytes:
    """What a gRPC client begins with, a header block that may be any, and a message that is none."""
    path = b"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
    block = b"\x83\x86\x44" + bytes((len(path),)) + path + b"\x41\x01x"
    block += b"\x5f\x10application/grpc" + pick.choice([b"", pick.randbytes(20)])
    headers = struct.pack(">I", len(block))[1:] + b"\1\4" + b"\0\0\0\1" + block
    body = pick.choice([b"", struct.pack(">BI", 0, 50) + pick.randbytes(50), pick.randbytes(30)])
    data = struct.pack(">I", len(body))[1:] + pick.choice([b"\0\0", b"\0\1"]) + b"\0\0\0\1" + body
    return PREFACE + b"\0\0\0\4\0\0\0\0\0" + headers + data * pick.randrange(1, 4)


def http1(pick: random.Random) -> bytes:
    method = pick.choice([b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"G\0T", b"POST"])
    target = pick.choice([b"/", b"/debug/syncz", b"*", b"//", b"/%ff%00", b"http://[::1", b"/" + b"a" * 9000])
    fields = [
        b"host: x",
        b"content-length: " + pick.choice([b"0", b"-1", b"99999999999", b"x"]),
        b"transfer-encoding: chunked",
        b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: x",
        b"x: " + pick.randbytes(50),
        b"expect: 100-continue",
    ]
    chosen = pick.sample(fields, pick.randrange(1, 4))
    return method + b" " + target + b" HTTP/1.1\r\n" + b"\r\n".join(chosen) + b"\r\n\r\n" + pick.randbytes(100)


def h2c_upgrade(pick: random.Random) -> bytes:
    settings = pick.choice([b"AAMAAABkAAQAAP__", b"", b"!!!", b"AAQAAAAA"])
    head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: "
    return head + settings + b"\r\n\r\n" + pick.choice([b"", http2_frames(pick)])


def tls_hello(pick: random.Random) -> bytes:
    """A real ClientHello, whole or mangled."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    hello = bytearray(outgoing.read())
    if pick.random() < 0.5:
        hello[pick.randrange(len(hello))] ^= 1 << pick.randrange(8)
    return bytes(hello[: pick.choice([len(hello), pick.randrange(len(hello))])])


def random_bytes(pick: random.Random) -> bytes:
    return pick.randbytes(pick.choice([1, 8, 100, 5000, 100_000]))


FRAMINGS: tuple[Callable[[random.Random], bytes], ...] = (
    random_bytes,
    http2_frames,
    grpc_call,
    http1,
    h2c_upgrade,
    tls_hello,
)


@attrs.frozen
class Plane:
    """A running plane, and which of its ports is attacked."""

    target: str
    pilot: Pilot
    files: CertificateFiles
    sink_port: int

    @property
    def port(self) -> int:
        return {
            "grpc": self.pilot.grpc_port,
            "tls": self.pilot.tls_port,
            "inside-tls": self.pilot.tls_port,
            "web": self.pilot.web_port,
            "metrics": self.pilot.monitoring_port,
            "mcp-sink": self.sink_port,
        }[self.target]

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 5)
        if self.target != "inside-tls":
            return sock
        context = ssl.create_default_context(cafile=str(self.files.ca))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self.files.certificate, self.files.key)
        return context.wrap_socket(sock)

    def assert_serves(self) -> None:
        """xDS, the pages and the metrics."""
        assert self.pilot.process.poll() is None, self.pilot.log()[-3000:]
        assert served(self.pilot.grpc_port) == 80
        for url in (f"{self.pilot.web_port}/ready", f"{self.pilot.monitoring_port}/metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{url}", timeout=20) as answer:
                assert answer.status == 200


@pytest.fixture(scope="module", params=["grpc", "tls", "inside-tls", "mcp-sink", "web", "metrics"])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process for each port, so that a port that fails spares the others."""
    folder = tmp_path_factory.mktemp("bytes")
    files = write_certificates(folder, "pilot")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sink_port = sock.getsockname()[1]
    options = [
        f"--tls-cert={files.certificate}",
        f"--tls-key={files.key}",
        f"--tls-ca={files.ca}",
        "--secure-grpc-addr=127.0.0.1:0",
        f"--mcp-sink-addr=127.0.0.1:{sink_port}",
        "--sync-timeout=100ms",
    ]
    with running(folder / "config", *options, services=5) as pilot:
        yield Plane(request.param, pilot, files, sink_port)


def say(plane: Plane, data: bytes, pick: random.Random) -> None:
    """Send ``data`` in pieces, take some of the answer, and leave, politely or not."""
    with contextlib.suppress(OSError), plane.connect() as sock:
        sock.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            at = 0
            while at < len(data):
                size = pick.choice([7, 1000, 100_000])
                sock.sendall(data[at : at + size])
                at += size
            sock.recv(65536)
        if pick.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.__name__)
def test_whatever_arrives_the_next_client_is_served(plane: Plane, framing: Callable[[random.Random], bytes]) -> None:
    seed = f"{plane.target} {framing.__name__}"
    for number in range(ROUNDS):
        pick = random.Random(f"{seed} {number}")
        say(plane, framing(pick), pick)
        if plane.pilot.process.poll() is not None:
            pytest.fail(f"the process ended at number {number}: {plane.pilot.log()[-3000:]}")
    plane.assert_serves()
