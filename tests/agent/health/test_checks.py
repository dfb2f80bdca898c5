"""Checks of a real application: over HTTP and HTTPS, TCP, gRPC, and by commands that misbehave."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.health.checks import ApplicationAddress, CheckRunner
from mesh_pilot.agent.health.probe import Check, ExecCheck, GrpcCheck, HttpCheck, TcpCheck
from mesh_pilot.model.proxy import Interception
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, Server, ServerStream, Status, open_listeners, serve
from mesh_pilot.net.rpc.net import address_of
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.small_http import Said, small_http


@pytest.fixture
def runner() -> CheckRunner:
    return CheckRunner(ApplicationAddress("127.0.0.1", "127.0.0.6"))


async def reason(runner: CheckRunner, check: Check, seconds: float = 30) -> str:
    """Why a check failed; empty if it did not."""
    result = await runner.run(check, seconds)
    assert result.is_healthy is not bool(result.reason)
    return result.reason


def test_the_application_is_at_the_instances_address_or_where_nothing_is_redirected_on_the_loopback() -> None:
    assert ApplicationAddress.of(EnvoyNode("a", ip="10.0.0.1")) == ApplicationAddress("10.0.0.1", "127.0.0.6")
    plain = EnvoyNode("a", ip="10.0.0.1", interception=Interception.NONE)
    assert ApplicationAddress.of(plain) == ApplicationAddress("127.0.0.1", None)
    assert ApplicationAddress.of(EnvoyNode("a", ip="fd00::1")).host == "fd00::1"


async def test_a_status_of_200_to_399_is_healthy(runner: CheckRunner) -> None:
    answers = {
        "/": Said(b"x" * 500_000),
        "/302": Said(status=302, headers={"location": "/404"}),
        "/303": Said(status=303, headers={"location": "http://127.0.0.2/"}),
        "/304": Said(status=304),
        "/loop": Said(status=307, headers={"location": "/loop"}),
        "/503": Said(b"down", status=503),
    }
    async with small_http(answers) as server:
        port = server.port
        assert await reason(runner, HttpCheck(port)) == ""
        assert server.headers()["user-agent"].startswith("mesh-pilot-probe")
        assert server.requests[-1]["client"][0] == "127.0.0.6"
        assert await reason(runner, HttpCheck(port, host="127.0.0.1", headers=(("host", "web"),))) == ""
        assert server.headers()["host"] == "web"
        assert await reason(runner, HttpCheck(port, "/302")) == f"HTTP GET /302 on port {port}: status 404"
        assert await reason(runner, HttpCheck(port, "/303")) == ""
        assert await reason(runner, HttpCheck(port, "/304")) == ""
        assert "more than 10 redirects" in await reason(runner, HttpCheck(port, "/loop"))
        assert await reason(runner, HttpCheck(port, "/503")) == f"HTTP GET /503 on port {port}: status 503"


async def test_https_is_not_verified(runner: CheckRunner, tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "web")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):  # a client without TLS
            await stream.receive_some(1000)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
        port = listeners[0].transport_listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, answer, listeners)
        assert await reason(runner, HttpCheck(port, scheme="https")) == ""
        assert await reason(runner, HttpCheck(port)) != ""
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_accepted_is_healthy(runner: CheckRunner) -> None:
    async with small_http({}) as server:
        assert await reason(runner, TcpCheck(server.port)) == ""
        assert await reason(runner, TcpCheck(server.port, "127.0.0.1")) == ""
    assert (await reason(runner, TcpCheck(server.port))).startswith(f"TCP port {server.port}: ")


class GrpcHealth:
    """grpc.health.v1.Health, which says what a service's name says."""

    async def check(self, stream: ServerStream[bytes, bytes]) -> None:
        request = await stream.recv_message()
        match request:
            case b"\x0a\x02up" | b"":
                await stream.send_message(b"\x08\x01")
            case b"\x0a\x04down":
                await stream.send_message(b"\x08\x02")
            case b"\x0a\x04slow":
                await trio.sleep_forever()
            case _:
                raise GRPCError(Status.NOT_FOUND, "unknown service")

    def __mapping__(self) -> dict[str, Handler]:
        return {"/grpc.health.v1.Health/Check": Handler(self.check, Cardinality.UNARY_UNARY, bytes, bytes)}


class NoHealth:
    def __mapping__(self) -> dict[str, Handler]:
        return {}


async def test_grpc_health(runner: CheckRunner) -> None:
    async with trio.open_nursery() as nursery:
        ports = []
        for service in (GrpcHealth(), NoHealth()):
            listeners = await open_listeners("127.0.0.1:0")
            ports.append(int(address_of(listeners[0].socket).rpartition(":")[2]))
            server = await nursery.start(serve, [service], listeners)
            assert isinstance(server, Server)
        port = ports[0]
        assert await reason(runner, GrpcCheck(port)) == ""
        assert await reason(runner, GrpcCheck(port, "up")) == ""
        assert "says that it is not serving" in await reason(runner, GrpcCheck(port, "down"))
        assert "status NOT_FOUND unknown service" in await reason(runner, GrpcCheck(port, "x"))
        assert "nothing within 0.2 s" in await reason(runner, GrpcCheck(port, "slow"), 0.2)
        assert "does not implement grpc.health.v1.Health" in await reason(runner, GrpcCheck(ports[1]))
        nursery.cancel_scope.cancel()
    assert "cannot connect" in await reason(runner, GrpcCheck(port))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")


@pytest.mark.process
async def test_a_command_is_healthy_if_it_ends_with_0(runner: CheckRunner) -> None:
    assert await reason(runner, ExecCheck(("true",))) == ""
    failing = ("sh", "-c", "echo first; echo the disk is full >&2; exit 3")
    assert await reason(runner, ExecCheck(failing)) == "command sh: ended with code 3: the disk is full"
    assert await reason(runner, ExecCheck(("sh", "-c", "kill -9 $$"))) == "command sh: ended with signal 9"
    assert "No such file" in await reason(runner, ExecCheck(("/nonexistent",)))


@pytest.mark.process
async def test_a_command_that_hangs_or_leaves_children_or_floods_leaves_nothing_behind(
    runner: CheckRunner, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hangs = ("sh", "-c", f"echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait")
    assert "nothing within 1 s" in await reason(runner, ExecCheck(hangs), 1)
    leaves = ("sh", "-c", f"sleep 1000 & echo $! >> {pids}")
    assert await reason(runner, ExecCheck(leaves)) == ""
    found = [int(line) for line in pids.read_text(encoding="utf-8").split()]
    assert len(found) == 3
    await eventually(lambda: not any(is_running(pid) for pid in found), what="all processes have ended")
    flood = ("sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x; echo; printf '\\033[31mthe end\\n'; exit 1")
    assert await reason(runner, ExecCheck(flood)) == "command sh: ended with code 1: [31mthe end"
    lines = ("sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x; exit 1")
    assert len(await reason(runner, ExecCheck(lines))) <= 300
