"""What the tests of the rpc room share: a service to call, a server around it, and grpcio as the other side."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection

from mesh_pilot.net.rpc import (
    SERVER_LIMITS,
    Cardinality,
    GRPCError,
    Handler,
    Limits,
    Servable,
    Server,
    ServerStream,
    Status,
    TlsSource,
    open_listeners,
    serve,
)
from mesh_pilot.net.rpc.http2 import Http2
from mesh_pilot.net.rpc.stream import Http2Stream

T = TypeVar("T")

Bytes = ServerStream[bytes, bytes]

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Echo:
    """Methods of every cardinality, and what became of their handlers."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.changed = trio.Event()
        self.streams: list[Bytes] = []

    def __mapping__(self) -> dict[str, Handler]:
        table = {
            "Unary": (self.unary, Cardinality.UNARY_UNARY),
            "Bidi": (self.bidi, Cardinality.STREAM_STREAM),
            "Count": (self.count, Cardinality.UNARY_STREAM),
            "Join": (self.join, Cardinality.STREAM_UNARY),
            "Fail": (self.fail, Cardinality.UNARY_UNARY),
            "Wait": (self.wait, Cardinality.STREAM_STREAM),
            "Flood": (self.flood, Cardinality.UNARY_STREAM),
        }
        return {f"/test.Echo/{name}": Handler(*each, bytes, bytes) for name, each in table.items()}

    def note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, event: str) -> None:
        while event not in self.events:
            await self.changed.wait()

    async def unary(self, stream: Bytes) -> None:
        request = await stream.recv_message()
        assert request is not None
        await stream.send_message(request)

    async def bidi(self, stream: Bytes) -> None:
        self.streams.append(stream)
        async for request in stream:
            await stream.send_message(request)
        self.note("half-closed")

    async def count(self, stream: Bytes) -> None:
        for number in range(int(await stream.recv_message() or b"0")):
            await stream.send_message(str(number).encode())

    async def join(self, stream: Bytes) -> None:
        await stream.send_message(b"".join([request async for request in stream]))

    async def fail(self, stream: Bytes) -> None:
        match await stream.recv_message():
            case b"status":
                raise GRPCError(Status.FAILED_PRECONDITION, "tea pots only: 100 % naïve")
            case b"group":
                async with trio.open_nursery():
                    raise GRPCError(Status.ABORTED, "from a nursery")
            case b"silent":
                return
            case _:
                raise ZeroDivisionError("a bug")

    async def wait(self, stream: Bytes) -> None:
        """Say hello, then wait for the end of the world."""
        await stream.send_message(b"hello")
        self.note("waiting")
        try:
            await trio.sleep_forever()
        finally:
            self.note("cancelled")

    async def flood(self, stream: Bytes) -> None:
        """Send chunks of 64 KiB forever, counting them."""
        await stream.recv_message()
        try:
            while True:
                await stream.send_message(bytes(64 * 1024))
                self.note("sent")
        finally:
            self.note("cancelled")


@asynccontextmanager
async def serving(
    *services: Servable,
    address: str = "127.0.0.1:0",
    tls: TlsSource | None = None,
    limits: Limits = SERVER_LIMITS,
) -> AsyncIterator[Server]:
    """A running server; afterwards nothing of it is left."""
    async with trio.open_nursery() as nursery:
        listeners = await open_listeners(address)
        server: Server = await nursery.start(partial(serve, services, listeners, tls=tls, limits=limits))
        yield server
        nursery.cancel_scope.cancel()
    left = server.statistics()
    assert (left.connections_open, left.streams_open) == (0, 0)


async def settled(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait, in the time of the machine, for something that another thread, process or the kernel brings about."""
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        await trio.to_thread.run_sync(time.sleep, 0.005)
    raise AssertionError("this did not come about in time")


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run blocking grpcio code; abandoned when the test is cancelled, so that a hang fails instead of hanging."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


@contextmanager
def grpcio_server(handlers: dict[str, grpc.RpcMethodHandler]) -> Iterator[str]:
    """A grpcio server with the given methods of test.Echo; gives its address."""
    server = grpc.server(futures.ThreadPoolExecutor(8), options=UNLIMITED)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


class RawPeer:
    """A client made of a socket and h2, to do what no proper client does."""

    def __init__(self, address: str, *, local: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), source_address=(local, 0))
        self.socket.settimeout(10)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def request(self, path: str, *, stream_id: int = 1, end_stream: bool = False, **replaced: str) -> None:
        headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
        headers |= {"te": "trailers", "content-type": "application/grpc"}
        headers |= {name.replace("_", "-"): value for name, value in replaced.items()}
        self.h2.send_headers(stream_id, list(headers.items()), end_stream=end_stream)
        self.flush()

    def message(self, data: bytes, *, stream_id: int = 1, end_stream: bool = False, cut: int | None = None) -> None:
        self.h2.send_data(stream_id, (struct.pack(">BI", 0, len(data)) + data)[:cut], end_stream=end_stream)
        self.flush()

    def events_until(self, kind: type[T]) -> list[object]:
        """Events up to the first of ``kind``, or to the end of the connection."""
        events: list[object] = []
        while not any(isinstance(event, kind) for event in events):
            received = self.socket.recv(65536)
            if not received:
                break
            events.extend(self.h2.receive_data(received))
            self.flush()
        return events

    def is_closed(self) -> bool:
        """True if the server has closed the connection; what it has sent so far is dropped."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.socket.close()


class Answers:
    """A transport without a socket: what was written to it."""

    is_paused = False

    def __init__(self) -> None:
        self.sent = b""
        self.is_closing = False
        self.fault = self.close_reason = ""

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self.is_closing = True

    def half_close(self, reason: str, *, fault: bool) -> None:
        self.fault = reason if fault else ""
        self.close(reason)


class ServerSide:
    """The HTTP/2 of a server without a socket, at a moment that does not pass."""

    client_side = False

    def __init__(self, limits: Limits = SERVER_LIMITS) -> None:
        self.answers = Answers()
        self.streams: dict[int, Http2Stream] = {}
        """All that were opened, even if they are over."""
        transport: Any = self.answers
        self.http2 = Http2(self, transport, limits, client_side=self.client_side, clock=lambda: 0.0)
        self.begin()
        self.http2.flush()
        self.answers.sent = b""

    def begin(self) -> None:
        """Nothing: the peer begins."""

    def accept(self, stream: Http2Stream, headers: list[tuple[str, str]]) -> None:
        self.streams[stream.id] = stream

    def goaway(self, last_stream_id: int) -> None:
        pass

    def take_in(self, *pieces: bytes) -> str:
        """Take in the pieces; why the connection was closed, if it was."""
        for piece in pieces:
            if not self.answers.is_closing:
                self.http2.feed(piece)
                self.http2.take_in()
                self.http2.flush()
        return self.answers.close_reason

    def received(self, stream_id: int) -> bytes:
        """The bytes of a stream that nobody has read yet."""
        return b"".join(self.streams[stream_id].inbox._chunks)


class ClientSide(ServerSide):
    """The same of a client, which has asked on streams 1, 3 and 5."""

    client_side = True

    def begin(self) -> None:
        for _ in range(3):
            stream = self.http2.open([(":method", "POST"), (":path", "/a/B")], end_stream=False)
            assert stream is not None
            self.streams[stream.id] = stream


def open_sockets() -> int:
    """How many sockets this process has."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            continue
    return count
