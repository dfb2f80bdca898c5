"""Samples of Prometheus as OTLP's data points, in requests of bounded size.

Pure: samples in, bytes out. Temporality is cumulative, so a request that is lost costs resolution and no count.
Names stay as they are. Counters are monotonic sums; histograms have the count of each bucket where Prometheus has
running totals; samples without a type are gauges. Sources: OpenTelemetry, ``metrics.proto`` and "Prometheus and
OpenMetrics Compatibility".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.net.otlp.values import Value, attributes, double, nanoseconds, text

POINTS_AT_ONCE = 1000
BYTES_AT_ONCE = 1024 * 1024
"""Data points of a request, and characters of their labels; the last point may exceed the latter."""

_CUMULATIVE = 2
_HISTOGRAM, _SUMMARY, _COUNTER = "histogram", "summary", "counter"
_WITH_START = (_COUNTER, _HISTOGRAM, _SUMMARY)
_MOST_COUNT = 2**63
_MOST_SECONDS = 1e10


@attrs.frozen(eq=False)
class SeriesSample:
    """One line of Prometheus."""

    name: str
    labels: Mapping[str, str]
    value: float
    at: float | None = None
    """Unix time in seconds, if it is not that of the page."""


class Starts:
    """The start of the counters of one page of others, by what is seen of them: counters that go down have begun again.

    State: when the page was first seen, or seen last before its counters went down; some of its counters.
    """

    MOST = 1000
    """Counters that are watched. All of a program begin again with it, so a few are as good as all."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seen_at = 0.0
        self._now = 0.0
        self._watched: dict[object, float] = {}

    def page(self, now: float) -> None:
        """The page is read at this time."""
        self._seen_at, self._now = self._now, now
        if self._began is None or now < self._began:  # the clock was set back
            self._began = now

    def of(self, key: object, value: float) -> float:
        """The start of a counter that has this value now."""
        last = self._watched.get(key)
        if last is not None and value < last:
            self._began = self._seen_at
            self._watched.clear()
        if last is not None or len(self._watched) < self.MOST:
            self._watched[key] = value
        return self._began or self._now


@attrs.define(eq=False)
class _OpenSeries:
    """The samples of one histogram or summary so far."""

    labels: Mapping[str, str]
    at: float | None
    parts: list[tuple[float, float]] = attrs.field(factory=list)
    """Bounds with running totals, or quantiles with values."""
    sum: float | None = None
    count: float | None = None


