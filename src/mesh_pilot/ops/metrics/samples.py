"""Metrics from numbers.

Istio's counters do not end in ``_total``. Prometheus' Python client would append it, so they are exposed as untyped,
which makes no difference to queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from mesh_pilot.model.histogram import HistogramState
from mesh_pilot.model.resource import RESOURCE_TYPES

MOST_SERIES = 200
"""Series of a metric with a label whose values are not ours, such as the version that a proxy claims."""

REST = "(others)"
"""The label of the series that stands for all beyond these."""

MAX_LABEL = 256
"""Characters of such a value."""

TYPE_LABELS = {url: t.short.lower() for url, t in RESOURCE_TYPES.items()}
"""``cds``, ``eds``, ...: types as Istio's labels have them."""


def metric(name: str, text: str, kind: str) -> Metric:
    return Metric(name, text, "unknown" if kind == "counter" else kind)


def one(name: str, text: str, kind: str, value: float, /, **labels: str) -> Metric:
    """A metric with one series."""
    found = metric(name, text, kind)
    found.add_sample(name, labels, value)
    return found


def several(name: str, text: str, kind: str, label: str, values: Mapping[str, float]) -> Metric:
    """A metric with a series for each value of a label."""
    found = metric(name, text, kind)
    for value, number in sorted(values.items()):
        found.add_sample(name, {label: value}, number)
    return found


def bounded(name: str, text: str, kind: str, label: str, values: Mapping[str, float]) -> Metric:
    """The same for values that others make up: the greatest `MOST_SERIES`, and the sum of the rest."""
    shown: dict[str, float] = {}
    greatest = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    for value, number in greatest[:MOST_SERIES]:
        value = value[:MAX_LABEL]
        shown[value] = shown.get(value, 0) + number
    if len(greatest) > MOST_SERIES:
        shown[REST] = shown.get(REST, 0) + sum(number for _, number in greatest[MOST_SERIES:])
    return several(name, text, kind, label, shown)


def by_type(name: str, text: str, values: Mapping[str, int], *, always: bool = False) -> Metric:
    """A counter by xDS type; with ``always``, types without a value are 0, so that rates have a start."""
    found = metric(name, text, "counter")
    for type_url, label in TYPE_LABELS.items():
        if always or type_url in values:
            found.add_sample(name, {"type": label}, values.get(type_url, 0))
    return found


def histogram(name: str, text: str, found: HistogramState) -> Metric:
    """A histogram with one series."""
    return histograms(name, text, [({}, found)])


def histograms(name: str, text: str, found: Iterable[tuple[dict[str, str], HistogramState]]) -> Metric:
    """A histogram with a series for each of these labels; bounds are written as Go does."""
    made = metric(name, text, "histogram")
    for labels, each in found:
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in each.bounds), "+Inf"), each.counts, strict=True):
            total += count
            made.add_sample(f"{name}_bucket", {**labels, "le": bound}, total)
        made.add_sample(f"{name}_sum", labels, each.sum)
        made.add_sample(f"{name}_count", labels, total)
    return made
