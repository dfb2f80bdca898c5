"""Backends of the tests: they say who they are and what they were asked."""

from __future__ import annotations

import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import h11
import trio

from tests.support.certificates import CertificateFiles

Answer = Callable[[h11.Request, bytes], tuple[int, dict[str, str]] | None]
"""A backend's own idea of a status and headers; None for the usual."""


@attrs.define
class Backend:
    """A running backend."""

    name: str
    host: str
    port: int
    seen: list[dict[str, Any]] = attrs.field(factory=list, repr=False)
    """Requests so far, oldest first."""
    connections: int = 0
    """How many were opened so far."""
    answer: Answer | None = None
    """What to answer instead of 200; may be set while it runs."""
    gate: trio.Event | None = None
    """While there is one, answers wait for it to be set."""
    delays: dict[str, float] = attrs.field(factory=dict)
    """The seconds that an answer takes, by path."""

    def asked(self, path: str) -> int:
        """How many requests for a path came."""
        return sum(request["path"] == path for request in self.seen)


@asynccontextmanager
async def http_backend(
    name: str, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None, unix: Path | None = None
) -> AsyncIterator[Backend]:
    """An HTTP/1.1 server that answers every request with JSON: its name, and the request as it saw it.

    On a Unix socket where ``unix`` is given; its ``host`` is then ``unix://PATH`` and its port 0.
    """
    async with trio.open_nursery() as nursery:
        if unix is None:
            listeners = await trio.open_tcp_listeners(port, host=host)
            backend = Backend(name, host, listeners[0].socket.getsockname()[1])
        else:
            listeners = [await _unix_listener(unix)]
            backend = Backend(name, f"unix://{unix}", 0)

        async def connection(raw: trio.SocketStream) -> None:
            backend.connections += 1
            stream: trio.abc.Stream = trio.SSLStream(raw, tls, server_side=True) if tls else raw
            try:
                await _serve(stream, backend)
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                pass
            finally:
                await trio.aclose_forcefully(stream)

        nursery.start_soon(trio.serve_listeners, connection, listeners)
        yield backend
        nursery.cancel_scope.cancel()


def server_context(files: CertificateFiles, asked: list[str], *, mutual: bool) -> ssl.SSLContext:
    """TLS for a backend that notes the server names it is asked for."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if mutual:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.sni_callback = lambda _, name, __: asked.append(name)
    return context


@asynccontextmanager
async def tcp_backend(name: str, *, host: str = "127.0.0.1") -> AsyncIterator[Backend]:
    """A server that greets with its name and a newline, then sends back what it gets."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=host)

        async def connection(stream: trio.SocketStream) -> None:
            try:
                await stream.send_all(name.encode() + b"\n")
                async for data in stream:
                    await stream.send_all(data)
            except trio.BrokenResourceError:
                pass
            finally:
                await trio.aclose_forcefully(stream)

        nursery.start_soon(trio.serve_listeners, connection, listeners)
        yield Backend(name, host, listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def greeting(host: str, port: int) -> str:
    """The name of the TCP backend behind an address; empty when the connection is closed without one."""
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        data = b""
        while not data.endswith(b"\n"):
            try:
                more = await stream.receive_some()
            except trio.BrokenResourceError:
                return ""
            if not more:
                return ""
            data += more
        return data.decode().strip()


def failing(*statuses: int) -> Answer:
    """These statuses in order for each path, then 200."""
    tries: Counter[bytes] = Counter()

    def answer(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]]:
        tries[request.target] += 1
        n = tries[request.target]
        return (statuses[n - 1] if n <= len(statuses) else 200), {}

    return answer


async def _unix_listener(path: Path) -> trio.SocketListener:
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen(128)
    return trio.SocketListener(socket)


async def _serve(stream: trio.abc.Stream, backend: Backend) -> None:
    connection = h11.Connection(h11.SERVER)
    while True:
        request, body = await _request(stream, connection)
        if request is None:
            return
        seen = {
            "name": backend.name,
            "method": request.method.decode(),
            "path": request.target.decode(),
            "headers": {k.decode(): v.decode() for k, v in request.headers},
            "body": body.decode(errors="replace"),
        }
        backend.seen.append(seen)
        if backend.gate is not None:
            await backend.gate.wait()
        if seen["path"] in backend.delays:
            await trio.sleep(backend.delays[seen["path"]])
        status, headers = (backend.answer and backend.answer(request, body)) or (200, {})
        content = json.dumps(seen).encode()
        given = [(k.encode(), v.encode()) for k, v in headers.items()]
        given += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await stream.send_all(
            b"".join(
                filter(
                    None,
                    (
                        connection.send(h11.Response(status_code=status, headers=given, reason=b"-")),
                        connection.send(h11.Data(data=content)),
                        connection.send(h11.EndOfMessage()),
                    ),
                )
            )
        )
        if connection.our_state is h11.MUST_CLOSE:
            return
        connection.start_next_cycle()


async def _request(stream: trio.abc.Stream, connection: h11.Connection) -> tuple[h11.Request | None, bytes]:
    request: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return request, body
        else:
            return None, b""
