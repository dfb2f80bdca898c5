"""The source that dials a server of configuration, over MCP or over xDS, and stays connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import structlog
import trio

from mesh_pilot.model.events import Event
from mesh_pilot.rpc import GRPCError, RpcError, StreamTerminatedError, TlsSource, open_channel
from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.mcp.asking import Asking
from mesh_pilot.sources.mcp.collections import COLLECTIONS, XDS_COLLECTIONS, Collection
from mesh_pilot.sources.mcp.here import DEFAULT_HERE, Here
from mesh_pilot.sources.mcp.intake import SILENCE_SECONDS, Call, Intake, StreamEnded
from mesh_pilot.sources.mcp.traffic import Traffic
from mesh_pilot.sources.mcp.wire import AggregatedDialect, Dialect, SinkNode, SourceDialect
from mesh_pilot.sources.mcp.xds import DeltaDialect, SotwDialect

log = structlog.get_logger(scope="mcp")


@attrs.frozen(kw_only=True)
class Server:
    """A server to read from."""

    address: str
    """As ``rpc`` reads it: ``host:port`` or ``unix:///path``."""
    tls: TlsSource | None = None
    server_hostname: str | None = None
    """The name to ask for, and to expect in its certificate; None: the address's host."""
    collections: Mapping[str, Collection] = attrs.field(default=COLLECTIONS, repr=False)
    """What to ask for, by the names that the server knows."""


@attrs.frozen
class McpStatistics:
    """How such a source is doing."""

    items: int
    rejected: int
    synced: bool
    waiting_for: str
    address: str
    connected: bool
    method: str
    """The gRPC method in use, or tried last."""
    streams: int
    """Streams opened since the start."""
    last_error: str
    """Why the last stream ended, or none could be opened; empty if that never happened."""
    stale_seconds: float
    """For how long there has been no stream, though there was one; 0 while there is."""
    trouble: str
    """Why there is none; empty while there is."""
    not_offered: tuple[str, ...]
    """Collections that the server said it does not have."""
    collections: Mapping[str, int]
    """Resources held, by collection."""
    silent: int
    """Collections asked for on this stream that have not been answered."""
    judged: int
    """Resources decoded and validated since the start."""
    traffic: Traffic


