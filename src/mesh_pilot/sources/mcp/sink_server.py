"""The source that is dialled: a Galley connects to us and sends what it has (``ResourceSink``).

It listens on an address of its own, from the start: gRPC for proxies is served only once the sources are in, this one
among them. One stream at a time, the newest: a Galley that gives up on a stream opens another, and leaves the old one
hanging.

A Galley begins a stream with a trigger, a response without a collection, and gives up unless the first thing that it
hears is the refusal of that. So it is asked only once it has said something, or has been silent for a moment.

A Galley can't say that it lacks a collection on a stream that it opened; it gives up. So it is asked for one collection
after the other, and what was being asked for when it gave up is not asked for again. To give up is to open another
stream on the same connection. A stream that ends, or gives way to one of another connection, says nothing of that kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.model.events import Event
from mesh_pilot.rpc import (
    Cardinality,
    GRPCError,
    Handler,
    ServerStream,
    Status,
    StreamTerminatedError,
    TlsSource,
    open_listeners,
    serve,
)
from mesh_pilot.rpc.net import address_of
from mesh_pilot.sources.mcp.collections import COLLECTIONS
from mesh_pilot.sources.mcp.here import DEFAULT_HERE, Here
from mesh_pilot.sources.mcp.intake import SILENCE_SECONDS, Intake, StreamEnded
from mesh_pilot.sources.mcp.traffic import Traffic
from mesh_pilot.sources.mcp.wire import SINK_PATH, SinkNode, SourceDialect

log = structlog.get_logger(scope="mcp")

GREETING_SECONDS = 1.0
"""How long a source may take to begin its stream with a trigger before it is asked."""

GIVEN_UP = 2
"""How often a source must give up over a collection before it is taken not to have it."""


@attrs.frozen
class SinkServerStatistics:
    items: int
    rejected: int
    synced: bool
    waiting_for: str
    address: str
    """Where it really listens; empty while it does not."""
    peer: str
    """The source that is connected; empty without one."""
    connected: bool
    stale_seconds: float
    """For how long nobody has been connected, though somebody was; 0 while somebody is."""
    trouble: str
    """What that means, for people; empty while somebody is."""
    streams: int
    """Streams opened since the start."""
    silent: int
    """Collections asked for on this stream that have not been answered."""
    traffic: Traffic
    collections: Mapping[str, int]
    """Resources held, by collection."""
    judged: int
    """Resources decoded and validated since the start."""


class SinkServer:
    """Takes configuration from whoever dials it.

    State: the intake, where it listens, who is connected, who opened the newest stream, and the collections that a
    source gave up over.
    """

    def __init__(
        self,
        address: str,
        node: SinkNode,
        *,
        name: str = "mcp-sink",
        tls: TlsSource | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        here: Here = DEFAULT_HERE,
    ) -> None:
        self.name = name
        self._address = address
        self._node = node
        self._tls = tls
        self._bound = ""
        self._peer = ""
        self._lost_at: float | None = None
        self._streams = 0
        self._current = trio.CancelScope()
        self._newest = ""
        self._turn = trio.Lock()
        self._missing: set[str] = set()
        self._given_up: Counter[str] = Counter()
        self._intake = Intake(name, name, COLLECTIONS, silence_seconds=silence_seconds, here=here)

    def __repr__(self) -> str:
        return f"<SinkServer {self._bound or 'not listening'}, peer {self._peer or 'none'}: {self._intake!r}>"

    def statistics(self) -> SinkServerStatistics:
        intake = self._intake.statistics()
        waiting = intake.waiting_for
        if not intake.synced and not self._peer:
            waiting = f"nobody has connected to {self._bound or self._address} yet"
        return SinkServerStatistics(
            items=intake.items,
            rejected=intake.rejected,
            synced=intake.synced,
            waiting_for=waiting,
            address=self._bound,
            peer=self._peer,
            connected=bool(self._peer),
            stale_seconds=0.0 if self._lost_at is None else trio.current_time() - self._lost_at,
            trouble="" if self._lost_at is None else "the source has gone and has not dialled again",
            streams=self._streams,
            silent=intake.silent if self._peer else 0,
            traffic=intake.traffic,
            collections=intake.collections,
            judged=intake.judged,
        )

    async def run(
        self,
        events: trio.MemorySendChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen until cancelled; then the listeners are closed. Raises AddressError where it can't listen."""
        listeners = await open_listeners(self._address)
        self._bound = address_of(listeners[0].socket)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._intake.run, events)
                await nursery.start(partial(serve, [self], listeners, tls=self._tls))
                task_status.started()
        finally:
            self._bound = ""
            for listener in listeners:
                listener.socket.close()

    def __mapping__(self) -> Mapping[str, Handler]:
        return {SINK_PATH: Handler(self._handle, Cardinality.STREAM_STREAM, bytes, bytes)}

    async def _handle(self, call: ServerStream[bytes, bytes]) -> None:
        self._newest = call.peer.address
        self._current.cancel()
        async with self._turn:
            with trio.CancelScope() as self._current:
                await self._converse(call)
                return
            if self._newest == call.peer.address and not self._intake.asked_too_early:
                self._note_given_up(self._intake.probed)
        raise GRPCError(Status.ABORTED, "a newer stream took the place of this one")

    async def _converse(self, call: ServerStream[bytes, bytes]) -> None:
        self._peer = call.peer.address
        self._streams += 1
        self._lost_at = None
        log.info("source connected", peer=self._peer)
        dialect = SourceDialect(self._node, SINK_PATH)
        try:
            await self._intake.converse(
                call, dialect, without=self._missing, one_by_one=True, greeting_seconds=GREETING_SECONDS
            )
        except (StreamEnded, StreamTerminatedError) as error:
            self._intake.traffic.failed("UNAVAILABLE")
            log.warning("source gone; what it sent stays in force", peer=self._peer, why=str(error))
        finally:
            self._peer = ""
            self._lost_at = trio.current_time() if self._intake.announced else None

    def _note_given_up(self, collection: str | None) -> None:
        """Once may be chance: the source was stopped just then."""
        if collection is None:
            return
        self._given_up[collection] += 1
        if self._given_up[collection] == GIVEN_UP:
            log.info("the source does not have this collection", peer=self._newest, collection=collection)
            self._missing.add(collection)
