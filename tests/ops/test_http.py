"""Serving HTTP: requests under way at the stop are finished; what one client does costs others nothing."""

from __future__ import annotations

import contextlib
import math
import resource
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import structlog.testing
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mesh_pilot.net.http.connection import HttpLimits
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc.descriptors import GRPC_SHARE, within_descriptors
from mesh_pilot.net.rpc.tls import CertificateFiles, TlsSource, server_tls
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def huge(request: Request) -> Response:
    return PlainTextResponse(b"x" * 50_000_000)


class Server:
    """An app being served for a test, with its address."""

    def __init__(self, nursery: trio.Nursery, *routes: Route, tls: TlsSource | None = None, **limits: float) -> None:
        self.nursery = nursery
        app = Starlette(routes=list(routes))
        self.http = HttpServer(app, right_port="10.0.0.1:15010", limits=HttpLimits(**limits), tls=tls)
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.address = ("127.0.0.1", 0)

    async def start(self, grace_seconds: float = 5) -> str:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = listeners[0].socket.getsockname()
        await self.nursery.start(partial(self._run, listeners, grace_seconds))
        return "http://{}:{}".format(*self.address)

    async def _run(
        self, listeners: list[trio.SocketListener], grace: float, *, task_status: trio.TaskStatus[None]
    ) -> None:
        await self.http.serve(listeners, self.stop, grace_seconds=grace, task_status=task_status)
        self.ended.set()


