"""How often a server turns to its socket."""

from __future__ import annotations

import socket

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived

from mesh_pilot.net.rpc.transport import SocketTransport
from tests.rpc.rpc_support import Echo, in_thread, serving

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Echo/Bidi"),
    (":authority", "test"),
    ("content-type", "application/grpc"),
]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was written to any socket."""
    sizes: list[int] = []
    write = SocketTransport.write

    def counted(self: SocketTransport, data: bytes) -> None:
        sizes.append(len(data))
        write(self, data)

    monkeypatch.setattr(SocketTransport, "write", counted)
    return sizes


async def test_a_client_that_waits_for_the_settings_gets_them() -> None:
    async with serving(Echo()) as server:
        host, _, port = server.addresses[0].rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            assert (await stream.receive_some())[3:4] == b"\4", "a SETTINGS frame"


async def test_a_first_reply_leaves_with_all_that_http2_has_to_say(writes: list[int]) -> None:
    """The settings, too: they wait for the client to begin."""

    def converse(address: str) -> tuple[list[object], int]:
        h2 = H2Connection(H2Configuration(client_side=True))
        h2.initiate_connection()
        h2.send_headers(1, HEADERS)
        h2.send_data(1, b"\0\0\0\0\4ping")
        host, _, port = address.rpartition(":")
        events: list[object] = []
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(h2.data_to_send())
            while not any(isinstance(event, DataReceived) for event in events):
                events += h2.receive_data(sock.recv(65536))
            return events, len(writes)

    async with serving(Echo()) as server:
        events, count = await in_thread(converse, server.addresses[0])
        assert any(isinstance(event, ResponseReceived) for event in events)
        assert count == 1
