"""A control plane of a test's own, which notes requests and sends what the test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.agent.relay.messages import XdsProtocol, empty_body, write_sotw
from mesh_pilot.agent.relay.subscriptions import PROXY_CONFIG
from mesh_pilot.model.resource import CLUSTER
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
    open_listeners,
    serve,
)


def answer(version: str = "1", nonce: str = "n1", size: int = 0, type_url: str = CLUSTER) -> bytes:
    return write_sotw(type_url, version, nonce, [empty_body(type_url, "c" + "x" * size)])


class FakePlane:
    """A control plane that notes requests and sends what a test wants."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[bytes] = []
        self.streams = 0
        self.sent = 0
        self.to_send: list[bytes] = []
        self.answers: Callable[[discovery_pb2.DiscoveryRequest], bytes | None] = lambda request: answer()
        """The response to a request that answers none."""
        self.refuses: Status | None = None
        self.greets = True
        """Requests for the proxy config, with which agents begin, are answered, and not noted; else as any other."""
        self.is_mute = False
        """It takes streams, and answers nothing at all."""
        self.goes_on = False
        """Streams of a connection that is retired go on until it is cut."""
        self.metadata: list[Mapping[str, object]] = []
        self.server: Server | None = None
        self._more = trio.Event()

    def __mapping__(self) -> Mapping[str, Handler]:
        return {XdsProtocol.SOTW.path: Handler(self._stream, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def send(self, *responses: bytes) -> None:
        self.to_send += responses
        self._more.set()

    async def _stream(self, stream: ServerStream[bytes, bytes]) -> None:
        if self.refuses is not None:
            raise GRPCError(self.refuses, "not you")
        self.streams += 1
        self.metadata.append(dict(stream.metadata))
        ends = trio.Event()
        if not self.goes_on:
            stream.when_retiring(ends.set)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream)
                nursery.start_soon(self._receive, stream, nursery.cancel_scope)
                await ends.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.streams -= 1

    async def _receive(self, stream: ServerStream[bytes, bytes], scope: trio.CancelScope) -> None:
        async for request in stream:
            read = discovery_pb2.DiscoveryRequest.FromString(request)
            if self.is_mute:
                continue
            if self.greets and read.type_url == PROXY_CONFIG:
                if not read.response_nonce:
                    await stream.send_message(write_sotw(PROXY_CONFIG, "", "hello", []))
                continue
            self.requests.append(request)
            response = None if read.response_nonce else self.answers(read)
            if response is not None:
                await stream.send_message(response)
                self.sent += 1
        scope.cancel()

    async def _send(self, stream: ServerStream[bytes, bytes]) -> None:
        while True:
            self._more = trio.Event()
            while self.to_send:
                await stream.send_message(self.to_send.pop(0))
                self.sent += 1
            await self._more.wait()


@asynccontextmanager
async def fake_plane(
    *more: Servable, limits: Limits = SERVER_LIMITS, address: str = "127.0.0.1:0"
) -> AsyncIterator[FakePlane]:
    """One at an address for the length of the block, with ``more`` services."""
    plane = FakePlane()
    async with trio.open_nursery() as nursery:
        plane.server = await nursery.start(partial(serve, [plane, *more], await open_listeners(address), limits=limits))
        plane.address = plane.server.addresses[0]
        yield plane
        nursery.cancel_scope.cancel()
