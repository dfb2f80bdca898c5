"""A load of HTTP requests, each of which is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

CLIENTS = 16


@attrs.define
class Load:
    """Requests and their answers, counted by text; failures with their reasons."""

    answers: dict[str, int] = attrs.field(factory=dict)
    failures: list[str] = attrs.field(factory=list)
    kept_failures: list[str] = attrs.field(factory=list)
    """Those of them on a connection that had answered before."""

    @property
    def count(self) -> int:
        return sum(self.answers.values())


async def _ask(stream: trio.SocketStream, path: str) -> tuple[bytes, bytes]:
    """Head and body of the answer to one request."""
    await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
    answer = b""
    while not answer.partition(b"\r\n\r\n")[2]:
        data = await stream.receive_some(4096)
        if not data:
            raise OSError(f"closed after {answer!r}")
        answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def _client(port: int, path: str, load: Load, *, keeps: bool) -> None:
    """Ask again and again, on a new connection each time or on one that is kept until Envoy closes it."""
    while True:
        answered = False
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                while True:
                    head, body = await _ask(stream, path)
                    answered = True
                    if head.startswith(b"HTTP/1.1 200"):
                        load.answers[body.decode()] = load.answers.get(body.decode(), 0) + 1
                    else:
                        load.failures.append((head + body).decode())
                    await trio.sleep(0.002)
                    if not keeps or b"connection: close" in head.lower():
                        break
        except (OSError, trio.BrokenResourceError) as error:
            load.failures.append(repr(error))
            if answered:
                load.kept_failures.append(repr(error))
            await trio.sleep(0.01)


@asynccontextmanager
async def load_on(port: int, path: str = "/", *, clients: int = CLIENTS) -> AsyncIterator[Load]:
    """A load for the length of the block. Half of the clients keep their connections."""
    load = Load()
    async with trio.open_nursery() as nursery:
        for number in range(clients):
            nursery.start_soon(partial(_client, port, path, load, keeps=number % 2 == 0))
        yield load
        nursery.cancel_scope.cancel()
