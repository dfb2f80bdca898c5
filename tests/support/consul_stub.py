"""Something that answers as Consul would, but as a test says: for answers that a real one can't be made to give.

async with consul_stub() as stub:
    stub.answer("/v1/health/service/web", [entry], index=7)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import h11
import trio


@attrs.frozen
class Reply:
    body: Any = None
    """JSON, or text as it is."""
    index: int = 1
    status: int = 200


@attrs.frozen
class Asked:
    path: str
    parameters: dict[str, str]


@attrs.define
class ConsulStub:
    """State: what it answers by path, and what it was asked. A query that waits is answered once its path's index is
    another."""

    port: int = 0
    replies: dict[str, Reply] = attrs.field(factory=dict)
    asked: list[Asked] = attrs.field(factory=list)
    is_deaf: bool = False
    """It takes requests and never answers."""
    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, body: Any, *, index: int = 1, status: int = 200) -> None:
        """From now on."""
        self.replies[path] = Reply(body, index, status)
        self._changed.set()
        self._changed = trio.Event()

    def counts(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(asked.path for asked in self.asked)

    async def serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            async with stream:
                while True:
                    event = connection.next_event()
                    if event is h11.NEED_DATA:
                        connection.receive_data(await stream.receive_some())
                    elif isinstance(event, h11.Request):
                        target = urlsplit(event.target.decode())
                        asked = Asked(target.path, {k: v[0] for k, v in parse_qs(target.query).items()})
                        self.asked.append(asked)
                        await self._send(stream, connection, await self._reply(asked))
                    elif isinstance(event, h11.EndOfMessage):
                        connection.start_next_cycle()
                    elif isinstance(event, h11.ConnectionClosed):
                        return

    async def _reply(self, asked: Asked) -> Reply:
        while True:
            reply = self.replies.get(asked.path, Reply("no such thing", status=404))
            waits = reply.status == 200 and asked.parameters.get("index") == str(reply.index)
            if not waits and not self.is_deaf:
                return reply
            await self._changed.wait()

    async def _send(self, stream: trio.SocketStream, connection: h11.Connection, reply: Reply) -> None:
        text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        headers = [("content-length", str(len(text.encode()))), ("x-consul-index", str(reply.index))]
        for event in (
            h11.Response(status_code=reply.status, headers=headers),
            h11.Data(data=text.encode()),
            h11.EndOfMessage(),
        ):
            await stream.send_all(connection.send(event) or b"")


@asynccontextmanager
async def consul_stub() -> AsyncIterator[ConsulStub]:
    """One on the loopback for the length of the block, with an empty catalog."""
    stub = ConsulStub()
    stub.answer("/v1/catalog/services", {"consul": []})
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stub.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, stub.serve, listeners)
        yield stub
        nursery.cancel_scope.cancel()
