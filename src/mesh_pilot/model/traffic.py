"""Counts of traffic at a proxy, and the reports of them that an agent sends.

Two parties count. *Envoy's load reports* (LRS) count attempts: a request that is retried twice is three of them. *An
agent* reads Envoy's own counters, and so knows requests as their caller saw them. Only the agent's are ``REQUESTS`` and
``ERRORS``; a proxy with load reports alone has ``ATTEMPTS`` and ``FAILED_ATTEMPTS``, and its requests are unknown.

Reports are messages of ``proto/traffic/v1/traffic.proto``, written and read by field numbers: an agent imports no
generated message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum

import attrs

from mesh_pilot.base.protowire import LEN, VARINT, WireError, field, fields, read_varint, tag, varint

REPORTS_PATH = "/meshpilot.traffic.v1.TrafficReportService/StreamTrafficReports"
"""The method of gRPC that takes an agent's reports: a stream in both directions."""

DEFAULT_SECONDS = 10.0
"""The interval of reports."""

MAX_ROWS = 20_000
"""Rows of one report."""

MAX_OTHERS = 100
"""Other fields of one report."""

MAX_ROW = 8 * 1024
"""Bytes of a row."""

MAX_NAME = 1000
"""Characters of a name in a report."""


class _Number(IntEnum):
    """A number of reports; hashed as one, because an ``Enum`` computes its hash in Python."""

    __hash__ = int.__hash__


class Counter(_Number):
    """The things that are counted, by their numbers in reports and on disk: none is ever used for another."""

    REQUESTS = 1
    """Requests that were answered, whoever answered; retries of one are not counted."""
    ERRORS = 2
    """Requests that were answered with a 5xx, by the service or in its place."""
    CLIENT_ERRORS = 3
    """Requests that were answered with a 4xx."""
    TIMEOUTS = 4
    RETRIES = 5
    NONE_HEALTHY = 6
    """Requests and connections for which no endpoint was healthy."""
    CONNECTIONS = 7
    CONNECT_FAILURES = 8
    ATTEMPTS = 9
    """Requests to endpoints, each retry counted."""
    FAILED_ATTEMPTS = 10
    IN_FLIGHT = 11
    """Requests without an answer yet: the latest figure, no increase."""
    NO_ROUTE = 12
    """Requests that no route matched: 404."""
    NO_CLUSTER = 13
    """Requests whose route names a cluster that does not exist: 503."""
    ALLOWED = 14
    """Requests and connections that policies admitted."""
    DENIED = 15
    """Requests and connections that policies denied."""


NO_ALLOW_MATCHED = "no ALLOW matched"
"""The name of the row of what was denied because no rule of action ALLOW matched it."""

GAUGES = frozenset((Counter.IN_FLIGHT,))
"""Counters that are the latest figure and no sum."""


class RowKind(_Number):
    """The subjects of rows."""

    CLUSTER = 1
    """An edge: the proxy's use of one of its clusters, by the cluster's name."""
    LISTENER = 2
    """All that arrives at a listener, by the prefix of its statistics; such rows name no destination."""
    POLICY = 3
    """A policy or rule of one, by the name that its statistics have."""


@attrs.frozen
class TrafficRow:
    """Increases of counters of one cluster, listener or policy."""

    kind: RowKind
    name: str
    counts: Mapping[Counter, int]


@attrs.frozen
class TrafficReport:
    """An agent's report."""

    rows: tuple[TrafficRow, ...]
    seconds: float = DEFAULT_SECONDS
    """The time that it is about."""
    follows_gap: bool = False
    """True if counts before it were lost."""
    node: bytes = b""
    """Envoy's ``core.v3.Node``, encoded; in the first report of a stream."""


_COUNTERS = {int(each): each for each in Counter}
_KINDS = {int(each): each for each in RowKind}


def encode_report(report: TrafficReport) -> bytes:
    """A report as bytes."""
    parts = [field(1, report.node)] if report.node else []
    parts.append(tag(2, VARINT) + varint(round(report.seconds * 1000)))
    parts += [field(3, _encode_row(row)) for row in report.rows]
    if report.follows_gap:
        parts.append(tag(4, VARINT) + varint(1))
    return b"".join(parts)


def encode_answer(seconds: float) -> bytes:
    """The control plane's answer: the time between two reports; 0: none are wanted."""
    return tag(1, VARINT) + varint(round(seconds * 1000))


def read_answer(data: bytes) -> float:
    """The seconds between two reports; 0: none are wanted. Raises WireError."""
    found = 0
    for number, wire_type, start, _ in fields(data):
        if number == 1 and wire_type == VARINT:
            found = read_varint(data, start)[0]
    return found / 1000


def _encode_row(row: TrafficRow) -> bytes:
    counts = b"".join([varint(counter) + varint(count) for counter, count in row.counts.items()])
    return tag(1, VARINT) + varint(row.kind) + field(2, row.name.encode()) + field(3, counts)


def read_report(data: bytes) -> TrafficReport:
    """A report of bytes; rows and counters of a later version are left out. Raises WireError, UnicodeDecodeError."""
    rows: list[TrafficRow] = []
    seconds, follows_gap, node = DEFAULT_SECONDS, False, b""
    for count, (number, wire_type, start, end) in enumerate(fields(data)):
        if count == MAX_ROWS + MAX_OTHERS:
            raise WireError(f"has more than {MAX_ROWS:,} rows")
        if number == 3 and wire_type == LEN:
            if end - start > MAX_ROW:
                raise WireError(f"has a row of more than {MAX_ROW:,} bytes")
            row = _read_row(data[start:end])
            if row is not None:
                rows.append(row)
        elif number == 2 and wire_type == VARINT:
            seconds = read_varint(data, start)[0] / 1000
        elif number == 1 and wire_type == LEN:
            node = data[start:end]
        elif number == 4 and wire_type == VARINT:
            follows_gap = bool(read_varint(data, start)[0])
    return TrafficReport(tuple(rows), seconds, follows_gap, node)


def _read_row(data: bytes) -> TrafficRow | None:
    kind, name = None, ""
    counts: dict[Counter, int] = {}
    for number, wire_type, start, end in fields(data):
        if number == 1 and wire_type == VARINT:
            kind = _KINDS.get(read_varint(data, start)[0])
        elif number == 2 and wire_type == LEN:
            name = sys.intern(data[start:end].decode()[:MAX_NAME])
        elif number == 3 and wire_type == LEN:
            _read_counts(data, start, end, counts)
    return TrafficRow(kind, name, counts) if kind is not None and name else None


def _read_counts(data: bytes, at: int, end: int, counts: dict[Counter, int]) -> None:
    while at < end:
        counter, at = (data[at], at + 1) if data[at] < 0x80 else read_varint(data, at)
        count, at = read_varint(data, at)
        found = _COUNTERS.get(counter)
        if found is not None:
            counts[found] = count


def merged_counts(every: Iterable[Mapping[Counter, int]]) -> dict[Counter, int]:
    """The sums by counter."""
    found: dict[Counter, int] = {}
    for each in every:
        for counter, count in each.items():
            found[counter] = found.get(counter, 0) + count
    return found
