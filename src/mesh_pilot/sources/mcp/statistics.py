"""The statistics of MCP sources, for metrics and debug pages. Messages are counted as Istio's own sinks count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

SIZE_BOUNDS = tuple(4**power for power in range(16))
"""Upper bounds in bytes of the histogram of response sizes; the last bucket has none."""


@attrs.frozen
class Traffic:
    """Messages since the start, over all streams."""

    acks: Mapping[str, int]
    """Responses accepted, by collection."""
    nacks: Mapping[str, int]
    """Responses refused, as a whole or in part, by collection."""
    sizes: tuple[int, ...]
    """Responses by size: one bucket for each of ``SIZE_BOUNDS``, and one for larger ones."""
    bytes_received: int
    last_response_seconds: float | None
    """Age of the last response; None: there was none."""
    failures: Mapping[str, int]
    """Streams that ended with an error, by gRPC status."""


class TrafficCounter:
    """State: the counts, and the time of the last response."""

    def __init__(self) -> None:
        self._acks: Counter[str] = Counter()
        self._nacks: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._sizes = [0] * (len(SIZE_BOUNDS) + 1)
        self._bytes = 0
        self._last: float | None = None

    def __repr__(self) -> str:
        return f"<TrafficCounter {self._acks.total()} ACKs, {self._nacks.total()} NACKs>"

    def received(self, size: int) -> None:
        self._sizes[next((i for i, bound in enumerate(SIZE_BOUNDS) if size <= bound), len(SIZE_BOUNDS))] += 1
        self._bytes += size
        self._last = trio.current_time()

    def answered(self, collection: str, *, nack: bool) -> None:
        (self._nacks if nack else self._acks)[collection] += 1

    def failed(self, status: str) -> None:
        self._failures[status] += 1

    def statistics(self) -> Traffic:
        return Traffic(
            acks=dict(self._acks),
            nacks=dict(self._nacks),
            sizes=tuple(self._sizes),
            bytes_received=self._bytes,
            last_response_seconds=None if self._last is None else trio.current_time() - self._last,
            failures=dict(self._failures),
        )


@attrs.frozen(kw_only=True)
class ReceiverStatistics:
    """Statistics of either MCP source. Counts are current, except ``traffic`` and ``judged``."""

    items: int
    rejected: int
    synced: bool
    waiting_for: str
    """The reason why it has not synced; empty once it has."""
    connected: bool
    stale_seconds: float
    """Time since the stream was lost; 0 while connected, and before the first sync."""
    collections: Mapping[str, int]
    """Resources in force, by collection."""
    silent: int
    """Collections requested on this stream, without a response so far."""
    judged: int
    """Resources decoded and validated since the start: those with new content."""
    traffic: Traffic


@attrs.frozen(kw_only=True)
class McpSourceStatistics(ReceiverStatistics):
    address: str
    method: str
    """The gRPC method in use, or tried last."""
    streams: int
    """Streams opened since the start."""
    last_error: str
    """Why the last stream ended or none could be opened; empty if that never happened."""
    trouble: str
    """Why there is no stream; empty while there is one."""
    not_offered: tuple[str, ...]
    """Collections that the server said it lacks."""


@attrs.frozen(kw_only=True)
class SinkServerStatistics(ReceiverStatistics):
    address: str
    """The bound address; empty while not listening."""
    peer: str
    """The connected server; empty without one."""
    streams: int
    """Streams opened since the start."""
    trouble: str
    """Why there is no stream, for people; empty while there is one."""
