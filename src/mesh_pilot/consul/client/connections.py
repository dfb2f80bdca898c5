"""Many connections that each wait for an answer, under one httpx client.

httpcore's own pool looks at all its connections whenever a request begins or ends. Where hundreds of blocking queries
wait, that is most of what there is to do; here a request takes the connection that was free last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx


class ConnectionStack(httpx.AsyncBaseTransport):
    """A transport of as many connections as there are requests at a time; who sends them limits how many those are.

    State: `_all`, a transport of one connection each, and those of them that are `_idle`.
    """

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        """`make` gives a transport of one connection."""
        self._make = make
        self._all: list[httpx.AsyncBaseTransport] = []
        self._idle: list[httpx.AsyncBaseTransport] = []

    def __repr__(self) -> str:
        return f"<ConnectionStack of {len(self._all)}, {len(self._idle)} idle>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self._idle:
            self._all.append(fresh := self._make())
            self._idle.append(fresh)
        transport = self._idle.pop()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self._idle.append(transport)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Body(response.stream, lambda: self._idle.append(transport))
        return response

    async def aclose(self) -> None:
        for transport in self._all:
            await transport.aclose()


class _Body(httpx.AsyncByteStream):
    """A response's body; its connection is free again once it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, give_back: Callable[[], None]) -> None:
        self._stream = stream
        self._give_back: Callable[[], None] | None = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._give_back is not None:
                self._give_back()
                self._give_back = None
