"""A small HTTP server for a test, which answers as it says.

async with small_http({"/metrics": Said(b"up 1\\n", "text/plain")}) as server:
    server.port, server.requests
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from mesh_pilot.net.http.connection import Message
from mesh_pilot.net.http.server import HttpServer


@attrs.frozen
class Said:
    """An answer. ``body`` in pieces; with ``hangs`` it never ends after them."""

    body: bytes | Sequence[bytes] = b""
    content_type: str = ""
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    hangs: bool = False


@attrs.define
class SmallHttp:
    """The server. Its answers may be changed while it runs."""

    answers: dict[str, Said]
    port: int = 0
    requests: list[Message] = attrs.field(factory=list)

    def headers(self, number: int = -1) -> dict[str, str]:
        """The headers of a request."""
        return {name.decode(): value.decode() for name, value in self.requests[number]["headers"]}

    async def __call__(self, scope: Message, receive: object, send: object) -> None:
        assert callable(send)
        self.requests.append(scope)
        said = self.answers.get(scope["path"], Said(b"nothing here\n", status=404))
        headers = [(b"content-type", said.content_type.encode())] if said.content_type else []
        headers += [(name.encode(), value.encode()) for name, value in said.headers.items()]
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        for piece in [said.body] if isinstance(said.body, bytes) else said.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if said.hangs:
            await trio.sleep_forever()
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def small_http(answers: Mapping[str, Said], *, host: str = "127.0.0.1") -> AsyncIterator[SmallHttp]:
    """A server on a free port for the length of the block."""
    app = SmallHttp(dict(answers))
    listeners = await trio.open_tcp_listeners(0, host=host)
    app.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(HttpServer(app).serve, listeners, trio.Event(), grace_seconds=0))
        yield app
        nursery.cancel_scope.cancel()
