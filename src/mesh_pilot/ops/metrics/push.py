"""The metrics of a control plane, pushed as OTLP: those of ``/metrics``, of all workers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import structlog
import trio
from prometheus_client.core import Metric

from mesh_pilot import __version__
from mesh_pilot.model.redaction import redacted
from mesh_pilot.net.otlp.data_points import DataPoints, SeriesSample
from mesh_pilot.net.otlp.push import Hold, MetricsPush
from mesh_pilot.ops.metrics.samples import metric, one
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.tracing.settings import MetricsPushSettings

SCOPE = "mesh-pilot"
_AT_ONCE = 20
"""Metrics that are converted before other tasks have their turn."""

_COUNTERS = {"unknown": "counter"}
"""Istio's counters, whose type Prometheus' client cannot say (``samples``)."""


def metrics_push(
    settings: MetricsPushSettings, state: PlaneState, metrics: Callable[[], Awaitable[Sequence[Metric]]]
) -> MetricsPush:
    """The task that pushes; its numbers are among the metrics of the plane from now on."""

    async def collect(hold: Hold) -> None:
        found = await metrics()
        points = DataPoints(settings.receiver.resource(), time.time(), __version__)
        held = 0
        for number, body in enumerate(_requests(points, found, state.started)):
            if body:
                hold(body, points.sent - held)
                held = points.sent
            if not number % _AT_ONCE:
                await trio.lowlevel.checkpoint()

    push = MetricsPush(settings.push, collect, settings.receiver.tls, log=structlog.get_logger(scope="ops"))
    state.kept[MetricsPush] = push
    return push


def pushes(state: PlaneState) -> Iterator[Metric]:
    """Numbers of the pushes."""
    push = state.kept.get(MetricsPush)
    own = push.statistics() if isinstance(push, MetricsPush) else None
    made = metric("mesh_pilot_metrics_pushes", "Pushes of metrics, by what became of them", "counter")
    for result, count in (("exported", own.pushes_total if own else 0), ("failed", own.failures_total if own else 0)):
        made.add_sample(made.name, {"result": result}, count)
    yield made
    points = metric("mesh_pilot_metrics_points", "Data points of pushes, by what became of them", "counter")
    taken, rejected = (own.points_total, own.points_rejected_total) if own else (0, 0)
    for result, count in (("exported", taken), ("rejected", rejected)):
        points.add_sample(points.name, {"result": result}, count)
    yield points
    text = "When a receiver took the last push; 0: none yet"
    last = own.last_success if own else 0.0
    yield one("mesh_pilot_metrics_last_push_timestamp_seconds", text, "gauge", last)


def _requests(points: DataPoints, metrics: Iterable[Metric], began: float) -> Iterator[bytes]:
    """Whole requests, and an empty string after each metric that completes none."""
    yield from points.scope(SCOPE, began)
    for found in metrics:
        yield from points.family(found.name, _COUNTERS.get(found.type, found.type), found.documentation)
        for each in found.samples:
            labels = {name: redacted(str(value)) for name, value in each.labels.items()}
            yield from points.add(SeriesSample(each.name, labels, float(each.value)))
        yield b""
    yield from points.end()
