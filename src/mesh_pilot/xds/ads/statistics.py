"""Statistics of streams: totals, and how long pushes take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from mesh_pilot.model.histogram import Histogram, HistogramState
from mesh_pilot.model.resource import RESOURCE_TYPES

CONVERGENCE_BOUNDS = (0.1, 0.5, 1, 3, 5, 10, 20, 30)
"""Seconds: the buckets of Istio's ``pilot_proxy_convergence_time`` and ``pilot_proxy_queue_time``."""

PUSH_BOUNDS = (0.01, 0.1, 0.5, 1, 3, 5, 10, 20, 30)
"""Seconds: those of its ``pilot_xds_push_time``."""

SEND_BOUNDS = (0.01, 0.1, 1, 3, 5, 10, 20, 30)
"""Seconds: those of its ``pilot_xds_send_time``."""

SIZE_BOUNDS = (1, 10_000, 1_000_000, 4_000_000, 10_000_000, 40_000_000)
"""Bytes: those of its ``pilot_xds_config_size_bytes``."""


@attrs.frozen
class PushTimesState:
    """Histograms of pushes at one time."""

    convergence_seconds: HistogramState
    """From the publishing of a change to the last ACK of the responses that it caused, one per stream."""
    queue_seconds: HistogramState
    """The time from the wake-up of a stream until it looks for news."""
    push_seconds: Mapping[str, HistogramState]
    """The time by type from when a stream looks for news until a response is handed to its connection."""
    send_seconds: HistogramState
    """The last part of that: while the connection takes the response; 0 if it took it at once."""
    sizes: Mapping[str, HistogramState]
    """Bytes of responses by type."""


class PushTimes:
    """Counts how long pushes take, and how large they are. State: the histograms."""

    def __init__(self) -> None:
        self._converged = Histogram(CONVERGENCE_BOUNDS)
        self._queued = Histogram(CONVERGENCE_BOUNDS)
        self._push_seconds = {type_url: Histogram(PUSH_BOUNDS) for type_url in RESOURCE_TYPES}
        self._send_seconds = Histogram(SEND_BOUNDS)
        self._sizes = {type_url: Histogram(SIZE_BOUNDS) for type_url in RESOURCE_TYPES}

    def __repr__(self) -> str:
        return f"<PushTimes sent {self._send_seconds!r}, converged {self._converged!r}>"

    def converged(self, seconds: float) -> None:
        """A client has accepted everything that followed from a change, this long after it was published."""
        self._converged.observe(seconds)

    def waited(self, seconds: float) -> None:
        """A stream was woken these seconds ago, and looks for news now."""
        self._queued.observe(seconds)

    def pushed(self, type_url: str, size: int, push_seconds: float, send_seconds: float) -> None:
        """A response has left for the network, as so many bytes."""
        self._push_seconds[type_url].observe(push_seconds)
        self._send_seconds.observe(send_seconds)
        self._sizes[type_url].observe(size)

    def state(self) -> PushTimesState:
        return PushTimesState(
            convergence_seconds=self._converged.state(),
            queue_seconds=self._queued.state(),
            push_seconds={type_url: each.state() for type_url, each in self._push_seconds.items()},
            send_seconds=self._send_seconds.state(),
            sizes={type_url: each.state() for type_url, each in self._sizes.items()},
        )


@attrs.define(kw_only=True)
class XdsTotals:
    """Counts since the start. Those by type URL hold only types that were seen."""

    streams_total: int = 0
    pushes: Counter[str] = attrs.field(factory=Counter)
    acks: Counter[str] = attrs.field(factory=Counter)
    rejects: Counter[str] = attrs.field(factory=Counter)
    bytes_sent: Counter[str] = attrs.field(factory=Counter)
    refused_streams: Counter[str] = attrs.field(factory=Counter)
    """Streams ended by an error of ours, by gRPC status name."""
    unserved: int = 0
    """Types not served that streams requested; one per stream and type."""
    exceeded_bounds: Counter[str] = attrs.field(factory=Counter)
    """Streams ended because a client exceeded a bound, by that (a field of ``model.bounds.Bounds``)."""
    delayed_requests: int = 0
    delayed_streams: int = 0
    """Requests, and new streams, that had to wait because there were too many."""
    stale_requests: Counter[str] = attrs.field(factory=Counter)
    """Requests by type that answer another response than the last, and are ignored."""
    largest_request: int = 0
    """Bytes of the largest request so far."""


@attrs.frozen(kw_only=True)
class XdsStatistics(XdsTotals):
    """The totals at one time, and who is connected then."""

    connected: int
    """Streams of proxies; those of agents are apart."""
    connected_by_version: Mapping[str, int]
    """Streams of proxies by the version in their nodes; ``unknown`` without one."""
    agents_by_version: Mapping[str, int]
    """Streams that agents have for themselves, by the agent's version."""
    times: PushTimesState
