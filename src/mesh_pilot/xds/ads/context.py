"""The things that all streams of a server share."""

from __future__ import annotations

import attrs
import trio

from mesh_pilot.model.bounds import DEFAULT_BOUNDS, Bounds
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.due_pushes import DuePushes
from mesh_pilot.xds.ads.encode import Encoder
from mesh_pilot.xds.ads.observers import NO_ANSWER_OBSERVER, AnswerObserver, WorkloadObserver
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.status import StatusRegistry

PRESENCE_RATE, PRESENCE_BURST = 20.0, 400.0
"""Log lines about proxies that connect and disconnect, per second and at once: a fleet that reconnects, or a flood of
streams."""


@attrs.frozen(kw_only=True)
class XdsOptions:
    """Bounds of the server, and the times that its streams allow."""

    bounds: Bounds = DEFAULT_BOUNDS
    """Limits on the number, size and rate of requests."""
    warming_seconds: float = 3.0
    """The time that listeners and routes wait for a client to request the endpoints of new clusters."""
    reconnect_grace_seconds: float = 0.2
    """The time that a reconnecting client has to request all that it has, before clusters are taken from it, or it is
    told that clusters which it does not subscribe to have no endpoints."""
    nack_backoff_seconds: float = 0.25
    """The time that a type waits after the second NACK in a row; doubled at each further one."""
    max_nack_backoff_seconds: float = 30.0
    request_burst: float = 1000.0
    """Requests that a stream may send at once after a pause, if its rate is bounded."""
    stream_burst: float = 1000.0
    """New streams that may begin at once after a pause, if their rate is bounded."""


DEFAULT_OPTIONS = XdsOptions()


@attrs.frozen(kw_only=True, eq=False)
class SessionContext:
    """The catalog, the caches and limits, and those who learn of what happens on any stream."""

    catalog: Catalog
    decoder: Decoder
    encoder: Encoder
    options: XdsOptions = DEFAULT_OPTIONS
    registry: StatusRegistry = attrs.field(factory=StatusRegistry)
    answers: AnswerObserver = NO_ANSWER_OBSERVER
    """Learns what clients accept and refuse."""
    workloads: WorkloadObserver = attrs.field(factory=WorkloadObserver)
    """Learns who is connected, and how the applications are."""
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    """Sessions that may work for long take turns: one does so at a time, for a slice."""
    pushes: DuePushes = attrs.field(factory=DuePushes)
    """The pushes to streams that a change has woken."""
    nack_log: LogLimiter = attrs.field(factory=LogLimiter)
    """Bounds the log lines about NACKs of all sessions,"""
    presence_log: LogLimiter = attrs.field(
        factory=lambda: LogLimiter(seconds=0, rate=PRESENCE_RATE, burst=PRESENCE_BURST)
    )
    """and those about proxies that connect and disconnect."""