async def test_bodies_of_several_clients_are_bounded_together() -> None:
    async def length(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        server = Server(nursery, Route("/", length, methods=["POST"]), body_bytes=60_000, all_bodies_bytes=100_000)
        url = await server.start()
        slow = await trio.open_tcp_stream(*server.address)
        await slow.send_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 55000\r\n\r\n" + b"b" * 50_000)
        await eventually(lambda: server.http.held_bytes >= 50_000)
        assert (await client.post(url, content=b"x" * 10_000)).text == "10000"
        refused = await client.post(url, content=b"x" * 55_000)
        assert (refused.status_code, refused.text) == (503, "too many large requests at once: try again\n")
        await slow.send_all(b"b" * 5_000)
        assert b"55000" in await slow.receive_some()
        assert (await client.post(url, content=b"x" * 55_000)).text == "55000", "what was held is let go"
        await eventually(lambda: server.http.held_bytes == 0)
        await slow.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "request_line", ["GET / HTTP/1.1", "GET /none HTTP/1.1", "GET /broken HTTP/1.1", "GET / HTTP/9"]
)
async def test_no_answer_is_taken_for_another_type_than_it_says(request_line: str) -> None:
    async def broken(request: Request) -> Response:
        raise ValueError("broken")

    async with trio.open_nursery() as nursery:
        server = Server(nursery, Route("/", hello), Route("/broken", broken))
        await server.start()
        client = await trio.open_tcp_stream(*server.address)
        await client.send_all(f"{request_line}\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await client.receive_some()
        assert answer.count(b"x-content-type-options: nosniff\r\n") == 1, answer
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_it_answers_and_after_the_stop_the_port_is_closed() -> None:
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        server = Server(nursery, Route("/", hello))
        url = await server.start()
        assert (await client.get(url)).text == "hello"
        assert (await client.get(f"{url}/nothing")).status_code == 404
        server.stop.set()  # the client's connection is idle and kept alive: it does not hold up the end
        with trio.fail_after(60):
            await server.ended.wait()
        try:
            await client.get(url)
        except httpx.ConnectError:
            pass
        else:
            raise AssertionError("still served")


async def test_a_request_under_way_is_finished_after_the_stop() -> None:
    started, go_on = trio.Event(), trio.Event()

    async def slow(request: Request) -> Response:
        started.set()
        await go_on.wait()
        return PlainTextResponse("finished")

    answers: list[str] = []

    async def ask(client: httpx.AsyncClient, url: str) -> None:
        answers.append((await client.get(url)).text)

    async with httpx.AsyncClient(trust_env=False, timeout=60) as client, trio.open_nursery() as nursery:
        server = Server(nursery, Route("/", slow))
        nursery.start_soon(ask, client, await server.start())
        await started.wait()
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        await server.ended.wait()
    assert answers == ["finished"]


async def test_before_an_end_each_answer_can_be_the_last_of_its_connection_and_say_so() -> None:
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        server = Server(nursery, Route("/", hello))
        url = await server.start()
        for keeps, total in ((True, 1), (False, 1), (False, 2), (True, 3), (True, 3)):
            server.http.keeps_connections = keeps
            answer = await client.get(url)
            assert answer.headers.get("connection") == (None if keeps else "close")
            assert server.http.statistics().connections_total == total
        server.stop.set()


async def test_a_client_that_stops_reading_is_cut_after_the_grace() -> None:
    async with trio.open_nursery() as nursery:
        server = Server(nursery, Route("/", huge))
        await server.start(grace_seconds=0.05)
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await stream.receive_some(100)
        server.stop.set()
        with trio.fail_after(60):
            await server.ended.wait()
        await stream.aclose()


async def test_cancelling_cuts_such_a_client_at_once() -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            server = Server(nursery, Route("/", huge))
            await server.start(grace_seconds=60)
            stream = await trio.open_tcp_stream(*server.address)
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await stream.receive_some(100)
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def broken(request: Request) -> Response:
    raise KeyError(request.url.path)


async def halfway(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        yield b"the beginning"
        raise KeyError("halfway")

    return StreamingResponse(body())


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def raw(address: tuple[str, int], *pieces: bytes) -> bytes:
    """What a server answers to these bytes, until it closes; "" where it resets."""
    answer = b""
    async with await trio.open_tcp_stream(*address) as stream:
        try:
            for piece in pieces:
                await stream.send_all(piece)
            while data := await stream.receive_some():
                answer += data
        except trio.BrokenResourceError:
            pass
    return answer


@pytest.fixture
def patience_seconds() -> float:
    """How long the server waits for its clients; the tests that wait for the end of it have a short one."""
    return 600.0


HASTY = pytest.mark.parametrize("patience_seconds", [0.2])


@pytest.fixture
async def server(nursery: trio.Nursery, patience_seconds: float) -> AsyncIterator[Server]:
    routes = [Route(f"/{f.__name__}", f, methods=["GET", "POST"]) for f in (hello, huge, broken, halfway, echo)]
    server = Server(nursery, *routes, connections=10, request_seconds=patience_seconds, stall_seconds=patience_seconds)
    await server.start()
    yield server
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = "http://{}:{}/hello".format(*server.address)

        async def serves() -> bool:
            try:
                return (await client.get(url)).text == "hello"
            except httpx.HTTPError:
                return False  # the server's patience was shorter than a busy machine takes

        await eventually(serves, what="whatever happened, it serves")
    server.stop.set()
    with trio.fail_after(60):
        await server.ended.wait()
    assert server.http.statistics().connections_open == 0


async def test_an_error_in_a_page_is_a_500_for_its_client_and_logged_once(server: Server) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            assert (await raw(server.address, b"GET /broken HTTP/1.1\r\nhost: x\r\n\r\n")).startswith(b"HTTP/1.1 500 ")
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("internal error in an HTTP request", "error")
    await eventually(lambda: server.http.statistics().failures == 20)
    assert server.http.statistics().requests == {500: 20}


async def test_an_error_amid_a_response_cuts_it(server: Server) -> None:
    answer = await raw(server.address, b"GET /halfway HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"the beginning" in answer
    assert not answer.endswith(b"0\r\n\r\n")
    await eventually(lambda: server.http.statistics().failures == 1)


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"x" * 500,), 400),
        ((b"GET / HTTP/1.1\r\n\r\n",), 400),
        ((b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: many\r\n\r\n",), 400),
        ((b"GET / HTTP/1.1\r\nhost: x\r\ncookie: " + b"c" * 100_000,), 431),
        ((b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 50_000,), 431),
        ((b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + b"b" * 3_000_000,), 413),
        (
            (
                b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
                *([b"ffff\r\n" + b"b" * 0xFFFF + b"\r\n"] * 3),
            ),
            413,
        ),
    ],
)
async def test_a_bad_request_is_refused_with_a_status(server: Server, pieces: tuple[bytes, ...], status: int) -> None:
    assert (await raw(server.address, *pieces)).startswith(b"HTTP/1.1 %d " % status)
    assert server.http.statistics().failures == 0


@HASTY
@pytest.mark.parametrize(
    "beginning", [b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfew", b"GET /hello HTTP/1.1\r\nho"]
)
async def test_a_request_that_does_not_arrive_is_refused(server: Server, beginning: bytes) -> None:
    assert (await raw(server.address, beginning)).startswith(b"HTTP/1.1 408 ")
    assert server.http.statistics().failures == 0


@HASTY
async def test_a_client_that_sends_nothing_is_let_go(server: Server) -> None:
    assert await raw(server.address) == b""
    assert server.http.statistics().timeouts == 0


@HASTY
async def test_a_client_that_does_not_read_is_let_go(server: Server) -> None:
    async with await trio.open_tcp_stream(*server.address) as stream:
        await stream.send_all(b"GET /huge HTTP/1.1\r\nhost: x\r\n\r\n")
        await eventually(lambda: server.http.statistics().timeouts == 1)
        await eventually(lambda: server.http.statistics().connections_open == 0)
    assert server.http.statistics().failures == 0


async def test_a_client_that_leaves_is_no_error(server: Server) -> None:
    for _ in range(20):
        async with await trio.open_tcp_stream(*server.address) as stream:
            await stream.send_all(b"GET /huge HTTP/1.1\r\nhost: x\r\n\r\n")
            await stream.receive_some(10)
    await eventually(lambda: server.http.statistics().connections_open == 0)
    assert server.http.statistics().failures == 0


async def test_requests_in_a_row_and_all_at_once_are_answered_in_order(server: Server) -> None:
    ask = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\nconnection: close\r\n\r\nend"
    answer = await raw(server.address, ask * 3 + last)
    assert answer.count(b"hello") == 3
    assert answer.endswith(b"\r\n\r\nend")
    assert server.http.statistics().connections_total == 1


async def test_head_has_no_body_and_a_body_may_be_announced(server: Server) -> None:
    head = await raw(server.address, b"HEAD /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert b"content-length: 5" in head
    assert head.endswith(b"\r\n\r\n")
    announced = b"POST /echo HTTP/1.0\r\ncontent-length: 3\r\n\r\n"
    assert (await raw(server.address, announced, b"abc")).endswith(b"abc")
    async with await trio.open_tcp_stream(*server.address) as stream:
        await stream.send_all(b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"abc")
        assert (await stream.receive_some()).endswith(b"abc")


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET /hello HTTP/1.1\r\nho",
        b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfew",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_of_too_many_connections_the_one_that_waits_longest_gives_way(
    nursery: trio.Nursery, begin: bytes
) -> None:
    server = Server(
        nursery, *(Route(f"/{f.__name__}", f, methods=["GET", "POST"]) for f in (hello, echo)), connections=10
    )
    await server.start()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        url = "http://{}:{}/hello".format(*server.address)
        streams = [await trio.open_tcp_stream(*server.address) for _ in range(50)]
        for stream in streams:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(begin)
        for _ in range(3):
            assert (await client.get(url)).text == "hello"
        own = server.http.statistics()
        assert own.connections_open <= 11  # one may be about to close
        assert own.displaced >= 40
        assert own.failures == 0
        for stream in streams:
            await stream.aclose()
    nursery.cancel_scope.cancel()


async def test_who_does_not_read_answers_gives_way_however_many_requests_wait(nursery: trio.Nursery) -> None:
    server = Server(nursery, Route("/", huge), Route("/hello", hello), connections=5)
    await server.start(grace_seconds=0)
    streams = []
    for pipelined in (1, 200, 200, 1, 200):
        streams.append(await trio.open_tcp_stream(*server.address))
        await streams[-1].send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * pipelined)
        await streams[-1].receive_some(10)
    for displaced in range(1, 8):
        answer = await raw(server.address, b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.endswith(b"hello")
        assert server.http.statistics().displaced <= displaced
    assert server.http.statistics().refused == 0
    server.stop.set()
    await server.ended.wait()
    for stream in streams:
        await stream.aclose()


async def test_when_all_connections_are_busy_whoever_has_most_gives_way_to_others(nursery: trio.Nursery) -> None:
    """The newest of its connections; more of its own are refused."""
    ended = []

    async def busy(request: Request) -> Response:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(request.query_params["number"])
        raise AssertionError

    server = Server(nursery, Route("/busy", busy), Route("/hello", hello), connections=4)
    await server.start(grace_seconds=0)
    ask_hello = b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    streams = []

    async def keep_busy(number: int, local: str) -> None:
        streams.append(await trio.open_tcp_stream(*server.address, local_address=local))
        await streams[-1].send_all(b"GET /busy?number=%d HTTP/1.1\r\nhost: x\r\n\r\n" % number)
        await trio.testing.wait_all_tasks_blocked(0.02)

    for number in range(4):
        await keep_busy(number, "127.0.0.1")
    with structlog.testing.capture_logs() as logs:
        assert await raw(server.address, ask_hello) == b""
        assert await raw(server.address, ask_hello) == b""
    assert server.http.statistics().refused == 2
    (line,) = logs
    assert line["event"] == "a connection was refused: all others are busy"
    assert (line["port"], line["limit"], line["new_from"]) == ("web", 4, "127.0.0.1")
    await keep_busy(4, "127.0.0.2")
    await keep_busy(5, "127.0.0.2")
    assert ended == ["3", "2"]
    await keep_busy(6, "127.0.0.3")
    assert ended == ["3", "2"], "who has no more than half loses nothing"
    server.stop.set()
    await server.ended.wait()
    for stream in streams:
        await stream.aclose()


async def test_who_asks_ahead_or_often_holds_up_no_other_address(nursery: trio.Nursery) -> None:
    """One request begins in each pass of the loop, and each address has a line."""
    begun: list[str] = []

    async def page(request: Request) -> Response:
        begun.append(request.query_params["who"])
        return PlainTextResponse("done")

    server = Server(nursery, Route("/", page), connections=100)
    await server.start(grace_seconds=0)
    async with trio.open_nursery() as asking:

        async def ask(who: str, local: str, times: int) -> None:
            async with await trio.open_tcp_stream(*server.address, local_address=local) as stream:
                await stream.send_all(f"GET /?who={who} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * times)
                with trio.move_on_after(0.5):
                    while await stream.receive_some():
                        pass

        for _ in range(20):
            asking.start_soon(ask, "ahead", "127.0.0.1", 50)
        for _ in range(20):
            asking.start_soon(ask, "often", "127.0.0.1", 1)
        await eventually(lambda: len(begun) > 30)
        asking.start_soon(ask, "good", "127.0.0.2", 1)
        asking.start_soon(ask, "near", "127.0.0.1", 1)
        await eventually(lambda: {"good", "near"} <= set(begun))
        assert len(begun) < 500
        asking.cancel_scope.cancel()
    server.stop.set()
    await server.ended.wait()


async def test_connections_that_begin_no_handshake_give_way(nursery: trio.Nursery, tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "pilot")
    tls = server_tls(CertificateFiles(certificate=files.certificate, key=files.key))
    server = Server(nursery, Route("/hello", hello), tls=tls, connections=5)
    await server.start(grace_seconds=0)
    streams = [await trio.open_tcp_stream(*server.address) for _ in range(20)]
    for stream in streams[::2]:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"\x16\x03\x01")
    context = ssl.create_default_context(cafile=str(files.ca))
    context.check_hostname = False
    async with httpx.AsyncClient(trust_env=False, verify=context, timeout=60) as client:
        url = "https://{}:{}/hello".format(*server.address)
        for _ in range(3):
            assert (await client.get(url)).text == "hello"
    own = server.http.statistics()
    assert (own.refused, own.displaced) == (0, 16)
    server.stop.set()
    await server.ended.wait()
    for stream in streams:
        await stream.aclose()


def test_a_server_has_fewer_connections_where_the_process_may_open_few_files() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (640, limits[1]))
    try:
        assert within_descriptors(500) == 40
        assert within_descriptors(30) == 30
        assert within_descriptors(math.inf, GRPC_SHARE) == 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
