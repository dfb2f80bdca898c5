"""Action CUSTOM: somebody else is asked about requests and connections, over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h11
import pytest
import trio
from envoy.service.auth.v3 import external_auth_pb2 as auth_pb2
from google.rpc import status_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from tests.support.fleet import fleet
from tests.support.guarded import deny, guarded, policy
from tests.support.judge import judge
from tests.support.manifests import manifest

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

MESH = """
extensionProviders:
- name: by-http
  envoyExtAuthzHttp:
    service: http.authz.test
    port: {http}
    timeout: 5s
    pathPrefix: /check
    includeRequestHeadersInCheck: [x-user]
    includeAdditionalHeadersInCheck: {{x-from: mesh}}
    headersToUpstreamOnAllow: [x-verdict]
    headersToDownstreamOnDeny: [x-verdict]
    statusOnError: "503"
- name: by-grpc
  envoyExtAuthzGrpc: {{service: grpc.authz.test, port: {grpc}, timeout: 5s, statusOnError: "503"}}
- name: nowhere
  envoyExtAuthzHttp: {{service: nowhere.authz.test, port: 80, failOpen: true}}
- name: other-port
  envoyExtAuthzGrpc: {{service: http.authz.test, port: 7, failOpen: true}}
"""


def custom(name: str, provider: str, rules: str) -> str:
    return policy("AuthorizationPolicy", name, f"action: CUSTOM\nprovider: {{name: {provider}}}\nrules: {rules}")


def provider(name: str, port: int, server: int, protocol: str) -> str:
    """A provider's service; ``server``: the port on which it really is."""
    return manifest(
        "ServiceEntry",
        name,
        {
            "hosts": [f"{name}.authz.test"],
            "location": "MESH_EXTERNAL",
            "resolution": "STATIC",
            "ports": [{"number": port, "name": "main", "protocol": protocol}],
            "endpoints": [{"address": "127.0.0.1", "ports": {"main": server}}],
        },
    )


def verdict(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]]:
    user = dict(request.headers).get(b"x-user")
    return (200, {"x-verdict": "may"}) if user == b"friend" else (403, {"x-verdict": "may not"})


@pytest.mark.smoke
async def test_a_provider_decides_about_what_the_policy_names(tmp_path: Path, free_ports: Ports) -> None:
    *ports, http, grpc_port, by_grpc = free_ports(7)
    secure = '[{to: [{operation: {paths: ["/secure*"]}}]}]'
    (tmp_path / "outer").mkdir()
    async with fleet(tmp_path / "outer") as outer:
        server = await outer.backend("authz")
        server.answer = verdict
        mesh = MESH.format(http=http, grpc=grpc_port)
        more = provider("http", http, server.port, "HTTP") + provider("grpc", grpc_port, by_grpc, "GRPC")
        with judge(by_grpc) as asked:
            async with guarded(tmp_path, ports, custom("ask", "by-http", secure), mesh=mesh, more=more) as guard:
                assert (await guard.ask("/"), server.seen) == (200, [])
                reply = await guard.reply("/secure/x", headers={"x-user": "friend", "x-other": "y"})
                assert (reply.status_code, reply.json()["headers"]["x-verdict"]) == (200, "may")
                seen = server.seen[-1]
                assert (seen["path"], seen["headers"]["x-from"]) == ("/check/secure/x", "mesh")
                assert "x-other" not in seen["headers"]
                reply = await guard.reply("/secure/x")
                assert (reply.status_code, reply.headers["x-verdict"]) == (403, "may not")
                assert await guard.connect() == "data"

                await guard.apply(custom("ask", "by-grpc", secure))
                assert [await guard.ask(path) for path in ("/", "/secure")] == [200, 403]
                assert await guard.ask("/secure", headers={"x-user": "friend"}) == 200
                assert asked.asked[-1].attributes.request.http.path == "/secure"
                # A connection has no path: all are asked about.
                assert await guard.connect() == ""
                asked.everybody = True
                assert await guard.connect() == "data"

                await guard.apply(
                    custom("ask", "by-grpc", secure), deny("shut", '[{to: [{operation: {paths: ["/secure/no"]}}]}]')
                )
                assert [await guard.ask(path) for path in ("/secure", "/secure/no")] == [200, 403]


