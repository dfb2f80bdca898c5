"""Answers of the agent's ports, and the page of metrics, which two of them have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from mesh_pilot.agent.status.scraping import MergedMetrics
from mesh_pilot.net.http.connection import Message

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

METRICS_PATHS = ("/metrics", "/stats/prometheus")
GET = ("GET", "HEAD")
_TEXT = "text/plain; charset=utf-8"


def headers_of(scope: Message) -> dict[str, str]:
    """The headers of a request, their names in small letters."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def answer(
    send: Send, status: int, body: str | bytes, content_type: str = _TEXT, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """A whole answer."""
    data = body.encode() if isinstance(body, str) else body
    every = [("content-type", content_type), ("content-length", str(len(data))), *headers]
    encoded = [(name.encode(), value.encode()) for name, value in every]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": data})


async def answer_method(send: Send, methods: tuple[str, ...]) -> None:
    """The answer to a method that a page does not have."""
    await answer(send, 405, f"use {methods[0]}\n", headers=[("allow", ", ".join(methods))])


async def answer_metrics(metrics: MergedMetrics, scope: Message, send: Send) -> None:
    """The merged page. One that cannot be completed in time breaks off."""

    async def start(content_type: str) -> None:
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def piece(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    query = scope["query_string"].decode("ascii", "replace")
    if await metrics.write(headers_of(scope), query, start, piece):
        await send({"type": "http.response.body", "body": b""})
