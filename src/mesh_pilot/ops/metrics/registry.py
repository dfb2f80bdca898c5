"""Collects the metrics of a plane at each scrape, as Prometheus' text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import attrs
import structlog
from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mesh_pilot import __version__
from mesh_pilot.base.containment import Contained
from mesh_pilot.net.rpc.rate_limits import LogLimiter
from mesh_pilot.ops.metrics import clusters, identities, push, servers, sources, traffic, webhooks, world, xds
from mesh_pilot.ops.metrics.samples import one
from mesh_pilot.ops.metrics.workers import WorkerMetrics, WorkerTotals
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.web.responses import printable

log = structlog.get_logger(scope="ops")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MISSING, _MISSING_TEXT = "mesh_pilot_missing_metrics", "Groups of metrics that could not be collected"

_OF_PROCESS = (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR)

Group = Callable[[PlaneState], Iterator[Metric]]


def versions(state: PlaneState) -> Iterator[Metric]:
    """This program, and for how long it has run."""
    yield one("istio_build", "Which version this is", "gauge", 1, component="pilot", tag=__version__)
    yield one("pilot_info", "Which version this is", "gauge", 1, version=__version__)
    yield one("istiod_uptime_seconds", "Seconds since the start", "gauge", time.time() - state.started)


OF_FIRST: tuple[Group, ...] = (
    versions,
    world.content,
    world.changes,
    identities.authority,
    identities.election,
    sources.sources,
    clusters.cluster_metrics,
    sources.fetches,
    sources.kept,
    identities.trust,
    servers.http,
    identities.registrations,
    webhooks.webhooks,
    push.pushes,
)
"""Groups that the first worker has alone, or all alike."""

GREATEST: tuple[Group, ...] = (xds.failures, xds.findings)
"""Groups of what several workers find in the same objects."""

SUMMED: tuple[Group, ...] = (
    xds.proxies,
    traffic.reports,
    world.quarantine,
    world.rollout,
    identities.signed,
    identities.signer,
    sources.mcp,
    identities.callers,
    world.work,
    world.traces,
    servers.grpc_calls,
    servers.connections,
    servers.output,
)
"""Groups that each worker has for its proxies."""


class Metrics:
    """The Prometheus registry of one control plane."""

    def __init__(self, state: PlaneState) -> None:
        self._registry = CollectorRegistry()
        self._parts = _PlaneCollector(state)
        self._registry.register(self._parts)
        for collector in _OF_PROCESS:
            self._registry.register(collector)

    def of_this_worker(self) -> WorkerMetrics:
        """The metrics that are made of those of all workers."""
        parts = self._parts
        parts.missing = 0
        process = [metric for collector in _OF_PROCESS for metric in collector.collect()]
        summed, greatest = list(parts.collect_groups(SUMMED)), list(parts.collect_groups(GREATEST))
        return WorkerMetrics(os.getpid(), [*summed, parts.missing_metric()], greatest, process)

    def of_all(self, workers: Mapping[int, WorkerMetrics], restarts: Mapping[int, int], total: WorkerTotals) -> bytes:
        """Everything in Prometheus' text format, with the other workers' metrics as they answered."""
        return generate_latest(_Collected(self.metrics_of_all(workers, restarts, total)))

    def metrics_of_all(
        self, workers: Mapping[int, WorkerMetrics], restarts: Mapping[int, int], total: WorkerTotals
    ) -> list[Metric]:
        """The same before they are written."""
        parts = self._parts
        own = self.of_this_worker()
        parts.missing = 0
        of_first = list(parts.collect_groups(OF_FIRST))
        own = attrs.evolve(own, summed=[*own.summed, parts.missing_metric()])
        return [_escaped(metric) for metric in (*of_first, *total.merged({1: own, **workers}, restarts))]

    def metrics(self) -> list[Metric]:
        """Everything, where there is one worker."""
        return list(self._registry.collect())

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        try:
            return generate_latest(self._registry)
        except UnicodeEncodeError:
            self._parts.printable = True
            return generate_latest(self._registry)


class _PlaneCollector(Collector):
    """Collects the metrics of every part at each scrape."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._limiter = LogLimiter()
        self.missing = 0
        """Groups that could not be collected since this was last set to 0."""
        self.printable = False
        """True if labels with lone surrogates exist, so that all labels have to be checked."""

    def describe(self) -> Iterator[Metric]:
        """Empty, so that registration neither checks names nor calls parts before they run."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics. A group that fails is omitted and counted in ``mesh_pilot_missing_metrics``."""
        self.missing = 0
        for metric in self.collect_groups((*OF_FIRST, *GREATEST, *SUMMED)):
            yield _escaped(metric) if self.printable else metric
        yield self.missing_metric()

    def missing_metric(self) -> Metric:
        """The number of groups that could not be collected."""
        return one(_MISSING, _MISSING_TEXT, "gauge", self.missing)

    def collect_groups(self, groups: Iterable[Group]) -> Iterator[Metric]:
        """The metrics of these groups."""
        for group in groups:
            name = getattr(group, "__name__", "")
            metrics: list[Metric] = []
            is_logged = partial(self._is_news, name)
            with Contained(log, "cannot collect a group of metrics", group=name, is_logged=is_logged) as failed:
                metrics = list(group(self._state))
            self.missing += failed.error is not None
            yield from metrics

    def _is_news(self, name: str) -> bool:
        return self._limiter.admit(name, time.monotonic()) is not None


@attrs.frozen
class _Collected:
    """The part of a registry that ``generate_latest`` needs: metrics that are collected already."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def _escaped(metric: Metric) -> Metric:
    """The same metric with printable labels."""
    samples = (
        s._replace(labels={name: printable(str(value)) for name, value in s.labels.items()}) for s in metric.samples
    )
    metric.samples = list(samples)
    return metric