@pytest.mark.parametrize("name", ["nowhere", "other-port", "unheard-of"])
async def test_without_a_provider_what_it_would_have_been_asked_about_is_refused(
    tmp_path: Path, free_ports: Ports, name: str
) -> None:
    *ports, port, closed = free_ports(6)
    mesh, more = MESH.format(http=port, grpc=port), provider("http", port, closed, "HTTP")
    secure = '[{to: [{operation: {paths: ["/secure*"]}}]}]'
    async with guarded(tmp_path, ports, custom("ask", name, "[{}]"), mesh=mesh, more=more) as guard:
        assert (await guard.ask(), await guard.connect()) == (403, "")
        await guard.apply(custom("ask", name, secure))
        # A connection has no path: all would be asked about.
        assert ([await guard.ask(path) for path in ("/other", "/secure/x")], await guard.connect()) == ([200, 403], "")
        at_http = secure.replace("{paths:", f'{{ports: ["{guard.own_http}"], paths:')
        await guard.apply(custom("ask", name, at_http))
        assert ([await guard.ask(path) for path in ("/other", "/secure/x")], await guard.connect()) == (
            [200, 403],
            "data",
        )


async def test_a_policy_without_a_provider_costs_only_what_it_matches_itself(tmp_path: Path, free_ports: Ports) -> None:
    *ports, http = free_ports(5)
    (tmp_path / "outer").mkdir()
    async with fleet(tmp_path / "outer") as outer:
        server = await outer.backend("authz")
        server.answer = verdict
        policies = [
            custom(name, by, f'[{{to: [{{operation: {{paths: ["/{name}*"]}}}}]}}]')
            for name, by in (("asked", "by-http"), ("lost", "unheard-of"))
        ]
        more = provider("http", http, server.port, "HTTP")
        mesh = MESH.format(http=http, grpc=http)
        async with guarded(tmp_path, ports, *policies, mesh=mesh, more=more) as guard:
            friend = {"x-user": "friend"}
            asked = [await guard.ask(path, headers=friend) for path in ("/", "/asked", "/lost")]
            assert (asked, await guard.ask("/asked")) == ([200, 200, 403], 403)


async def test_a_provider_that_does_not_answer_lets_nobody_pass(tmp_path: Path, free_ports: Ports) -> None:
    *ports, port, closed = free_ports(6)
    mesh, more = MESH.format(http=port, grpc=port), provider("http", port, closed, "HTTP")
    async with guarded(tmp_path, ports, mesh=mesh, more=more) as guard:
        await guard.apply(custom("ask", "by-http", '[{to: [{operation: {paths: ["/secure*"]}}]}]'))
        assert [await guard.ask(path) for path in ("/", "/secure")] == [200, 503]


async def test_a_provider_is_asked_by_its_host(tmp_path: Path, free_ports: Ports) -> None:
    *ports, port = free_ports(5)
    asked: list[bytes] = []
    denied = auth_pb2.CheckResponse(status=status_pb2.Status(code=7)).SerializeToString()

    async def answer(stream: trio.SocketStream) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        async for data in stream:
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    asked.append(dict(event.headers)[b":authority"])
                    connection.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
                    connection.send_data(event.stream_id, len(denied).to_bytes(5) + denied)
                    connection.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            await stream.send_all(connection.data_to_send())

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        more = provider("grpc", port, listener.socket.getsockname()[1], "GRPC")
        policies = (custom("ask", "by-grpc", "[{}]"),)
        async with guarded(tmp_path, ports, *policies, mesh=MESH.format(http=port, grpc=port), more=more) as guard:
            assert await guard.ask() == 403
        nursery.cancel_scope.cancel()
    assert set(asked) == {b"grpc.authz.test"}
