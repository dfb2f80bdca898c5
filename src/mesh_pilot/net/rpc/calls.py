"""Counts of the calls of a server by method, as go-grpc-prometheus has them.

Only methods that the server has are counted, so that clients cannot make up more of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import field, frozen
from grpclib.const import Cardinality, Status

__all__ = ["HANDLING_BOUNDS", "CallCounts", "CallStatistics", "call_kind", "status_name", "sum_calls"]

HANDLING_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Seconds: the buckets of ``grpc_server_handling_seconds``, which are the defaults of Prometheus' Go client."""


class CallCounts:
    """The calls of one method. State: the counters."""

    __slots__ = ("handled", "kind", "received", "seconds", "seconds_sum", "sent", "started")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        """``bidi_stream``, ``unary``, ..."""
        self.started = 0
        self.received = 0
        self.sent = 0
        self.handled: Counter[Status] = Counter()
        self.seconds = [0] * (len(HANDLING_BOUNDS) + 1)
        self.seconds_sum = 0.0

    def __repr__(self) -> str:
        return f"<CallCounts {self.started} started, {self.handled.total()} handled>"

    def ended(self, status: Status, seconds: float) -> None:
        """A call ended."""
        self.handled[status] += 1
        self.seconds[bisect_left(HANDLING_BOUNDS, seconds)] += 1
        self.seconds_sum += seconds

    def statistics(self) -> CallStatistics:
        return CallStatistics(
            self.kind,
            self.started,
            dict(self.handled),
            self.received,
            self.sent,
            tuple(self.seconds),
            self.seconds_sum,
        )


@frozen
class CallStatistics:
    """The calls of one method since the start."""

    kind: str
    """``unary``, ``client_stream``, ``server_stream`` or ``bidi_stream``."""
    started: int = 0
    handled: Mapping[Status, int] = field(factory=dict)
    """Calls by the status that they ended with; CANCELLED where the client left."""
    received: int = 0
    """Messages."""
    sent: int = 0
    seconds: tuple[int, ...] = (0,) * (len(HANDLING_BOUNDS) + 1)
    """A histogram with ``HANDLING_BOUNDS``; the last for the rest. Not cumulative."""
    seconds_sum: float = 0.0


def sum_calls(statistics: Iterable[CallStatistics]) -> CallStatistics:
    """The calls of one method at several servers."""
    found = [*statistics]
    return CallStatistics(
        found[0].kind,
        sum(one.started for one in found),
        sum((Counter(one.handled) for one in found), Counter[Status]()),
        sum(one.received for one in found),
        sum(one.sent for one in found),
        tuple(map(sum, zip(*(one.seconds for one in found), strict=True))),
        sum(one.seconds_sum for one in found),
    )


def call_kind(cardinality: Cardinality) -> str:
    """The label ``grpc_type``."""
    return {
        Cardinality.UNARY_UNARY: "unary",
        Cardinality.STREAM_UNARY: "client_stream",
        Cardinality.UNARY_STREAM: "server_stream",
        Cardinality.STREAM_STREAM: "bidi_stream",
    }[cardinality]


def status_name(status: Status) -> str:
    """The name of a status as Go's gRPC has it: ``OK``, ``Canceled``, ``InvalidArgument``."""
    if status is Status.OK:
        return "OK"
    if status is Status.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in status.name.split("_"))