class McpSource:
    """Reads from one server until cancelled, and connects again whenever it is lost.

    State: the intake with all that is known; how the server is asked; whether a stream is open, or since when
    none is; what last went wrong.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        dialects: tuple[Dialect, ...],
        *,
        incremental: bool = True,
        silence_seconds: float = SILENCE_SECONDS,
        here: Here = DEFAULT_HERE,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self._server = server
        self._asking = Asking(name, tuple(server.collections), dialects)
        self._backoff = backoff or Backoff()
        self._intake = Intake(
            name,
            server.address,
            server.collections,
            incremental=incremental,
            silence_seconds=silence_seconds,
            here=here,
        )
        self._connected = False
        self._lost_at: float | None = None
        self._last_error = ""

    def __repr__(self) -> str:
        state = "connected" if self._connected else self._last_error or "not connected"
        return f"<McpSource {self.name}: {state}, {self._intake!r}>"

    def statistics(self) -> McpStatistics:
        intake = self._intake.statistics()
        waiting = intake.waiting_for
        if not intake.synced and not self._connected:
            waiting = self._last_error or f"connecting to {self._server.address}"
        return McpStatistics(
            items=intake.items,
            rejected=intake.rejected,
            synced=intake.synced,
            waiting_for=waiting,
            address=self._server.address,
            connected=self._connected,
            method=self._asking.dialect.path,
            streams=self._asking.streams,
            last_error=self._last_error,
            stale_seconds=0.0 if self._lost_at is None else trio.current_time() - self._lost_at,
            trouble="" if self._lost_at is None else self._last_error,
            not_offered=self._asking.not_offered,
            collections=intake.collections,
            silent=intake.silent if self._connected else 0,
            judged=intake.judged,
            traffic=intake.traffic,
        )

    async def run(
        self,
        events: trio.MemorySendChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Connect, read, and connect again, until cancelled. What is known is kept for the next run."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._intake.run, events)
            await trio.lowlevel.checkpoint()
            task_status.started()
            while True:
                try:
                    await self._read()
                except (RpcError, GRPCError, StreamTerminatedError, StreamEnded) as error:
                    self._note(error)
                await trio.sleep(self._backoff.next_seconds())

    def _note(self, error: Exception) -> None:
        status = error.status.name if isinstance(error, GRPCError) else ""
        self._intake.traffic.failed(status or "UNAVAILABLE")
        reason = f"{status}: {error.message}" if isinstance(error, GRPCError) else str(error)
        reason = f"{self._server.address}: {reason.removeprefix(f'{self._server.address}: ')}"
        tell = log.warning if reason != self._last_error else log.debug
        tell(
            "not connected; what was read stays in force",
            source=self.name,
            why=reason,
            next_try_within_seconds=self._backoff.ceiling_seconds,
        )
        self._last_error = reason

    async def _read(self) -> None:
        """One connection, until it is lost."""
        server = self._server
        async with open_channel(server.address, tls=server.tls, server_hostname=server.server_hostname) as channel:
            await self._asking.read(channel, self._converse)

    async def _converse(self, call: Call, dialect: Dialect, missing: frozenset[str]) -> None:
        self._connected = True
        self._lost_at = None
        try:
            await self._intake.converse(_Worked(call, self._backoff), dialect, without=missing)
        finally:
            self._connected = False
            self._lost_at = trio.current_time() if self._intake.announced else None


@attrs.frozen
class _Worked:
    """A call that ends the backing off once it has brought something."""

    call: Call
    backoff: Backoff

    async def recv_message(self) -> bytes | None:
        data = await self.call.recv_message()
        if data is not None:
            self.backoff.reset()
        return data

    async def send_message(self, message: bytes, /) -> None:
        await self.call.send_message(message)


def mcp_source(
    server: Server,
    node: SinkNode,
    *,
    name: str | None = None,
    incremental: bool = True,
    silence_seconds: float = SILENCE_SECONDS,
    here: Here = DEFAULT_HERE,
) -> McpSource:
    """The source of a server that speaks MCP: a Galley, or another mesh-pilot.

    ``ResourceSource`` is asked first; a server without it is asked for ``AggregatedMeshConfigService``, by collections
    and then by the type URLs of their bodies, as the oldest servers name them.
    """
    return McpSource(
        name or f"mcp:{server.address}",
        server,
        mcp_dialects(node, server.collections),
        incremental=incremental,
        silence_seconds=silence_seconds,
        here=here,
    )


def mcp_dialects(node: SinkNode, collections: Iterable[str]) -> tuple[Dialect, ...]:
    """The ways to ask a server of MCP, the newest first."""
    collections = tuple(collections)
    types: dict[str, str] = {}
    for name in collections:
        if name in COLLECTIONS:
            types.setdefault(COLLECTIONS[name].type_url, name)
    return (
        SourceDialect(node),
        AggregatedDialect(node, {name: name for name in collections}),
        AggregatedDialect(node, {name: type_url for type_url, name in types.items()}),
    )


def xds_source(
    server: Server,
    node: SinkNode,
    *,
    name: str | None = None,
    delta: bool = True,
    silence_seconds: float = SILENCE_SECONDS,
    here: Here = DEFAULT_HERE,
) -> McpSource:
    """The source of a server that speaks MCP over xDS: an istiod, or another mesh-pilot.

    ``node``: its id is a proxy's (``sidecar~ip~name.namespace~domain``). Without ``delta``, or where the server lacks
    it, State of the World is asked for.
    """
    whole: Dialect = SotwDialect(node)
    return McpSource(
        name or f"xds:{server.address}",
        attrs.evolve(server, collections=XDS_COLLECTIONS),
        (DeltaDialect(node), whole) if delta else (whole,),
        silence_seconds=silence_seconds,
        here=here,
    )
