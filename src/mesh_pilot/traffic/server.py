"""The server of reports: Envoy's load reporting service (LRS), and the stream of our agents.

Who reports is who is authenticated, exactly as for ADS. A client that reports too fast is read slower. A bad message
ends its own stream, and costs others nothing.

One node may have several streams: a gRPC process has one for each of its targets, and a dead connection
may have one that has not ended yet. Their counts are added up: each is of the time since the last report. An agent's
reports have what its Envoy's load reports tell, so these are not counted if they come as well.

A report that is under way when a stream breaks is lost, so the caller's counts have a gap then. A stream that ends
because its connection is retired ends just after a report, and loses none.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import structlog
import trio
from google.protobuf.message import DecodeError

from mesh_pilot.base.protowire import WireError
from mesh_pilot.identity.trust.callers import host_of
from mesh_pilot.mesh.proxy.metric_source import CANONICAL_SERVICE, WORKLOAD_NAME
from mesh_pilot.model.bounds import DEFAULT_BOUNDS, BoundError, Bounds, check, check_labels
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.traffic import (
    DEFAULT_SECONDS,
    MAX_ROWS,
    REPORTS_PATH,
    Counter,
    RowKind,
    TrafficReport,
    TrafficRow,
    encode_answer,
    read_report,
)
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, Status
from mesh_pilot.net.rpc.rate_limits import LogLimiter, TokenBucket
from mesh_pilot.traffic.load_reports import (
    SERVICE,
    LoadRows,
    first_node,
    report_pieces,
    reporting_response,
)
from mesh_pilot.traffic.table import CallingWorkload, ReportingProxy, TrafficTable
from mesh_pilot.xds.ads.admission import Admit, Authenticate, RawStream, StreamPlaces, admission
from mesh_pilot.xds.ads.decode import read_node
from mesh_pilot.xds.ads.limits import owner_of
from mesh_pilot.xds.ads.messages import Code, StreamError, proxy_of
from mesh_pilot.xds.ads.session import stream_error

log = structlog.get_logger(scope="traffic")

MAX_STREAMS_OF_NODE = 100
"""Open streams of one node."""
MAX_REPORT = 4 * 1024 * 1024
"""Bytes of an agent's report."""
REPORTS_PER_SECOND, REPORTS_AT_ONCE = 10.0, 100.0
"""Reports of one stream; more wait. A large one counts as one more for each `BYTES_PER_REPORT`."""
BYTES_PER_REPORT = 64 * 1024
STREAMS_AT_ONCE = 1000.0
"""New streams that may begin at once after a pause, if their rate is bounded."""
ROWS_AT_ONCE = 500
"""Rows that are taken before proxies are served."""
MAX_REASON = 500


_SHUTTING_DOWN = StreamError(Code.UNAVAILABLE, "the control plane is shutting down")


@attrs.frozen
class TrafficServerStatistics:
    """Figures for metrics and debug pages."""

    streams: int
    reports: int
    """Reports that were taken."""
    delayed: int
    """Reports that had to wait because their stream sends too many."""
    refused: Mapping[str, int]
    """Streams that were refused, by status."""
    broken: int
    """Streams that ended in the middle, so that a report may be lost."""


@attrs.define(eq=False)
class _Reports:
    """One stream, once it is known whose it is."""

    caller: ReportingProxy
    of_agent: bool
    seconds: float
    """The time between two reports."""
    bucket: TokenBucket
    loads: LoadRows
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    latest: float = -math.inf
    """The time of the latest report."""
    in_flight: frozenset[str] = frozenset()
    """The clusters with requests in flight in the latest report."""
    is_retiring: bool = False
    is_whole: bool = False
    """True once no report can be under way."""

    def retire(self) -> None:
        """Let the stream end, after its next report if that is near."""
        self.is_retiring = True
        if trio.current_time() - self.latest < self.seconds / 2:
            self.is_whole = True
            self.scope.cancel()


