"""The source that dials a configuration server, over MCP or xDS, and stays connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import structlog
import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.model.events import EventSender
from mesh_pilot.net.rpc import GRPCError, RpcError, StreamTerminatedError, TlsSource, open_channel
from mesh_pilot.sources.mcp.negotiation import Negotiation
from mesh_pilot.sources.mcp.receiver import ANSWER_TIMEOUT_SECONDS, McpReceiver, StreamEnded
from mesh_pilot.sources.mcp.statistics import McpSourceStatistics
from mesh_pilot.xds.mcp.collections import COLLECTIONS, XDS_COLLECTIONS, McpCollection
from mesh_pilot.xds.mcp.identity import DEFAULT_IDENTITY, PlaneIdentity
from mesh_pilot.xds.mcp.messages import MessageStream
from mesh_pilot.xds.mcp.wire import AggregatedDialect, DeltaDialect, Dialect, SotwDialect, SourceDialect

log = structlog.get_logger(scope="mcp")


@attrs.frozen(kw_only=True)
class McpServer:
    """A server to read from."""

    address: str
    """``host:port`` or ``unix:///path``."""
    tls: TlsSource | None = None
    server_hostname: str | None = None
    """The SNI, and the name that its certificate must have; None: the address's host."""
    collections: Mapping[str, McpCollection] = attrs.field(default=COLLECTIONS, repr=False)
    """The collections to request, by the server's names."""
    incremental: bool = True
    """Request increments, if the server supports them."""
    answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS


class McpSource:
    """Reads from one server until cancelled, and reconnects whenever the connection is lost.

    State: the receiver, with all resources; the negotiation; the last error.
    """

    def __init__(
        self,
        name: str,
        server: McpServer,
        dialects: tuple[Dialect, ...],
        identity: PlaneIdentity = DEFAULT_IDENTITY,
    ) -> None:
        """``dialects``: in the order in which they are tried."""
        self.name = name
        self.place = f"{name} at {server.address}"
        self._server = server
        self._negotiation = Negotiation(name, tuple(server.collections), dialects)
        self._backoff = Backoff()
        self._receiver = McpReceiver(
            name,
            server.address,
            server.collections,
            incremental=server.incremental,
            answer_timeout_seconds=server.answer_timeout_seconds,
            identity=identity,
        )
        self._last_error = ""

    def __repr__(self) -> str:
        return f"<McpSource {self.name}{f': {self._last_error}' if self._last_error else ''}, {self._receiver!r}>"

    def statistics(self) -> McpSourceStatistics:
        receiver = self._receiver.statistics()
        if not receiver.synced and not receiver.connected:
            waiting_for = self._last_error or f"connecting to {self._server.address}"
            receiver = attrs.evolve(receiver, waiting_for=waiting_for)
        return McpSourceStatistics(
            **attrs.asdict(receiver, recurse=False),
            address=self._server.address,
            method=self._negotiation.dialect.path,
            streams=self._negotiation.streams,
            last_error=self._last_error,
            trouble=self._last_error if self._receiver.is_stale else "",
            not_offered=self._negotiation.not_offered,
        )

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Connect, read and reconnect, until cancelled. All resources are kept for the next run."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receiver.run, events)
            await trio.lowlevel.checkpoint()
            task_status.started()
            while True:
                try:
                    await self._connect()
                except (RpcError, GRPCError, StreamTerminatedError, StreamEnded) as error:
                    self._note(error)
                await trio.sleep(self._backoff.next_seconds())

    def _note(self, error: Exception) -> None:
        status = error.status.name if isinstance(error, GRPCError) else ""
        self._receiver.traffic.failed(status or "UNAVAILABLE")
        reason = f"{status}: {error.message}" if isinstance(error, GRPCError) else str(error)
        reason = f"{self._server.address}: {reason.removeprefix(f'{self._server.address}: ')}"
        write = log.warning if reason != self._last_error else log.debug
        write(
            "configuration server disconnected; what it sent is kept",
            source=self.name,
            why=reason,
            next_try_within_seconds=self._backoff.ceiling_seconds,
        )
        self._last_error = reason

    async def _connect(self) -> None:
        """One connection, until it is lost."""
        server = self._server
        async with open_channel(server.address, tls=server.tls, server_hostname=server.server_hostname) as channel:
            await self._negotiation.run(channel, self._run_stream)

    async def _run_stream(self, stream: MessageStream, dialect: Dialect, missing: frozenset[str]) -> None:
        await self._receiver.run_stream(stream, dialect, without=missing, on_message=self._backoff.reset)


def mcp_source(server: McpServer, identity: PlaneIdentity = DEFAULT_IDENTITY) -> McpSource:
    """The source of an MCP server: a Galley, or another mesh-pilot.

    ``ResourceSource`` is tried first, then ``AggregatedMeshConfigService`` with collection names, and then with the
    type URLs of their bodies, as the oldest servers name them.
    """
    return McpSource(f"mcp:{server.address}", server, mcp_dialects(identity, server.collections), identity)


def mcp_dialects(identity: PlaneIdentity, collections: Iterable[str]) -> tuple[Dialect, ...]:
    """The dialects of MCP, the newest first."""
    node, collections = identity.mcp_node(), tuple(collections)
    types: dict[str, str] = {}
    for name in collections:
        if name in COLLECTIONS:
            types.setdefault(COLLECTIONS[name].type_url, name)
    return (
        SourceDialect(node),
        AggregatedDialect(node, {name: name for name in collections}),
        AggregatedDialect(node, {name: type_url for type_url, name in types.items()}),
    )


def xds_source(server: McpServer, identity: PlaneIdentity = DEFAULT_IDENTITY) -> McpSource:
    """The source of a server of MCP over xDS: an istiod, or another mesh-pilot."""
    server = attrs.evolve(server, collections=XDS_COLLECTIONS)
    return McpSource(f"xds:{server.address}", server, xds_dialects(identity), identity)


def xds_dialects(identity: PlaneIdentity) -> tuple[Dialect, ...]:
    """The dialects of MCP over xDS, Delta first."""
    node = identity.xds_node()
    return (DeltaDialect(node), SotwDialect(node))
