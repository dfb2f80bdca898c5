"""Clients on the wrong port: each learns in its own protocol which port is right, and the control plane continues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import trio
import trio.testing

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.net.rpc import ConnectionLost, GRPCError, Status, open_channel
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    (tmp_path / "a.yaml").write_text(SERVICE)
    async with running_plane(tmp_path) as plane:
        yield plane


@pytest.fixture(params=["web", "metrics"])
def address(plane: ControlPlane, request: pytest.FixtureRequest) -> str:
    return plane.addresses.http if request.param == "web" else plane.addresses.monitoring


async def serves(plane: ControlPlane) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        replies = [
            await client.get(f"http://{address}/ready")
            for address in (plane.addresses.http, plane.addresses.monitoring)
        ]
    assert [server.statistics().failures for server in plane.state.http_servers] == [0, 0]
    return [reply.text for reply in replies] == ["ready\n", "ready\n"]


class Http2:
    """A client of HTTP/2 by prior knowledge."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.headers: dict[str, str] = {}
        self.body = b""
        self.goodbye = b""

    async def ask(self, *headers: tuple[str, str], end: bool = True) -> None:
        first = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/metrics")]
        self.h2.send_headers(1, [*first, *headers], end_stream=end)
        await self.stream.send_all(self.h2.data_to_send())

    async def read(self) -> None:
        """Until the server is done."""
        while data := await self.stream.receive_some(65536):
            for event in self.h2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    self.headers = dict(event.headers)
                elif isinstance(event, h2.events.DataReceived):
                    self.body += event.data
                elif isinstance(event, h2.events.ConnectionTerminated):
                    self.goodbye = event.additional_data or b""


async def connect(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def test_grpcio_shows_the_right_port(plane: ControlPlane, address: str) -> None:
    def call() -> grpc.RpcError:
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            list(channel.stream_stream(METHOD)(iter([b""]), timeout=60))
        return caught.value

    error = await trio.to_thread.run_sync(call)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    port = "web" if address == plane.addresses.http else "metrics"
    told = f"this is the {port} port of mesh-pilot, which speaks HTTP/1.1; gRPC (xDS, MCP) is served on "
    assert error.details() == told + plane.addresses.grpc
    assert await serves(plane)


async def test_our_own_client_shows_the_right_port(plane: ControlPlane, address: str) -> None:
    for _ in range(10):
        async with open_channel(address) as channel:
            with pytest.raises(GRPCError, match=plane.addresses.grpc) as caught:
                await channel.unary(METHOD, b"", bytes)
        assert caught.value.status is Status.UNIMPLEMENTED
    assert await serves(plane)
    closed = [server.statistics().http2 for server in plane.state.http_servers]
    assert sorted(closed) == [0, 10]


async def test_mcp_dump_shows_it_too(plane: ControlPlane, address: str) -> None:
    for server in (address, f"xds://{address}"):
        done = await trio.to_thread.run_sync(mesh_pilot, "mcp", "dump", server)
        assert done.code == 1
        assert plane.addresses.grpc in done.err
        assert "Traceback" not in done.err
    assert await serves(plane)


async def test_another_client_of_http2_gets_a_505(plane: ControlPlane, address: str) -> None:
    async with await connect(address) as stream:
        client = Http2(stream)
        await client.ask()
        await client.read()
    assert client.headers[":status"] == "505"
    assert plane.addresses.grpc in client.body.decode()
    assert plane.addresses.grpc in client.goodbye.decode()


async def test_a_large_post_over_http2_harms_nobody(plane: ControlPlane, address: str) -> None:
    for _ in range(10):
        async with await connect(address) as stream:
            client = Http2(stream)
            await client.ask(end=False)
            try:
                for _ in range(4):  # as much as the windows take, and then more than they do
                    client.h2.send_data(1, b"x" * 16000)
                    await stream.send_all(client.h2.data_to_send())
                await stream.send_all(b"\0\x3f\xff\0\0\0\0\0\1" * 20000)
                await client.read()
            except trio.BrokenResourceError:
                pass
    assert await serves(plane)


async def test_an_upgrade_to_http2_is_not_made(plane: ControlPlane, address: str) -> None:
    upgrade = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.get(f"http://{address}/ready", headers=upgrade)
        assert (reply.http_version, reply.text) == ("HTTP/1.1", "ready\n")
        reply = await client.post(f"http://{address}/ready", headers=upgrade, content=b"x" * 1000)
        assert reply.status_code == 405
    assert await serves(plane)


@pytest.mark.parametrize(
    "pieces",
    [
        (PREFACE, b"\0\0\1\0\0\0\0\0\1x"),
        (PREFACE, b"\xff" * 400_000),
        (b"PR", b"I * HTTP/2.0\r\n\r\n", b"SM\r\r"),
    ],
)
async def test_what_only_begins_like_http2_ends_its_connection(
    plane: ControlPlane, address: str, pieces: tuple[bytes, ...]
) -> None:
    async with await connect(address) as stream:
        for piece in pieces:
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    assert await serves(plane)


async def test_a_client_of_http1_on_the_grpc_port_is_shown_the_web_port(plane: ControlPlane) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for method in ("GET", "POST"):
            reply = await client.request(method, f"http://{plane.addresses.grpc}/debug/syncz")
            assert reply.status_code == 400
            assert reply.text == (
                f"this port speaks gRPC, which is HTTP/2; the web pages are on {plane.addresses.http}\n"
            )
    await eventually(lambda: plane.state.rpc_servers[0].statistics().connections_open == 0)


async def test_our_client_says_when_a_server_speaks_http1(nursery: trio.Nursery) -> None:
    async def old(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    listeners = await nursery.start(partial(trio.serve_tcp, old, 0, host="127.0.0.1"))
    host, port = listeners[0].socket.getsockname()
    with pytest.raises(ConnectionLost, match=f"{host}:{port}: .* speaks HTTP/1.1, not gRPC"):
        async with open_channel(f"{host}:{port}"):
            pass
