"""The source that is dialled: a Galley connects and sends its configuration (``ResourceSink``).

It listens on its own port from the start, because the gRPC ports for proxies open only once all sources have synced,
including this one. One stream is served at a time, the newest: a Galley that gives up a stream opens another one, and
leaves the old one open.

What a Galley expects of its peer:

- It begins a stream with a trigger, a response without a collection, and gives up unless the first request is the NACK
  of that. So collections are requested only after its first message, or after a second without one.
- It cannot say that it lacks a collection; it gives up. So collections are requested one by one, and a collection is no
  longer requested once the Galley gave up over it twice. To give up is to open another stream on the same connection;
  neither the end of a stream nor a stream on another connection means that.
- It takes a second to open another stream, and Galley 1.1 lacks a dozen of the collections. So what came with later
  releases than the first one that it lacks is not requested either, as long as it answers like a Galley (`lacking`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.model.events import EventSender
from mesh_pilot.net.rpc import (
    AddressError,
    Cardinality,
    GRPCError,
    Handler,
    Server,
    ServerStream,
    Status,
    StreamTerminatedError,
    TlsSource,
    open_listeners,
    serve,
)
from mesh_pilot.net.rpc.net import address_of
from mesh_pilot.sources.mcp.receiver import ANSWER_TIMEOUT_SECONDS, McpReceiver, StreamEnded
from mesh_pilot.sources.mcp.statistics import SinkServerStatistics
from mesh_pilot.xds.mcp.collections import COLLECTIONS, lacking
from mesh_pilot.xds.mcp.identity import DEFAULT_IDENTITY, PlaneIdentity
from mesh_pilot.xds.mcp.wire import SINK_PATH, SourceDialect

log = structlog.get_logger(scope="mcp")

GREETING_SECONDS = 1.0
"""The time to wait for the server's trigger before the first request."""

MAX_GIVE_UPS = 2
"""A collection that the server gave up over so often counts as missing. Once may be a coincidence: a restart."""


@attrs.frozen(eq=False)
class SinkDoor:
    """The admission of those that dial, and their TLS."""

    admit: Callable[[ServerStream[bytes, bytes]], Awaitable[None]]
    """Raises GRPCError for those who may not. It is asked before anything of the stream is read."""
    tls_at: Callable[[Sequence[str]], TlsSource | None]
    """The TLS for these addresses that are listened on; None: plaintext."""


class SinkServer:
    """Reads from whichever server dials it.

    State: the receiver, with all resources; the bound address; the connected peer, the peer of the newest stream, and
    the last refusal; for each collection, how often a server gave up over it; those that are not requested.
    """

    def __init__(
        self,
        address: str,
        identity: PlaneIdentity = DEFAULT_IDENTITY,
        *,
        door: SinkDoor,
        answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self.name = "mcp-sink"
        self.place = f"whoever dials {address}"
        self._address = address
        self._node = identity.mcp_node()
        self._door = door
        self.server: Server | None = None
        """The running server; None while not listening."""
        self._bound = ""
        self._peer = ""
        self._newest_peer = ""
        self._refusal = ""
        self._streams = 0
        self._current = trio.CancelScope()
        self._turn = trio.Lock()
        self._give_ups: Counter[str] = Counter()
        self._missing: frozenset[str] = frozenset()
        self._receiver = McpReceiver(
            self.name, self.name, COLLECTIONS, answer_timeout_seconds=answer_timeout_seconds, identity=identity
        )

    def __repr__(self) -> str:
        return f"<SinkServer {self._bound or 'not listening'}, peer {self._peer or 'none'}: {self._receiver!r}>"

    def statistics(self) -> SinkServerStatistics:
        receiver = self._receiver.statistics()
        if not receiver.synced and not receiver.connected:
            waiting_for = f"no server has connected to {self._bound or self._address} yet"
            if self._refusal:
                waiting_for += f"; {self._refusal}"
            receiver = attrs.evolve(receiver, waiting_for=waiting_for)
        return SinkServerStatistics(
            **attrs.asdict(receiver, recurse=False),
            address=self._bound,
            peer=self._peer,
            streams=self._streams,
            trouble="the source has gone and has not dialled again" if self._receiver.is_stale else "",
        )

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled, then close the listeners. Raises AddressError if it cannot listen."""
        try:
            listeners = await open_listeners(self._address)
        except AddressError as error:
            raise AddressError(f"--mcp-sink-addr: {error}") from error
        self._bound = address_of(listeners[0].socket)
        tls = self._door.tls_at([address_of(each.socket) for each in listeners])
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receiver.run, events)
                self.server = await nursery.start(partial(serve, [self], listeners, tls=tls))
                task_status.started()
        finally:
            self._bound, self.server = "", None
            for listener in listeners:
                listener.socket.close()

    def __mapping__(self) -> Mapping[str, Handler]:
        return {SINK_PATH: Handler(self._handle, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def _handle(self, stream: ServerStream[bytes, bytes]) -> None:
        try:
            await self._door.admit(stream)  # before the stream in force is ended for this one
        except GRPCError as error:
            self._refusal = f"{stream.peer.address} was refused: {error.message}"
            raise
        self._newest_peer = stream.peer.address
        self._current.cancel()
        async with self._turn:
            with trio.CancelScope() as self._current:
                await self._run_stream(stream)
                return
            # Another stream has replaced this one. Of the same connection, the server gave up over a collection.
            first_requests = self._receiver.first_requests
            if self._newest_peer == stream.peer.address and not first_requests.preceded_greeting:
                self._note_give_up(first_requests.probed)
        raise GRPCError(Status.ABORTED, "a newer stream took the place of this one")

    async def _run_stream(self, stream: ServerStream[bytes, bytes]) -> None:
        self._peer = stream.peer.address
        self._streams += 1
        log.info("configuration server connected", peer=self._peer)
        missing = lacking([name for name, count in self._give_ups.items() if count >= MAX_GIVE_UPS])
        if new := missing - self._missing:
            log.info("collections not offered by the server", peer=self._peer, collections=sorted(new))
        self._missing = missing
        try:
            await self._receiver.run_stream(
                stream,
                SourceDialect(self._node, SINK_PATH),
                without=missing,
                one_by_one=True,
                greeting_seconds=GREETING_SECONDS,
            )
        except (StreamEnded, StreamTerminatedError) as error:
            self._receiver.traffic.failed("UNAVAILABLE")
            log.warning("configuration server disconnected; what it sent is kept", peer=self._peer, why=str(error))
        finally:
            self._peer = ""

    def _note_give_up(self, collection: str | None) -> None:
        if collection is None:
            return
        self._give_ups[collection] += 1
