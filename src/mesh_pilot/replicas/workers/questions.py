"""Questions between the workers of a control plane, and the state of those that are not the first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import attrs

from mesh_pilot.model.history import RevisionNack
from mesh_pilot.model.proxy import Proxy

WORKER_HOST = "worker"
"""The host of requests that a worker answers for a page of all."""


@attrs.frozen
class Rollout:
    """Connected proxies that have accepted secrets of the mesh from here."""

    proxies: int = 0
    with_roots: int = 0
    """The number of them that have accepted all roots that are trusted now."""
    with_certificate: int = 0
    """The number of them that have accepted a certificate of the CA that signs now."""
    before_rotation: tuple[str, ...] = ()
    """Clients connected since before the rotation under way that know the root from a file: they cannot know the new
    one by it. Their names, sorted."""


@attrs.frozen
class PageQuestion:
    """A request to the web port. Answered with a ``WorkerPage``."""

    path: str
    """With its query."""
    method: str = "GET"
    body: bytes = b""
    visitor: object = None
    """The one who asks, as the web port knows them: what they may not see is left out by the worker."""


@attrs.frozen
class ConnectionsQuestion:
    """Answered with the streams of proxies, as ``StatusRegistry.connections``."""


@attrs.frozen
class DumpQuestion:
    """Answered as ``StatusRegistry.config_dump``; None for a proxy of another worker."""

    proxy: Proxy


@attrs.frozen
class MeantQuestion:
    """The connected proxies that somebody means. Answered as ``StatusRegistry.meant``."""

    text: str


@attrs.frozen
class MetricsQuestion:
    """Answered with ``ops.metrics.workers.WorkerMetrics``."""


@attrs.frozen
class WorkerStateQuestion:
    """Answered with a ``WorkerState``."""


@attrs.frozen
class TruthQuestion:
    """The states of objects at a worker's proxies. Answered with a dictionary of ``explain.truth.fleet.FleetTruth``."""

    asked: tuple[tuple[str, ...], ...]
    """The keys of objects that are told even if they are in force everywhere."""


@attrs.frozen
class TrafficQuestion:
    """The rows of a worker's table of traffic. Answered with ``TrafficEdge``. The times are seconds before now: the
    clocks of two processes differ."""

    begin_ago: float
    end_ago: float


@attrs.frozen
class MinutesQuestion:
    """The minutes of traffic that a worker has folded. Answered with ``traffic.memory.FoldedMinutes``."""

    had: Mapping[str, int]
    """The number of them had of each process."""


@attrs.frozen
class TrafficPartQuestion:
    """The proxies that report traffic to a worker, and ten minutes of each service. Answered with
    ``ops.values.traffic_parts.TrafficPart``."""


@attrs.frozen
class DeliveryQuestion:
    """How far a revision has come. Answered with a ``WorkerDelivery``."""

    revision: int
    configs: tuple[str, ...]
    """The objects whose refusals are told."""


@attrs.frozen
class WorkerDelivery:
    """How far a revision has come at the proxies of a worker."""

    has_revision: bool
    """False while the worker itself does not have it."""
    proxies: int
    """Connected ones."""
    sent: int
    """Proxies that were sent something because of it."""
    waiting: tuple[str, ...]
    """Names of proxies that have not answered everything up to there."""
    nacks: tuple[RevisionNack, ...]
    """The last refusal of each proxy that refused what came of the objects."""


@attrs.frozen
class WorkerPage:
    """A page as it was answered."""

    status: int
    content_type: str
    body: bytes


@attrs.frozen
class WorkerState:
    """The state of a worker, as the first one always knows it."""

    connected: int
    """Proxies."""
    rollout: Rollout


Answer = Callable[[object], Awaitable[object]]
"""Answers a question."""
