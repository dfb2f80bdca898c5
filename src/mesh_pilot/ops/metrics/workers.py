"""Metrics of several workers as those of one control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
from prometheus_client.core import Metric
from prometheus_client.samples import Sample

Labels = tuple[tuple[str, str], ...]


@attrs.frozen
class WorkerMetrics:
    """The metrics of one worker."""

    pid: int
    summed: Sequence[Metric]
    """Added up."""
    greatest: Sequence[Metric]
    """The greatest value counts."""
    process: Sequence[Metric]
    """Shown for each worker."""


@attrs.define
class _Worker:
    """The last answer of a worker. Mutable."""

    latest: WorkerMetrics
    restarts: int
    """Restarts of the worker before that answer."""
    is_up: bool = True


class WorkerTotals:
    """Adds up metrics so that a worker's end, or its silence, makes no counter go back.

    State: the latest metrics of each worker, and the counters of workers that have ended.
    """

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._past: list[Metric] = []
        self._past_greatest: list[Metric] = []

    def merged(self, found: Mapping[int, WorkerMetrics], restarts: Mapping[int, int]) -> Iterator[Metric]:
        """The metrics of all workers; ``found``: those that have answered, by number."""
        # A worker that ended keeps its counters in the sum, so that none goes back; one that is only silent keeps
        # its last numbers. The two are told apart by the process id and the count of restarts.
        for number, worker in [*self._workers.items()]:
            worker.is_up = False
            is_another = number in found and found[number].pid != worker.latest.pid
            if is_another or worker.restarts != restarts.get(number, 0):
                self._end(self._workers.pop(number).latest)
        for number, metrics in found.items():
            self._workers[number] = _Worker(metrics, restarts.get(number, 0))
        latest = {number: worker.latest for number, worker in sorted(self._workers.items())}
        summed = [metric for metrics in latest.values() for metric in metrics.summed]
        yield from _combined([*summed, *self._past], _add)
        greatest = [metric for metrics in latest.values() for metric in metrics.greatest]
        yield from _combined([*greatest, *self._past_greatest], max)
        up = [(number, metrics) for number, metrics in latest.items() if self._workers[number].is_up]
        labelled = [_labelled(metric, number) for number, metrics in up for metric in metrics.process]
        yield from _combined(labelled, max)
        yield _by_worker(
            "mesh_pilot_worker_up",
            "1 if a worker has answered for these metrics",
            "gauge",
            {number: self._workers[number].is_up if number in self._workers else False for number in (1, *restarts)},
        )
        yield _by_worker("mesh_pilot_worker_restarts", "Restarts of a worker that ended", "unknown", restarts)

    def _end(self, latest: WorkerMetrics) -> None:
        """A worker ended: its counters stay, its gauges do not."""
        self._past = _combined([*self._past, *_counters(latest.summed)], _add)
        self._past_greatest = _combined([*self._past_greatest, *_counters(latest.greatest)], max)


def _by_worker(name: str, help_text: str, kind: str, values: Mapping[int, float]) -> Metric:
    metric = Metric(name, help_text, kind)
    for number, value in values.items():
        metric.add_sample(name, {"worker": str(number)}, float(value))
    return metric


def _counters(metrics: Iterable[Metric]) -> list[Metric]:
    return [metric for metric in metrics if metric.type in ("unknown", "histogram")]


def _add(one: float, other: float) -> float:
    return one + other


def _combined(metrics: Iterable[Metric], combine: Callable[[float, float], float]) -> list[Metric]:
    """One metric of each name, with one sample of each name and labels."""
    found: dict[str, Metric] = {}
    samples: dict[str, dict[tuple[str, Labels], Sample]] = {}
    for metric in metrics:
        found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        of_metric = samples.setdefault(metric.name, {})
        for sample in metric.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            known = of_metric.get(key)
            value = sample.value if known is None else combine(known.value, sample.value)
            of_metric[key] = sample._replace(value=value)
    for name, metric in found.items():
        metric.samples = [*samples[name].values()]
    return [*found.values()]


def _labelled(metric: Metric, number: int) -> Metric:
    """The same metric with the worker as a label."""
    labelled = Metric(metric.name, metric.documentation, metric.type)
    labelled.samples = [s._replace(labels={**s.labels, "worker": str(number)}) for s in metric.samples]
    return labelled
