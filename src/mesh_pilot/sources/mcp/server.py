"""The World as a source of MCP over gRPC: ``ResourceSource``, and the older ``AggregatedMeshConfigService``.

shelf = WorldShelf(world)
reducer.on_publish(lambda published: shelf.published(published.revision))
await serve([McpService(shelf)], listeners)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.rpc import Cardinality, GRPCError, Handler, Peer, ServerStream, Status, StreamTerminatedError
from mesh_pilot.sources.mcp.intake import Call
from mesh_pilot.sources.mcp.messages import Request, Response
from mesh_pilot.sources.mcp.serving import SourceStream
from mesh_pilot.sources.mcp.shelf import WorldShelf
from mesh_pilot.sources.mcp.wire import (
    AGGREGATED_PATH,
    SOURCE_PATH,
    SinkNode,
    decode_aggregated_request,
    decode_request,
    encode_aggregated_response,
    encode_response,
)

log = structlog.get_logger(scope="mcp")

Decode = Callable[[bytes], tuple[Request, SinkNode | None]]
Encode = Callable[[Response], bytes]


@attrs.frozen
class McpServiceStatistics:
    streams: int
    """Sinks that are connected."""
    sent: int
    """Responses sent since the start."""
    refused: int
    """Responses that sinks did not take since the start."""


class McpService:
    """Serves a shelf to any number of sinks.

    State: how many streams are open, counters, and whether it is draining.
    """

    def __init__(self, shelf: WorldShelf, may_read: Callable[[Peer], bool] = lambda peer: True) -> None:
        """``may_read``: whether a peer is let in."""
        self._shelf = shelf
        self._may_read = may_read
        self._streams: dict[object, trio.CancelScope] = {}
        self._sent = 0
        self._refused = 0
        self._is_draining = False

    def __repr__(self) -> str:
        return f"<McpService {len(self._streams)} streams{' draining' if self._is_draining else ''}>"

    def statistics(self) -> McpServiceStatistics:
        return McpServiceStatistics(len(self._streams), self._sent, self._refused)

    def __mapping__(self) -> Mapping[str, Handler]:
        methods: tuple[tuple[str, Decode, Encode], ...] = (
            (SOURCE_PATH, decode_request, encode_response),
            (AGGREGATED_PATH, decode_aggregated_request, encode_aggregated_response),
        )
        return {
            path: Handler(partial(self._handle, decode=decode, encode=encode), Cardinality.STREAM_STREAM, bytes, bytes)
            for path, decode, encode in methods
        }

    def drain(self) -> None:
        """End every stream with UNAVAILABLE, and refuse new ones likewise: sinks keep what they have."""
        self._is_draining = True
        for scope in self._streams.values():
            scope.cancel()

    def admit(self, peer: Peer) -> None:
        """Raise GRPCError where a peer is not let in."""
        if not self._may_read(peer):
            raise GRPCError(
                Status.PERMISSION_DENIED,
                "configuration is served to clients with a certificate and to those on the same machine; "
                "--serve-config serves it to everybody",
            )

    async def _handle(self, call: ServerStream[bytes, bytes], *, decode: Decode, encode: Encode) -> None:
        self.admit(call.peer)
        await self.serve_stream(call, call.peer.address, decode, encode)

    async def serve_stream(self, call: Call, peer: str, decode: Decode, encode: Encode) -> None:
        """One sink, until it leaves. Raises GRPCError when we end it. If cancelled, nothing is left behind."""
        if self._is_draining:
            raise GRPCError(Status.UNAVAILABLE, "the control plane is shutting down")
        session = _Session(call, peer, SourceStream(self._shelf), decode, encode)
        self._shelf.watch(session, session.wake)
        try:
            with trio.CancelScope() as scope:
                self._streams[session] = scope
                await session.run()
        finally:
            self._shelf.unwatch(session)
            del self._streams[session]
            self._sent += session.sent
            self._refused += session.refused
        if scope.cancelled_caught:
            raise GRPCError(Status.UNAVAILABLE, "the control plane is shutting down")


@attrs.define(eq=False)
class _Session:
    """One stream with its two tasks: one takes requests, one sends what there is to send and then sleeps."""

    call: Call
    peer: str
    stream: SourceStream
    decode: Decode
    encode: Encode
    sent: int = 0
    refused: int = 0
    node: SinkNode | None = None
    _news: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        self._news.set()

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
            pass  # the sink is gone, and there is nobody to tell
        if error is not None:
            raise error

    async def _receive_all(self) -> None:
        while (data := await self.call.recv_message()) is not None:
            try:
                request, node = self.decode(data)
            except GRPCError:
                raise
            except Exception as error:  # betterproto raises many kinds for what is not a message
                raise GRPCError(Status.INVALID_ARGUMENT, f"the request can't be decoded: {error}") from error
            if node is not None and self.node is None:
                self.node = node
                log.info("sink connected", peer=self.peer, node=node.id)
            refused = self.stream.on_request(request)
            if refused is not None:
                self.refused += 1
                log.warning(
                    "NACK of what was served",
                    peer=self.peer,
                    node=self.node.id if self.node else "",
                    collection=refused.collection,
                    reason=refused.refusal.message,
                )
            self._news.set()

    async def _send_all(self) -> None:
        while True:
            news = self._news = trio.Event()
            response = self.stream.next_response()
            if response is None:
                await news.wait()
                continue
            await self.call.send_message(self.encode(response))
            self.sent += 1
