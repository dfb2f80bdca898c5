"""Connections to servers of others: read in small pieces, and no head of an answer without end.

httpcore passes over informational answers (``100 Continue``) as long as they come, and h11 takes some 30 microseconds
for each: without a bound a server that sends nothing else has the loop for itself. Here a head has ``HEAD_BYTES``, and
what is read at once is parsed in a few milliseconds.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextvars import ContextVar
from typing import Any, cast

import attrs
import httpcore
import httpx

HEAD_BYTES = 64 * 1024
"""The bytes that may come before the body of an answer begins, informational answers included."""
HEAD_STEP_BYTES = 4 * 1024
BODY_STEP_BYTES = 16 * 1024


@attrs.define
class _AnswerHead:
    """The head of the answer that is being read. State: whether it is, and how much may still come."""

    is_read: bool = True
    left: int = HEAD_BYTES

    async def trace(self, event: str, _: object) -> None:
        """The steps of a request, as httpcore tells them."""
        if event.endswith("receive_response_headers.started"):
            self.is_read, self.left = True, HEAD_BYTES
        elif event.endswith("receive_response_headers.complete"):
            self.is_read = False


_HEAD: ContextVar[_AnswerHead] = ContextVar("head of the answer to a request")


class PooledTransport(httpx.AsyncBaseTransport):
    """A transport whose connections are of one request each. What it raises is httpcore's."""

    def __init__(self, context: ssl.SSLContext, proxy: str = "") -> None:
        """``proxy``: the URL of an HTTP proxy. Raises ValueError for another."""
        options: dict[str, Any] = {
            "ssl_context": context,
            "max_connections": None,
            "max_keepalive_connections": 0,
            "network_backend": _PacedBackend(),
        }
        self._pool: httpcore.AsyncConnectionPool
        if proxy:
            known = httpx.Proxy(proxy)
            if known.url.scheme not in ("http", "https"):
                raise ValueError("not a proxy of HTTP")
            url = _core_url(known.url)
            self._pool = httpcore.AsyncHTTPProxy(url, proxy_auth=known.raw_auth, **options)
        else:
            self._pool = httpcore.AsyncConnectionPool(**options)

    def __repr__(self) -> str:
        return f"<PooledTransport {self._pool!r}>"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        head = _AnswerHead()
        token = _HEAD.set(head)
        try:
            answer = await self._pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=_core_url(request.url),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions={**request.extensions, "trace": head.trace},
                )
            )
        finally:
            _HEAD.reset(token)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_PooledBody(answer), extensions=dict(answer.extensions)
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def _core_url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


class _PooledBody(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in cast("AsyncIterator[bytes]", self._answer.stream):
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


class _PacedBackend(httpcore.AsyncNetworkBackend):
    """Trio's network, with streams that are read in small pieces."""

    def __init__(self) -> None:
        self._trio = httpcore.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._trio.connect_tcp(host, port, timeout, local_address, socket_options)
        return _PacedStream(stream, _HEAD.get())

    async def sleep(self, seconds: float) -> None:
        await self._trio.sleep(seconds)


class _PacedStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, head: _AnswerHead) -> None:
        self._stream = stream
        self._head = head

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        head = self._head
        data = await self._stream.read(min(max_bytes, HEAD_STEP_BYTES if head.is_read else BODY_STEP_BYTES), timeout)
        if head.is_read:
            head.left -= len(data)
            if head.left < 0:
                raise httpcore.RemoteProtocolError(f"the head of the answer is longer than {HEAD_BYTES} bytes")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _PacedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._head)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
