"""The ways to the API double: a port of this machine, or none at all."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import attrs
import h11
import httpx
import trio

from tests.support.api_objects import Request


class Stream(Protocol):
    """A body that comes bit by bit."""

    async def next_part(self) -> bytes | None:
        """More of it; None at the end. Raises ConnectionResetError, to be cut."""

    def close(self) -> None:
        """Nobody reads it any more."""


@attrs.frozen
class Answer:
    status: int
    body: bytes | Stream
    headers: Mapping[str, str] = attrs.field(factory=dict)


Answering = Callable[[Request], Awaitable[Answer]]


async def serve_double(
    answer: Answering, port: int, *, tls: ssl.SSLContext | None = None, task_status: trio.TaskStatus[int]
) -> None:
    """Answer connections until cancelled; its port is the value of ``started``."""
    async with trio.open_nursery() as nursery:
        handler = partial(_connection, answer)
        if tls is None:
            listeners = await nursery.start(partial(trio.serve_tcp, handler, port, host="127.0.0.1"))
            task_status.started(listeners[0].socket.getsockname()[1])
        else:
            serve = partial(trio.serve_ssl_over_tcp, handler, port, tls, host="127.0.0.1", https_compatible=True)
            secured = await nursery.start(serve)
            task_status.started(secured[0].transport_listener.socket.getsockname()[1])


async def _connection(answer: Answering, stream: trio.abc.Stream) -> None:
    """One request after another."""
    peer = h11.Connection(h11.SERVER)
    try:
        while peer.our_state is not h11.MUST_CLOSE:
            request = await _read(peer, stream)
            if request is None:
                break
            await _send(peer, stream, await answer(request))
            if peer.our_state is h11.DONE and peer.their_state is h11.DONE:
                peer.start_next_cycle()
    # Starred: what fails while a body is sent comes from a nursery, in a group.
    except* (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, ConnectionResetError):
        pass
    finally:
        await trio.aclose_forcefully(stream)


async def _read(peer: h11.Connection, stream: trio.abc.Stream) -> Request | None:
    head: h11.Request | None = None
    body = b""
    while True:
        match peer.next_event():
            case h11.NEED_DATA:
                peer.receive_data(await stream.receive_some(65536))
            case h11.Request() as head:
                pass
            case h11.Data(data=data):
                body += data
            case h11.EndOfMessage():
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Request(head.method.decode(), head.target.decode(), headers, body)
            case _:
                return None


async def _send(peer: h11.Connection, stream: trio.abc.Stream, answer: Answer) -> None:
    async def send(event: h11.Event) -> None:
        await stream.send_all(peer.send(event) or b"")

    headers = [("content-type", "application/json"), *answer.headers.items()]
    if isinstance(answer.body, bytes):
        headers.append(("content-length", str(len(answer.body))))
        await send(h11.Response(status_code=answer.status, headers=headers))
        await send(h11.Data(data=answer.body))
        await send(h11.EndOfMessage())
        return
    try:
        await send(h11.Response(status_code=answer.status, headers=headers))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_closed, stream, nursery.cancel_scope)
            while True:
                try:
                    part = await answer.body.next_part()
                except ConnectionResetError:
                    await trio.aclose_forcefully(stream)
                    break
                if part is None:
                    break
                await send(h11.Data(data=part))
            nursery.cancel_scope.cancel()
    finally:
        answer.body.close()
    await send(h11.EndOfMessage())


async def _cancel_when_closed(stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
    """A peer that is gone reads no more."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.receive_some(1)
    scope.cancel()


class DoubleTransport(httpx.AsyncBaseTransport):
    """httpx without a network."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        own = Request(request.method, request.url.raw_path.decode(), headers, await request.aread())
        timeout = request.extensions["timeout"]["read"]
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                answer = await self._answer(own)
        except trio.TooSlowError:
            raise httpx.ReadTimeout("no answer", request=request) from None
        except ConnectionResetError as error:
            raise httpx.ReadError(str(error), request=request) from None
        if isinstance(answer.body, bytes):
            return httpx.Response(answer.status, headers=answer.headers, content=answer.body)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Parts(answer.body, timeout))


class _Parts(httpx.AsyncByteStream):
    def __init__(self, body: Stream, timeout: float | None) -> None:
        self._body = body
        self._timeout = float("inf") if timeout is None else timeout

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                with trio.fail_after(self._timeout):
                    await trio.lowlevel.checkpoint()
                    part = await self._body.next_part()
            except trio.TooSlowError:
                raise httpx.ReadTimeout("silent") from None
            except ConnectionResetError as error:
                raise httpx.ReadError(str(error)) from None
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        self._body.close()
