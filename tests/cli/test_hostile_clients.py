"""``mesh-pilot discovery`` among bad company: it serves the good, keeps nothing of the bad, and ends in time."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import h2.config
import h2.connection
import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.service.discovery.v3 import discovery_pb2
from support.command import COMMAND

from mesh_pilot.model.resource import CLUSTER

pytestmark = pytest.mark.process

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
SERVICES = 400
KILLED = Path(__file__).with_name("killed_client.py")


def entries(port: int) -> str:
    return "\n---\n".join(
        f"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{n}}}\nspec:\n"
        f"  hosts: [s{n}.test]\n  resolution: STATIC\n  ports: [{{number: {port}, name: http, protocol: HTTP}}]\n"
        for n in range(SERVICES)
    )


def request(type_url: str, name: str = "good") -> bytes:
    node = {"id": f"sidecar~10.0.0.1~{name}.default~default.svc.cluster.local"}
    return discovery_pb2.DiscoveryRequest(type_url=type_url, node=node).SerializeToString()


class Pilot:
    """A running process and its addresses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(80)
        addresses = [f"--{name}-addr=127.0.0.1:0" for name in ("grpc", "http", "monitoring")]
        self.log = (folder.parent / "log").open("w+")
        self.process = subprocess.Popen(
            [*COMMAND, "discovery", f"--config-dir={folder}", "--shutdown-duration=3s", *addresses],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.ports: list[int] = []
        """Of gRPC, the web pages and the metrics."""

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("ready after"):
                break
        self.ports = [int(word.rpartition(":")[2]) for word in self._addresses(lines)]

    @staticmethod
    def _addresses(lines: list[str]) -> Iterator[str]:
        for what in ("xDS  ", "web", "metrics"):
            (line,) = [line for line in lines if line.strip().startswith(what)]
            yield line.split()[-1].removeprefix("http://").partition("/")[0]

    def write(self, port: int) -> None:
        new = self.folder / ".new"
        new.write_text(entries(port))
        new.rename(self.folder / "all.yaml")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def running(folder: Path) -> Iterator[Pilot]:
    folder.mkdir()
    pilot = Pilot(folder)
    try:
        pilot.wait_ready()
        yield pilot
        text = (folder.parent / "log").read_text()
        assert "Traceback" not in text, text[-5000:]
    finally:
        pilot.process.kill()
        pilot.process.communicate()
        pilot.log.close()


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def rude(port: int, number: int) -> None:
    """One connection that says something else, or nothing, and is dropped."""
    pick = random.Random(number)
    words = (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /debug/syncz HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + pick.randbytes(300),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + pick.randbytes(100),
        pick.randbytes(2000),
    )
    with socket.create_connection(("127.0.0.1", port), 5) as sock, suppress(OSError):
        sock.sendall(pick.choice(words))
        if pick.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def deaf(port: int, number: int) -> socket.socket:
    """A client that asks for all clusters and never reads an answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":path": ADS, ":authority": "x", "te": "trailers"}
    peer.send_headers(1, [*headers.items(), ("content-type", "application/grpc")])
    body = request(CLUSTER, f"deaf-{number}")
    peer.send_data(1, struct.pack(">BI", 0, len(body)) + body)
    sock.sendall(peer.data_to_send())
    return sock


def served(port: int) -> int:
    """The port of the services that a new client is told of."""
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request(CLUSTER)
        done.wait()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = next(channel.stream_stream(ADS)(requests(), timeout=10))
        finally:
            done.set()
    names = [Cluster.FromString(r.value).name for r in discovery_pb2.DiscoveryResponse.FromString(answer).resources]
    (found,) = {int(name.split("|")[1]) for name in names if name.startswith("outbound|")}
    return found


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    with running(tmp_path / "config") as found:
        yield found


def test_whoever_is_rude_leaves_nothing_and_the_good_are_served(pilot: Pilot) -> None:
    grpc_port = pilot.ports[0]
    assert served(grpc_port) == 80
    before = pilot.open_files()
    for number in range(200):
        rude(pilot.ports[number % 3], number)
    pilot.write(81)
    until(lambda: served(grpc_port) == 81, 30, "the change is served")
    until(lambda: pilot.open_files() <= before, 40, "connections are closed")


def test_clients_that_are_killed_leave_nothing(pilot: Pilot) -> None:
    grpc_port = pilot.ports[0]
    assert served(grpc_port) == 80
    before = pilot.open_files()
    for round_ in range(3):
        clients = [
            subprocess.Popen([sys.executable, str(KILLED), str(grpc_port), "20"], stdout=subprocess.PIPE)
            for _ in range(2)
        ]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == b"streaming\n"
        pilot.write(90 + round_)
        for client in clients:
            client.send_signal(signal.SIGKILL)
            client.communicate()
    until(lambda: served(grpc_port) == 92, 30, "the change is served")
    until(lambda: pilot.open_files() <= before, 30, "connections are closed")


def test_clients_that_do_not_read_hold_up_nobody_and_not_the_end(pilot: Pilot) -> None:
    grpc_port = pilot.ports[0]
    with ExitStack() as stack:
        for number in range(30):
            stack.enter_context(deaf(grpc_port, number))
        for change in range(5):
            pilot.write(100 + change)
            until(lambda seen=100 + change: served(grpc_port) == seen, 30, "the change is served")  # type: ignore[misc]
        noise = threading.Thread(target=lambda: [_try(rude, pilot.ports[n % 3], n) for n in range(300)])
        noise.start()
        pilot.process.send_signal(signal.SIGTERM)
        assert pilot.process.wait(30) == 0
        noise.join()


def _try(function: Callable[[int, int], None], *arguments: int) -> None:
    with suppress(OSError):
        function(*arguments)
