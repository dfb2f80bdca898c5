"""The configuration API over gRPC: MCP's ``ResourceSource``, and the older ``AggregatedMeshConfigService``.

collections = WorldCollections(world)
reducer.on_publish(lambda published: collections.published(published.revision))
await serve([McpService(collections)], listeners)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, ServerStream, Status, StreamTerminatedError
from mesh_pilot.xds.config_api.served_collections import WorldCollections
from mesh_pilot.xds.config_api.stream import CollectionStream
from mesh_pilot.xds.mcp.identity import SinkNode
from mesh_pilot.xds.mcp.messages import McpRequest, McpResponse, MessageStream
from mesh_pilot.xds.mcp.wire import (
    AGGREGATED_PATH,
    SOURCE_PATH,
    decode_aggregated_request,
    decode_delta,
    decode_request,
    decode_sotw,
    encode_aggregated_response,
    encode_delta,
    encode_response,
    encode_sotw,
)

log = structlog.get_logger(scope="mcp")

RequestDecoder = Callable[[bytes], tuple[McpRequest, SinkNode | None]]
ResponseEncoder = Callable[[McpResponse], bytes]


@attrs.frozen
class McpServiceStatistics:
    streams: int
    """Connected clients."""
    sent: int
    """Responses sent since the start."""
    refused: int
    """Responses NACKed since the start."""


class McpService:
    """Serves collections to any number of clients. State: the open streams, counters, if it is draining."""

    def __init__(
        self,
        collections: WorldCollections,
        admit: Callable[[ServerStream[bytes, bytes]], Awaitable[None]] | None = None,
    ) -> None:
        """``admit`` raises GRPCError for callers that are refused; None admits all."""
        self._collections = collections
        self._admission = admit
        self._streams: dict[_ClientSession, trio.CancelScope] = {}
        self._sent = 0
        self._nacked = 0
        self._is_draining = False

    def __repr__(self) -> str:
        return f"<McpService {len(self._streams)} streams{' draining' if self._is_draining else ''}>"

    def statistics(self) -> McpServiceStatistics:
        return McpServiceStatistics(len(self._streams), self._sent, self._nacked)

    def __mapping__(self) -> Mapping[str, Handler]:
        methods: tuple[tuple[str, RequestDecoder, ResponseEncoder], ...] = (
            (SOURCE_PATH, decode_request, encode_response),
            (AGGREGATED_PATH, decode_aggregated_request, encode_aggregated_response),
        )
        return {
            path: Handler(partial(self._handle, decode=decode, encode=encode), Cardinality.STREAM_STREAM, bytes, bytes)
            for path, decode, encode in methods
        }

    def drain(self) -> None:
        """End every stream with UNAVAILABLE, and refuse new ones in the same way. Clients keep their resources."""
        self._is_draining = True
        for scope in self._streams.values():
            scope.cancel()

    async def _admit(self, call: ServerStream[bytes, bytes]) -> None:
        if self._admission is not None:
            await self._admission(call)

    async def _handle(
        self, stream: ServerStream[bytes, bytes], *, decode: RequestDecoder, encode: ResponseEncoder
    ) -> None:
        await self._admit(stream)
        await self.serve_stream(stream, stream.peer.address, decode, encode, stream.when_retiring)

    async def serve_xds(self, stream: MessageStream, call: ServerStream[bytes, bytes], *, delta: bool) -> None:
        """Serve a client of ADS that asked for the ``api`` generator; ``stream`` are the messages of ``call``.

        Raises GRPCError when we end the stream.
        """
        await self._admit(call)
        decode, encode = (decode_delta, encode_delta) if delta else (decode_sotw, encode_sotw)
        await self.serve_stream(stream, call.peer.address, decode, encode, call.when_retiring)

    async def serve_stream(
        self,
        stream: MessageStream,
        peer: str,
        decode: RequestDecoder,
        encode: ResponseEncoder,
        when_retiring: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> None:
        """Serve one client until it disconnects. Raises GRPCError when we end the stream.

        ``when_retiring`` is told what ends the stream when its connection is too old.
        """
        if self._is_draining:
            raise self._going_away()
        session = _ClientSession(stream, peer, CollectionStream(self._collections), decode, encode)
        self._collections.watch(session, session.wake)
        try:
            with trio.CancelScope() as scope:
                self._streams[session] = scope
                when_retiring(scope.cancel)
                await session.run()
        finally:
            self._collections.unwatch(session)
            del self._streams[session]
            self._sent += session.sent
            self._nacked += session.nacked
        if scope.cancelled_caught:
            raise self._going_away()

    def _going_away(self) -> GRPCError:
        reason = (
            "the control plane is shutting down" if self._is_draining else "the connection is too old; connect again"
        )
        return GRPCError(Status.UNAVAILABLE, reason)


@attrs.define(eq=False)
class _ClientSession:
    """One stream with its two tasks: one receives requests, the other sends responses and sleeps in between."""

    stream: MessageStream
    peer: str
    state: CollectionStream
    decode: RequestDecoder
    encode: ResponseEncoder
    sent: int = 0
    nacked: int = 0
    node: SinkNode | None = None
    _wakeup: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        error: GRPCError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all)
                try:
                    await self._receive_all()
                except GRPCError as raised:
                    error = raised
                nursery.cancel_scope.cancel()
        except* (StreamTerminatedError, GRPCError):
            pass  # the client has disconnected
        if error is not None:
            raise error

    async def _receive_all(self) -> None:
        while (data := await self.stream.recv_message()) is not None:
            try:
                request, node = self.decode(data)
            except GRPCError:
                raise
            except Exception as error:  # betterproto raises many kinds for malformed messages
                raise GRPCError(Status.INVALID_ARGUMENT, f"the request can't be decoded: {error}") from error
            if node is not None and self.node is None:
                self.node = node
                log.info("configuration client connected", peer=self.peer, node=node.id)
            if self.state.on_request(request) and request.error is not None:
                self.nacked += 1
                log.warning(
                    "NACK received for served configuration",
                    peer=self.peer,
                    node=self.node.id if self.node else "",
                    collection=request.collection,
                    reason=request.error.message,
                )
            self.wake()

    async def _send_all(self) -> None:
        while True:
            wakeup = self._wakeup = trio.Event()
            response = self.state.next_response()
            if response is None:
                await wakeup.wait()
                continue
            await self.stream.send_message(self.encode(response))
            self.sent += 1