class DataPoints:
    """Takes samples, family by family, and gives requests.

        points = DataPoints({"service.name": "web"}, now)
        points.scope("envoy", starts)
        points.family("requests_total", "counter", "Requests")
        for body in points.add(SeriesSample("requests_total", {"code": "200"}, 3.0)): ...   # whenever one is full
        for body in points.end(): ...

    State: the request in the making, the family, and the histogram or summary whose samples are not complete.
    """

    def __init__(self, resource: Mapping[str, Value], now: float, version: str = "") -> None:
        """``now``: Unix time of the samples; ``version``: of this program."""
        self.sent = 0
        """Data points in requests so far."""
        self.left_out = 0
        """Histograms and summaries whose numbers do not fit together."""
        self._resource = {"attributes": attributes(resource)}
        self._version = version
        self._now = now
        self._scopes: list[dict[str, Any]] = []
        self._held = self._size = 0
        self._scope = ""
        self._start: float | Starts = now
        self._name, self._kind, self._help = "", "", ""
        self._metric: list[Any] | None = None
        """The data points of the metric that the next one belongs to."""
        self._of = ""
        self._pending: _OpenSeries | None = None

    def scope(self, name: str, start: float | Starts) -> Iterator[bytes]:
        """From here on samples are of another source; ``start``: of its counters, in Unix time."""
        yield from self._complete()
        self._scope, self._start = name, start
        if isinstance(start, Starts):
            start.page(self._now)
        self._scopes.append(self._new_scope())
        self._metric = None

    def family(self, name: str, kind: str, help_text: str = "") -> Iterator[bytes]:
        """From here on samples are of another family; ``kind`` is Prometheus' type."""
        yield from self._complete()
        self._name, self._kind, self._help, self._metric = name, kind, help_text, None

    def add(self, sample: SeriesSample) -> Iterator[bytes]:
        """Take a sample."""
        if self._kind in (_HISTOGRAM, _SUMMARY) and (suffix := self._suffix(sample.name)) is not None:
            yield from self._add_part(sample, suffix)
            return
        if self._kind in _WITH_START and sample.name == f"{self._name.removesuffix('_total')}_created":
            return  # no metric, but a time
        yield from self._complete()
        point: dict[str, Any] = {"asDouble": double(sample.value)}
        if self._kind == _COUNTER and sample.name in (self._name, f"{self._name}_total"):
            point["startTimeUnixNano"] = self._started(sample.name, sample.labels, sample.value)
            shape = "sum"
        else:
            shape = "gauge"
        yield from self._point(sample.name, shape, sample.labels, sample.at, point)

    def end(self) -> Iterator[bytes]:
        """The last request, unless it would be empty."""
        yield from self._complete()
        if self._held:
            yield self._request()

    # -- histograms and summaries

    def _suffix(self, name: str) -> str | None:
        """The end of a name that says what the sample is, such as ``_bucket``; None for one of something else."""
        if not name.startswith(self._name):
            return None
        suffix = name[len(self._name) :]
        known = ("_bucket", "_sum", "_count") if self._kind == _HISTOGRAM else ("", "_sum", "_count")
        return suffix if suffix in known else None

    def _add_part(self, sample: SeriesSample, suffix: str) -> Iterator[bytes]:
        marker = "le" if self._kind == _HISTOGRAM else "quantile"
        own = {name: value for name, value in sample.labels.items() if name != marker}
        pending = self._pending
        if pending is None or pending.labels != own:
            yield from self._complete()
            pending = self._pending = _OpenSeries(own, sample.at)
        if suffix == "_sum":
            pending.sum = sample.value
        elif suffix == "_count":
            pending.count = sample.value
        else:
            try:
                pending.parts.append((float(sample.labels[marker]), sample.value))
            except (KeyError, ValueError):
                pending.parts.append((math.nan, sample.value))  # judged with the others

    def _complete(self) -> Iterator[bytes]:
        """The data point of the histogram or summary whose samples have come."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        shape = self._kind
        point = _histogram(pending) if shape == _HISTOGRAM else _summary(pending)
        if point is None:
            self.left_out += 1
            return
        point["startTimeUnixNano"] = self._started(self._name, pending.labels, float(point["count"]))
        yield from self._point(self._name, shape, pending.labels, pending.at, point)

    # -- requests

    def _started(self, name: str, labels: Mapping[str, str], value: float) -> str:
        start = self._start
        if isinstance(start, Starts):
            start = start.of((self._scope, name, *labels.values()), value)
        return nanoseconds(start)

    def _point(
        self, name: str, shape: str, labels: Mapping[str, str], at: float | None, point: dict[str, Any]
    ) -> Iterator[bytes]:
        if self._held >= POINTS_AT_ONCE or self._size >= BYTES_AT_ONCE:
            yield self._request()
        if self._metric is None or self._of != name:
            self._metric, self._of = self._new_metric(name, shape), name
        if labels:
            point["attributes"] = attributes(labels)
        point["timeUnixNano"] = nanoseconds(at if at is not None and 0 < at < _MOST_SECONDS else self._now)
        self._metric.append(point)
        self._held += 1
        self._size += sum(len(key) + len(value) for key, value in labels.items())

    def _new_metric(self, name: str, shape: str) -> list[Any]:
        points: list[Any] = []
        data: dict[str, Any] = {"dataPoints": points}
        if shape in ("sum", _HISTOGRAM):
            data["aggregationTemporality"] = _CUMULATIVE
        if shape == "sum":
            data["isMonotonic"] = True
        metric = {"name": text(name), shape: data}
        if self._help:
            metric["description"] = text(self._help)
        if not self._scopes:
            self._scopes.append(self._new_scope())
        self._scopes[-1]["metrics"].append(metric)
        return points

    def _new_scope(self) -> dict[str, Any]:
        return {"scope": {"name": self._scope, "version": self._version}, "metrics": []}

    def _request(self) -> bytes:
        scopes = [scope for scope in self._scopes if scope["metrics"]]
        body = json.dumps({"resourceMetrics": [{"resource": self._resource, "scopeMetrics": scopes}]})
        self.sent += self._held
        self._scopes, self._metric, self._held, self._size = [self._new_scope()], None, 0, 0
        return body.encode()


def _histogram(found: _OpenSeries) -> dict[str, Any] | None:
    """The data point; None for buckets that do not fit together."""
    # One bad number makes a receiver refuse the whole request, so each is judged: bounds are numbers and differ, totals
    # are counts and do not fall, and there is a total of all, of the last bucket or of its own.
    totals = sorted(found.parts)
    if any(not bound > -math.inf or not 0 <= total < _MOST_COUNT for bound, total in totals):
        return None
    whole = totals[-1][1] if totals and totals[-1][0] == math.inf else found.count
    if whole is None or not 0 <= whole < _MOST_COUNT:
        return None
    finite = [(bound, total) for bound, total in totals if bound != math.inf]
    counts, before = [], 0
    for _, total in (*finite, (math.inf, whole)):
        counts.append(int(total) - before)
        before = int(total)
    if min(counts) < 0 or len({bound for bound, _ in finite}) != len(finite):
        return None
    point: dict[str, Any] = {"count": str(int(whole)), "bucketCounts": [str(count) for count in counts]}
    point["explicitBounds"] = [bound for bound, _ in finite]
    if found.sum is not None:
        point["sum"] = double(found.sum)
    return point


def _summary(found: _OpenSeries) -> dict[str, Any] | None:
    count = found.count or 0.0
    if not 0 <= count < _MOST_COUNT or not all(math.isfinite(quantile) for quantile, _ in found.parts):
        return None
    values = [{"quantile": quantile, "value": double(value)} for quantile, value in sorted(found.parts)]
    return {"count": str(int(count)), "sum": double(found.sum or 0.0), "quantileValues": values}
