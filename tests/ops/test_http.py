"""Serving HTTP: requests under way at the stop are finished, and a client that does not read holds up nothing."""

from __future__ import annotations

from functools import partial

import httpx
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mesh_pilot.ops.http import serve_http


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def huge(request: Request) -> Response:
    return PlainTextResponse(b"x" * 50_000_000)


class Server:
    """An app being served for a test, with its address."""

    def __init__(self, nursery: trio.Nursery, *routes: Route) -> None:
        self.nursery = nursery
        self.app = Starlette(routes=list(routes))
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
        await serve_http(self.app, listeners, self.stop, grace_seconds=grace, task_status=task_status)
        self.ended.set()


async def test_it_answers_and_after_the_stop_the_port_is_closed() -> None:
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False) as client:
        server = Server(nursery, Route("/", hello))
        url = await server.start()
        assert (await client.get(url)).text == "hello"
        assert (await client.get(f"{url}/nothing")).status_code == 404
        server.stop.set()  # the client's connection is idle and kept alive: it does not hold up the end
        with trio.fail_after(3):
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

    async with httpx.AsyncClient(trust_env=False) as client, trio.open_nursery() as nursery:
        server = Server(nursery, Route("/", slow))
        nursery.start_soon(ask, client, await server.start())
        await started.wait()
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        await server.ended.wait()
    assert answers == ["finished"]


async def test_a_client_that_stops_reading_is_cut_after_the_grace() -> None:
    async with trio.open_nursery() as nursery:
        server = Server(nursery, Route("/", huge))
        await server.start(grace_seconds=0.05)
        stream = await trio.open_tcp_stream(*server.address)
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await stream.receive_some(100)
        server.stop.set()
        with trio.fail_after(3):
            await server.ended.wait()
        await stream.aclose()


async def test_cancelling_cuts_such_a_client_at_once() -> None:
    with trio.fail_after(3):
        async with trio.open_nursery() as nursery:
            server = Server(nursery, Route("/", huge))
            await server.start(grace_seconds=60)
            stream = await trio.open_tcp_stream(*server.address)
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await stream.receive_some(100)
            nursery.cancel_scope.cancel()
        await stream.aclose()
