"""Envoy's load reports (LRS), which the agent takes itself: their attempts are in the agent's next report.

Envoy counts attempts in its load reports only. Each repeats the whole node, some 60 KB of names of extensions, and
names all clusters; the numbers are found by field numbers, and nothing is decoded. Attempts are those that ended:
successes and errors. A refused connection is an error that was never issued, and what a circuit breaker drops is an
error, too (tried with Envoy 1.40). Source: Envoy's ``service/load_stats/v3/lrs.proto``,
``config/endpoint/v3/load_report.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import attrs
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.static_resources import OWN_CLUSTERS
from mesh_pilot.agent.identity.secret_service import check_peer
from mesh_pilot.agent.traffic.increases import Increases
from mesh_pilot.base.protowire import LEN, VARINT, WireError, field, fields, read_varint, tag, varint
from mesh_pilot.model.traffic import MAX_NAME
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, ServerStream, Status, StreamTerminatedError

LOAD_STATS_PATH = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"

_CLUSTER_STATS = 2
"""``LoadStatsRequest.cluster_stats``."""
_NAME, _LOCALITIES = 1, 2
"""Fields of ``ClusterStats``."""
_SUCCESSES, _ERRORS = 2, 4
"""``total_successful_requests`` and ``total_error_requests`` of ``UpstreamLocalityStats``."""
_INTERVAL, _SEND_ALL_CLUSTERS = 2, 4
"""Fields of ``LoadStatsResponse``."""


def attempts_of(report: bytes) -> Iterator[tuple[str, int, int]]:
    """The clusters of the mesh with attempts, each with their number and how many failed. Raises WireError."""
    for number, kind, start, end in fields(report):
        if number == _CLUSTER_STATS and kind == LEN:
            name, attempts, failed = _attempts(report[start:end])
            if attempts and name and name not in OWN_CLUSTERS:
                yield name, attempts, failed


def _attempts(cluster: bytes) -> tuple[str, int, int]:
    """Name, attempts and failures of a ``ClusterStats``; localities are added up."""
    name, successes, errors = "", 0, 0
    for number, kind, start, end in fields(cluster):
        if number == _NAME and kind == LEN:
            name = cluster[start:end].decode(errors="replace")[:MAX_NAME]
        elif number == _LOCALITIES and kind == LEN:
            locality = cluster[start:end]
            for counter, counter_kind, at, _ in fields(locality):
                if counter_kind == VARINT and counter in (_SUCCESSES, _ERRORS):
                    count = read_varint(locality, at)[0]
                    successes += count if counter == _SUCCESSES else 0
                    errors += count if counter == _ERRORS else 0
    return name, successes + errors, errors


def reporting_answer(seconds: float) -> bytes:
    """The answer that has Envoy report the loads of all its clusters in this interval."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    duration = tag(1, VARINT) + varint(whole) + tag(2, VARINT) + varint(thousandths * 1_000_000)
    return field(_INTERVAL, duration) + tag(_SEND_ALL_CLUSTERS, VARINT) + varint(1)


@attrs.define
class LoadReportStatistics:
    """Numbers for metrics and debug pages."""

    streams: int = 0
    """Envoy's streams that are open."""
    reports_total: int = 0


class LoadReportService:
    """The LoadReportingService that Envoy is told of. Mutable state: counts.

    Envoy's stream stays open whatever becomes of control planes: it would try again every 5 s and log a warning.
    """

    def __init__(self, increases: Increases, interval: Observable[float]) -> None:
        """``interval``: seconds between two reports; 0: none are wanted, and what Envoy reports is not counted."""
        self._increases = increases
        self._interval = interval
        self._counts = LoadReportStatistics()

    def __repr__(self) -> str:
        return f"<LoadReportService {self._counts.streams} streams>"

    def __mapping__(self) -> Mapping[str, Handler]:
        return {LOAD_STATS_PATH: Handler(self._serve, Cardinality.STREAM_STREAM, bytes, bytes)}

    def statistics(self) -> LoadReportStatistics:
        return attrs.evolve(self._counts)

    async def _serve(self, call: ServerStream[bytes, bytes]) -> None:
        """One stream of Envoy's, until that ends it."""
        check_peer(call.peer)
        self._counts.streams += 1
        unreadable = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_interval, call)
                unreadable = await self._take(call)
                nursery.cancel_scope.cancel()
        finally:
            self._counts.streams -= 1
            if unreadable or self._counts.streams:  # what the last Envoy has counted last is lost when it is replaced
                self._increases.lost()
        if unreadable:
            raise GRPCError(Status.INVALID_ARGUMENT, f"the report {unreadable}")

    async def _tell_interval(self, call: ServerStream[bytes, bytes]) -> None:
        async for seconds in self._interval.changes():
            if seconds:
                with suppress(StreamTerminatedError):  # whoever receives learns it, too
                    await call.send_message(reporting_answer(seconds))

    async def _take(self, call: ServerStream[bytes, bytes]) -> str:
        """Count what is reported. Returns why a report cannot be read, or at Envoy's end."""
        with suppress(StreamTerminatedError):  # Envoy is gone
            while (report := await call.recv_message()) is not None:
                self._counts.reports_total += 1
                try:
                    found = [*attempts_of(report)]
                except WireError as error:
                    return str(error)
                for cluster, attempts, failed in found if self._interval.value else ():
                    self._increases.add_attempts(cluster, attempts, failed)
        return ""
