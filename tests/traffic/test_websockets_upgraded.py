"""WebSockets to services whose rule, or whose mesh, upgrades connections to HTTP/2: they pass two real Envoys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h2.connection
import h2.events
import h2.exceptions
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import rule, service

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

SERVER_IP = "127.0.0.4"
CLIENT = EnvoyNode("web", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
EDGE = EnvoyNode("edge", "shop", "127.0.0.3", NodeType.ROUTER, labels={"istio": "edge"})
SERVER = EnvoyNode("app", "shop", SERVER_IP, labels={"app": "app"}, interception=Interception.NONE)

UPGRADE = "connectionPool: {http: {h2UpgradePolicy: UPGRADE}}"
POLICIES = {
    "rule": (UPGRADE, ""),
    "port": ("portLevelSettings: [{port: {number: $port}, connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}]", ""),
    "mesh": ("", "h2UpgradePolicy: UPGRADE"),
}


async def head_of(stream: trio.abc.ReceiveStream) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        more = await stream.receive_some()
        if not more:
            break
        head += more
    return head


async def application(stream: trio.SocketStream) -> None:
    """Echoes after an upgrade; answers other requests with their first line."""
    head = await head_of(stream)
    if b"upgrade: websocket" in head.lower():
        await stream.send_all(b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
        async for data in stream:
            await stream.send_all(data)
    else:
        line = head.partition(b"\r\n")[0]
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(line) + line)
    await stream.aclose()


async def upgraded(port: int, kind: str = "websocket") -> bytes:
    """The status line of an upgrade at a port; after 101 an echo is awaited, too."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(
                b"GET /ws HTTP/1.1\r\nhost: app.test\r\nconnection: upgrade\r\nupgrade: %s\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n" % kind.encode()
            )
            status = (await head_of(stream)).partition(b"\r\n")[0]
            if b"101" in status:
                await stream.send_all(b"hello")
                assert await stream.receive_some() == b"hello"
            return status


async def ready(mesh: Fleet, port: int) -> None:
    async def answers() -> bool:
        try:
            reply = await mesh.get(f"http://127.0.0.1:{port}/", host="app.test")
        except OSError:
            return False
        return reply.status_code == 200

    await eventually(answers, what="plain requests pass")


@pytest.mark.parametrize("case", POLICIES)
async def test_websockets_pass_over_an_upgraded_upstream(tmp_path: Path, free_ports: Ports, case: str) -> None:
    port, at_edge, number = free_ports(3)
    policy, settings = POLICIES[case]
    async with trio.open_nursery() as nursery, fleet(tmp_path, mesh=settings) as mesh:
        listeners = await trio.open_tcp_listeners(number, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, application, listeners)
        endpoint = {"address": SERVER_IP, "ports": {"main": number}, "labels": {"app": "app"}}
        config = service("app.test", port, endpoint)
        config += rule("app.test", policy.replace("$port", str(port))) if policy else ""
        config += gateway("edge", f'- {{port: {{number: {at_edge}, name: http, protocol: HTTP}}, hosts: ["*"]}}')
        await mesh.apply(config + to("app.test", "app.test", "edge"))
        for node in (SERVER, CLIENT, EDGE):
            await mesh.envoy(node)
        for entrance in (port, at_edge):
            await ready(mesh, entrance)
            assert await upgraded(entrance) == b"HTTP/1.1 101 Switching Protocols"
            assert b"101" not in await upgraded(entrance, "other"), "no other use of CONNECT"
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()


async def connected(port: int, *headers: tuple[str, str]) -> str:
    """The status of a CONNECT over HTTP/2 to the server's Envoy; "reset" if it is refused as such."""
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    connection.send_headers(1, [(":method", "CONNECT"), (":authority", "app.test:80"), *headers])
    with trio.fail_after(20):
        async with await trio.open_tcp_stream(SERVER_IP, port) as stream:
            await stream.send_all(connection.data_to_send())
            while data := await stream.receive_some():
                try:
                    events = connection.receive_data(data)
                except h2.exceptions.ProtocolError:
                    return "reset"  # the connection ends, too
                for event in events:
                    if isinstance(event, h2.events.ResponseReceived):
                        return dict(event.headers or [])[b":status"].decode()
                    if isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                        return "reset"
                await stream.send_all(connection.data_to_send())
    return "closed"


async def test_connect_has_no_other_use_at_a_server(tmp_path: Path, free_ports: Ports) -> None:
    port, number = free_ports(2)
    extended = ((":scheme", "http"), (":path", "/"))
    async with trio.open_nursery() as nursery, fleet(tmp_path) as mesh:
        listeners = await trio.open_tcp_listeners(number, host="127.0.0.1")
        taken: list[trio.SocketStream] = []

        async def counted(stream: trio.SocketStream) -> None:
            taken.append(stream)
            await application(stream)

        nursery.start_soon(trio.serve_listeners, counted, listeners)
        endpoint = {"address": SERVER_IP, "ports": {"main": number}, "labels": {"app": "app"}}
        await mesh.apply(service("app.test", port, endpoint) + rule("app.test", UPGRADE))
        await mesh.envoy(SERVER)
        await eventually(mesh.envoys[0].takes_traffic)
        assert await connected(number, *extended, (":protocol", "websocket")) == "200"
        for headers in ((), (*extended, (":protocol", "other"))):
            assert await connected(number, *headers) in ("403", "404", "reset")
        assert len(taken) == 1, "the WebSocket alone reaches the application"
        await mesh.assert_all_taken()
        nursery.cancel_scope.cancel()
