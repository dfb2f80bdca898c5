"""Envoy's load reports: the rows in a ``LoadStatsRequest``.

Each repeats the whole node of its proxy, mostly 60 KB of names of extensions, and names every cluster. So the node is
cut off before the rest is decoded, and a cluster without numbers makes no row. Source: Envoy, "Load reporting service"
and ``ClusterStats``; what its numbers mean was tried with Envoy 1.40.

Attempts are those that ended: successes and errors. ``total_issued_requests`` are those that began, and a refused
connection is an error without having begun. Of TCP only these are told: they are connections. What a circuit breaker
drops is an error of Envoy's, too; of gRPC it is told as dropped only. Localities are summed: an edge is the use of a
cluster, and each locality of it would be a row more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import attrs
from envoy.config.endpoint.v3.load_report_pb2 import ClusterStats
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from mesh_pilot.base.protowire import LEN, WireError, fields, value_span
from mesh_pilot.model.traffic import MAX_NAME, Counter, RowKind, TrafficRow

SERVICE = "envoy.service.load_stats.v3.LoadReportingService"

PIECE = 64 * 1024
"""Bytes that are decoded at once, and the size of the largest ``ClusterStats``: decoded it may take a hundred times as
many."""

_NODE = 1


def first_node(data: bytes) -> bytes | None:
    """The encoded node of a stream's first message; None without one. Raises WireError."""
    found = [data[start:end] for number, kind, start, end in fields(data) if (number, kind) == (_NODE, LEN)]
    return b"".join(found) if found else None  # of a field that comes twice, the values are one message


def reporting_response(seconds: float) -> bytes:
    """The answer that has a client report the loads of all its clusters in this interval."""
    response = LoadStatsResponse(send_all_clusters=True, report_endpoint_granularity=False)
    response.load_reporting_interval.FromMilliseconds(round(seconds * 1000))
    encoded: bytes = response.SerializeToString()
    return encoded


def report_pieces(data: bytes) -> Iterator[bytes]:
    """A report without its node, as messages of limited size. Raises WireError."""
    at = value_span(data, 1, LEN)[1] if data[:1] == b"\x0a" else 0
    if len(data) - at <= PIECE:
        yield data[at:]
        return
    begin = at
    for start, stop in _clusters(data, at):
        if stop - start > PIECE:
            raise WireError(f"has a cluster of more than {PIECE:,} bytes")
        if stop - begin > PIECE:
            yield data[begin:start]
            begin = start
    yield data[begin:]


def _clusters(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """The offsets of each field, its tag included."""
    view = memoryview(data)[at:]
    before = at
    for _, _, _, end in fields(view):
        yield before, at + end
        before = at + end


@attrs.define
class LoadRows:
    """Makes the rows of a client's reports. State: the clusters of which requests were told: they are not TCP's."""

    adds_dropped: bool
    """True if what the client drops is not among its errors."""
    _of_requests: set[str] = attrs.field(factory=set)

    def rows(self, piece: bytes) -> Iterator[TrafficRow]:
        """The rows in a message. Raises google.protobuf.message.DecodeError."""
        for cluster in LoadStatsRequest.FromString(piece).cluster_stats:
            if cluster.upstream_locality_stats or cluster.total_dropped_requests:
                name = sys.intern(cluster.cluster_name[:MAX_NAME])
                counts = self._counts(cluster, name)
                if name and counts and (counts.keys() != {Counter.IN_FLIGHT} or "|" in name):
                    yield TrafficRow(RowKind.CLUSTER, name, counts)  # the stream of ADS itself is in flight forever

    def _attempts(self, cluster: ClusterStats) -> dict[Counter, int]:
        successes, errors = 0, cluster.total_dropped_requests if self.adds_dropped else 0
        for locality in cluster.upstream_locality_stats:
            successes += locality.total_successful_requests
            errors += locality.total_error_requests
        attempts = successes + errors
        if errors:
            return {Counter.ATTEMPTS: attempts, Counter.FAILED_ATTEMPTS: errors}
        return {Counter.ATTEMPTS: attempts} if attempts else {}

    def _counts(self, cluster: ClusterStats, name: str) -> dict[Counter, int]:
        counts = self._attempts(cluster)
        if in_flight := sum([each.total_requests_in_progress for each in cluster.upstream_locality_stats]):
            counts[Counter.IN_FLIGHT] = in_flight
        if Counter.ATTEMPTS in counts:
            self._of_requests.add(name)
        elif name not in self._of_requests:
            issued = sum([each.total_issued_requests for each in cluster.upstream_locality_stats])
            if issued:
                counts[Counter.CONNECTIONS] = issued
        return counts