class TrafficServer:
    """Takes reports into a table. Mutable state: the places of streams and how many each node has, limits, counts."""

    def __init__(
        self,
        table: TrafficTable,
        *,
        authenticate: Authenticate | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        seconds: float = DEFAULT_SECONDS,
    ) -> None:
        """``seconds``: the interval of reports. Without ``authenticate`` clients are whoever they say."""
        self._table = table
        self._authenticate = authenticate
        self._bounds = bounds
        self.seconds = seconds
        self._places = StreamPlaces(bounds)
        self._of_nodes: Tally[tuple[str, bool]] = Tally()
        """The open streams of each node, those of its agent apart."""
        self._open: set[trio.CancelScope] = set()
        self._new_streams = TokenBucket(bounds.max_requests_per_second, STREAMS_AT_ONCE)
        self._is_draining = False
        self._refusal_log = LogLimiter()
        self._reports = self._delayed = self._broken = 0
        self._refused: Tally[str] = Tally()

    def __repr__(self) -> str:
        return f"<TrafficServer {len(self._places)} streams{' draining' if self._is_draining else ''}>"

    def __mapping__(self) -> Mapping[str, Handler]:
        paths = {f"/{SERVICE}/StreamLoadStats": False, REPORTS_PATH: True}
        return {
            path: Handler(partial(self._handle, of_agent=of_agent), Cardinality.STREAM_STREAM, bytes, bytes)
            for path, of_agent in paths.items()
        }

    def statistics(self) -> TrafficServerStatistics:
        return TrafficServerStatistics(
            len(self._places), self._reports, self._delayed, dict(self._refused), self._broken
        )

    def drain(self) -> None:
        """End every stream with UNAVAILABLE, and refuse new ones likewise."""
        self._is_draining = True
        for scope in self._open:
            scope.cancel()

    async def _handle(self, call: RawStream, *, of_agent: bool) -> None:
        """One stream, from its first message to its end."""
        try:
            with self._places.place(call) as place:
                self._open.add(place)
                try:
                    if self._is_draining:
                        place.cancel()
                    await self._serve(call, place, of_agent)
                finally:
                    self._open.discard(place)
        except (StreamError, BoundError) as raised:
            error = _SHUTTING_DOWN if self._is_draining else stream_error(raised)
            self._note_refused(call, error)
            raise GRPCError(Status(error.code), error.message) from error

    async def _serve(self, call: RawStream, place: trio.CancelScope, of_agent: bool) -> None:
        await trio.sleep(self._new_streams.reserve(1, trio.current_time()))
        self._places.shares.stall(place, trio.current_time())
        first = await call.recv_message()
        self._places.shares.resume(place)
        admit = await admission(self._authenticate, call)
        if first is None:
            return
        reports = self._begun(call, place, admit, first, of_agent)
        with self._counted(reports):
            self._add(reports, ())
            call.when_retiring(reports.retire)
            await call.send_message(encode_answer(self.seconds) if of_agent else reporting_response(self.seconds))
            with reports.scope:
                if of_agent:
                    await self._take(reports, first)
                del first  # 60 KB, and the stream lasts
                await self._receive(call, reports)

    def _begun(self, call: RawStream, place: trio.CancelScope, admit: Admit, first: bytes, of_agent: bool) -> _Reports:
        """The stream that a first message begins. Raises StreamError, BoundError."""
        proxy = admit(self._proxy(first, of_agent))
        check_labels(self._bounds, proxy.labels)
        self._places.shares.add(place, owner_of(proxy.identity, call.peer.address))
        bucket = TokenBucket(REPORTS_PER_SECOND, REPORTS_AT_ONCE)
        loads = LoadRows(adds_dropped=proxy.is_grpc)
        return _Reports(self._table.known(reporting_proxy(proxy)), of_agent, self.seconds, bucket, loads)

    def _proxy(self, first: bytes, of_agent: bool) -> Proxy:
        """The proxy that the first message of a stream is of. Raises StreamError, BoundError."""
        check(self._bounds, "max_node_bytes", "bytes in the first message of a stream", len(first))
        try:
            node = read_report(first).node if of_agent else first_node(first)
            return proxy_of(read_node(node, self._bounds) if node else None)
        except WireError as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the first message {error}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the node cannot be decoded: {error}") from error

    @contextmanager
    def _counted(self, reports: _Reports) -> Iterator[None]:
        """A stream of its node, for the block. Raises StreamError if the node has too many, or is another's."""
        node = reports.caller.node
        known = self._table.principal_of(node)
        if known and not reports.caller.workload.principal:
            raise StreamError(Code.UNAUTHENTICATED, f"{node} is known as {known}, and nothing proves that this is it")
        if self._of_nodes[node, True] + self._of_nodes[node, False] >= MAX_STREAMS_OF_NODE:
            raise StreamError(Code.RESOURCE_EXHAUSTED, f"{node} has {MAX_STREAMS_OF_NODE} streams of reports already")
        key = node, reports.of_agent
        self._of_nodes[key] += 1
        try:
            yield
        finally:
            self._add(reports, _none_in_flight(reports.in_flight))
            if not reports.is_whole:
                self._broken += 1
                self._table.lost(node)
            self._of_nodes[key] -= 1
            if not self._of_nodes[key]:
                del self._of_nodes[key]

    def _has_agent(self, reports: _Reports) -> bool:
        """True while an agent reports what the node of a stream counts."""
        return (reports.caller.node, True) in self._of_nodes

    def _add(self, reports: _Reports, rows: Sequence[TrafficRow], *, follows_gap: bool = False) -> None:
        self._table.add(reports.caller, rows, of_agent=self._has_agent(reports), follows_gap=follows_gap)

    async def _receive(self, call: RawStream, reports: _Reports) -> None:
        """Take reports until the client has no more, or the stream retires."""
        while not reports.is_retiring and (data := await call.recv_message()) is not None:
            wait = reports.bucket.reserve(1 + len(data) // BYTES_PER_REPORT, trio.current_time())
            if wait > 0:
                self._delayed += 1
                await trio.sleep(wait)
            await self._take(reports, data)
            del data  # while the next is waited for
        reports.is_whole = True

    async def _take(self, reports: _Reports, data: bytes) -> None:
        """Take a report. Raises StreamError, BoundError."""
        try:
            if reports.of_agent:
                rows, follows_gap = await _read_agents(data)
            else:
                rows, follows_gap = await _read_loads(reports.loads, data), False
                if self._has_agent(reports):
                    rows = []
        except WireError as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the report {error}") from error
        except (DecodeError, UnicodeDecodeError) as error:
            raise StreamError(Code.INVALID_ARGUMENT, f"the report cannot be decoded: {error}") from error
        self._reports += 1
        reports.latest = trio.current_time()
        told = {row.name: row.counts[Counter.IN_FLIGHT] for row in rows if Counter.IN_FLIGHT in row.counts}
        busy = {name for name, count in told.items() if count}
        if reports.of_agent:  # it tells what changed
            busy |= reports.in_flight - told.keys()
        rows += _none_in_flight(() if reports.of_agent else reports.in_flight - busy)
        reports.in_flight = frozenset(busy)
        for begin in range(0, max(1, len(rows)), ROWS_AT_ONCE):
            if begin:
                await trio.lowlevel.checkpoint()
            self._add(reports, rows[begin : begin + ROWS_AT_ONCE], follows_gap=follows_gap and not begin)

    def _note_refused(self, call: RawStream, error: StreamError) -> None:
        self._refused[error.code.name] += 1
        subject = host_of(call.peer.address), call.path, error.code
        if error.code is not Code.UNAVAILABLE and self._refusal_log.admit(subject, trio.current_time()) is not None:
            log.warning(
                "stream of reports refused",
                peer=call.peer.address,
                path=call.path,
                status=error.code.name,
                reason=str(error)[:MAX_REASON],
            )


def reporting_proxy(proxy: Proxy) -> ReportingProxy:
    """The caller that a proxy is, and the workload that it is of."""
    label = next(((key, proxy.labels[key]) for key in CANONICAL_SERVICE if proxy.labels.get(key)), None)
    name = label[1] if label else proxy.text(WORKLOAD_NAME) or proxy.name.removesuffix(f".{proxy.namespace}")
    workload = CallingWorkload(proxy.namespace, name, proxy.identity, (label,) if label else ())
    return ReportingProxy(proxy.id, proxy.name, workload)


async def _read_agents(data: bytes) -> tuple[list[TrafficRow], bool]:
    """An agent's report: its rows, and whether it follows a gap."""
    if len(data) > MAX_REPORT:
        raise WireError(f"has more than {MAX_REPORT:,} bytes")
    read: Callable[[bytes], TrafficReport] = read_report
    report = read(data) if len(data) <= BYTES_PER_REPORT else await trio.to_thread.run_sync(read, data)
    return [*report.rows], report.follows_gap


async def _read_loads(loads: LoadRows, data: bytes) -> list[TrafficRow]:
    """The rows of a load report; proxies are served in between if it is large."""
    found: list[TrafficRow] = []
    for number, piece in enumerate(report_pieces(data)):
        if number:
            await trio.lowlevel.checkpoint()
        found += loads.rows(piece)
        if len(found) > MAX_ROWS:
            raise WireError(f"has numbers of more than {MAX_ROWS:,} clusters")
    return found


def _none_in_flight(clusters: Iterable[str]) -> list[TrafficRow]:
    """Rows that say that nothing is in flight any more."""
    return [TrafficRow(RowKind.CLUSTER, name, {Counter.IN_FLIGHT: 0}) for name in clusters]
