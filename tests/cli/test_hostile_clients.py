"""``mesh-pilot discovery`` among bad company: it serves the good, keeps nothing of the bad, and ends in time."""

from __future__ import annotations

import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import h2.config
import h2.connection
import pytest

from mesh_pilot.model.resource import CLUSTER
from tests.support.pilot import ADS, Pilot, request, running, served, until

pytestmark = pytest.mark.process

KILLED = Path(__file__).with_name("killed_client.py")


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
    with socket.create_connection(("127.0.0.1", port), 60) as sock, suppress(OSError):
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


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    with running(tmp_path / "config") as found:
        yield found


def test_whoever_is_rude_leaves_nothing_and_the_good_are_served(pilot: Pilot) -> None:
    grpc_port = pilot.grpc_port
    assert served(grpc_port) == 80
    before = pilot.open_files()
    ports = (pilot.grpc_port, pilot.web_port, pilot.monitoring_port)
    for number in range(200):
        rude(ports[number % 3], number)
    pilot.write(81)
    until(lambda: served(grpc_port) == 81, 90, "the change is served")
    until(lambda: pilot.open_files() <= before, 90, "connections are closed")


def test_clients_that_are_killed_leave_nothing(pilot: Pilot) -> None:
    grpc_port = pilot.grpc_port
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
    until(lambda: served(grpc_port) == 92, 90, "the change is served")
    until(lambda: pilot.open_files() <= before, 90, "connections are closed")


def test_clients_that_do_not_read_hold_up_nobody_and_not_the_end(pilot: Pilot) -> None:
    grpc_port = pilot.grpc_port
    ports = (grpc_port, pilot.web_port, pilot.monitoring_port)
    with ExitStack() as stack:
        for number in range(30):
            stack.enter_context(deaf(grpc_port, number))
        for change in range(5):
            pilot.write(100 + change)
            until(lambda seen=100 + change: served(grpc_port) == seen, 90, "the change is served")  # type: ignore[misc]
        noise = threading.Thread(target=lambda: [_try(rude, ports[n % 3], n) for n in range(300)])
        noise.start()
        pilot.process.send_signal(signal.SIGTERM)
        assert pilot.process.wait(30) == 0
        noise.join()


def _try(function: Callable[[int, int], None], *arguments: int) -> None:
    with suppress(OSError):
        function(*arguments)
