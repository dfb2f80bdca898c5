"""Samples of Prometheus as OTLP: what each type becomes, when counters begin, and how much a request holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.core import Metric

from mesh_pilot.net.otlp.data_points import BYTES_AT_ONCE, POINTS_AT_ONCE, DataPoints, SeriesSample, Starts
from tests.support.otel import attributes_of, metrics_of, parsed, scopes_of

NOW = 1_700_000_000.25
BEGAN = 1_600_000_000.0
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def requests(
    samples: Iterable[tuple[str, str, Iterable[SeriesSample]]], start: float | Starts = BEGAN, now: float = NOW
) -> list[bytes]:
    """The requests of families, each a name, a type and samples."""
    points = DataPoints({"service.name": "web"}, now, "1.0")
    found = [*points.scope("envoy", start)]
    for name, kind, each in samples:
        found += points.family(name, kind, f"Help of {name}")
        for sample in each:
            found += points.add(sample)
    return [*found, *points.end()]


def converted(name: str, kind: str, *samples: SeriesSample, start: float | Starts = BEGAN) -> Mapping[str, object]:
    return metrics_of(*map(parsed, requests([(name, kind, samples)], start)))


def test_a_request_says_whose_metrics_they_are_and_where_they_come_from() -> None:
    (body,) = requests([("up", "gauge", [SeriesSample("up", {}, 1)])])
    (resource,) = parsed(body).resource_metrics
    assert attributes_of(resource.resource) == {"service.name": "web"}
    (scope,) = scopes_of(resource)
    assert (scope.instrumentation_library.name, scope.instrumentation_library.version) == ("envoy", "1.0")
    (metric,) = scope.metrics
    assert (metric.name, metric.description) == ("up", "Help of up")
    (point,) = metric.gauge.data_points
    assert (point.as_double, point.time_unix_nano, point.start_time_unix_nano) == (1, 1_700_000_000_250_000_000, 0)


@pytest.mark.parametrize(("family", "name"), [("requests_total", "requests_total"), ("requests", "requests_total")])
def test_a_counter_is_a_monotonic_sum_since_its_start(family: str, name: str) -> None:
    samples = [SeriesSample(name, {"code": code}, value) for code, value in (("200", 3.0), ("503", 1.5))]
    metric = converted(family, "counter", *samples)[name]
    assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == CUMULATIVE
    ok, bad = metric.sum.data_points
    assert (attributes_of(ok), ok.as_double) == ({"code": "200"}, 3)
    assert (attributes_of(bad), bad.as_double) == ({"code": "503"}, 1.5)
    assert {point.start_time_unix_nano for point in (ok, bad)} == {int(BEGAN * 1e9)}


def test_what_has_no_type_is_a_gauge() -> None:
    for kind in ("untyped", "unknown", "info", "gauge", ""):
        (point,) = converted("x", kind, SeriesSample("x", {}, 2))["x"].gauge.data_points
        assert point.as_double == 2
    found = converted("x", "counter", SeriesSample("other", {}, 2), SeriesSample("x_created", {}, BEGAN))
    assert list(found) == ["other"]
    assert found["other"].gauge.data_points


def test_a_histogram_has_the_count_of_each_bucket() -> None:
    lines = [
        SeriesSample("t_bucket", {"le": "0.5", "a": "x"}, 2),
        SeriesSample("t_bucket", {"le": "1", "a": "x"}, 5),
        SeriesSample("t_bucket", {"le": "+Inf", "a": "x"}, 6),
        SeriesSample("t_sum", {"a": "x"}, 7.5),
        SeriesSample("t_count", {"a": "x"}, 6),
        SeriesSample("t_bucket", {"le": "+Inf", "a": "y"}, 0),
        SeriesSample("t_sum", {"a": "y"}, 0),
        SeriesSample("t_count", {"a": "y"}, 0),
    ]
    metric = converted("t", "histogram", *lines)["t"]
    assert metric.histogram.aggregation_temporality == CUMULATIVE
    first, other = metric.histogram.data_points
    assert [*first.explicit_bounds] == [0.5, 1]
    assert [*first.bucket_counts] == [2, 3, 1]
    assert (first.count, first.sum, first.start_time_unix_nano) == (6, 7.5, int(BEGAN * 1e9))
    assert (attributes_of(first), attributes_of(other)) == ({"a": "x"}, {"a": "y"})
    assert ([*other.explicit_bounds], [*other.bucket_counts], other.count) == ([], [0], 0)


def test_a_summary_has_its_quantiles() -> None:
    lines = [
        SeriesSample("t", {"quantile": "0.99"}, math.nan),
        SeriesSample("t", {"quantile": "0.5"}, 2),
        SeriesSample("t_sum", {}, 7.5),
        SeriesSample("t_count", {}, 6),
    ]
    (point,) = converted("t", "summary", *lines)["t"].summary.data_points
    assert [each.quantile for each in point.quantile_values] == [0.5, 0.99]
    assert math.isnan(point.quantile_values[1].value)
    assert (point.count, point.sum) == (6, 7.5)


@pytest.mark.parametrize(
    "lines",
    [
        [("_bucket", "1", 5), ("_bucket", "2", 3), ("_count", "", 5)],  # running totals do not fall
        [("_bucket", "1", 5), ("_count", "", 3)],
        [("_bucket", "one", 5), ("_count", "", 5)],
        [("_bucket", "", 5), ("_count", "", 5)],
        [("_bucket", "1", math.nan), ("_count", "", 5)],
        [("_bucket", "1", -1), ("_count", "", 5)],
        [("_bucket", "1", 1), ("_bucket", "1.0", 1), ("_count", "", 5)],
        [("_bucket", "1", 1)],
        [("_sum", "", 1)],
        [("_count", "", math.inf)],
        [("_count", "", 1e300)],
    ],
)
def test_buckets_that_are_none_cost_their_histogram_alone(lines: list[tuple[str, str, float]]) -> None:
    points = DataPoints({}, NOW)
    bodies = [*points.scope("a", BEGAN), *points.family("t", "histogram")]
    for suffix, bound, value in lines:
        bodies += points.add(SeriesSample(f"t{suffix}", {"le": bound} if bound else {}, value))
    bodies += [*points.family("up", "gauge"), *points.add(SeriesSample("up", {}, 1)), *points.end()]
    assert list(metrics_of(*map(parsed, bodies))) == ["up"]
    assert (points.left_out, points.sent) == (1, 1)


def test_numbers_that_json_does_not_have_and_texts_that_nobody_can_read_arrive() -> None:
    values = [math.inf, -math.inf, math.nan, 1e308]
    samples = [SeriesSample("x", {"of": f"\ud800{value}"}, value) for value in values]
    points = converted("x", "gauge", *samples)["x"].gauge.data_points
    assert [point.as_double for point in points[:2]] == values[:2]
    assert math.isnan(points[2].as_double) and points[3].as_double == 1e308
    assert attributes_of(points[0]) == {"of": "\\ud800inf"}


def test_a_time_of_the_application_is_kept() -> None:
    (point,) = converted("x", "gauge", SeriesSample("x", {}, 1, at=1_500_000_000.125))["x"].gauge.data_points
    assert point.time_unix_nano == 1_500_000_000_125_000_000


def test_a_request_has_a_bounded_number_of_points_and_none_is_lost() -> None:
    count = 2 * POINTS_AT_ONCE + 1
    bodies = requests([("x", "counter", [SeriesSample("x", {"n": str(n)}, n) for n in range(count)])])
    sizes = [len(metrics_of(parsed(body))["x"].sum.data_points) for body in bodies]
    assert sizes == [POINTS_AT_ONCE, POINTS_AT_ONCE, 1]
    points = metrics_of(*map(parsed, bodies))["x"].sum.data_points
    assert [point.as_double for point in points] == list(range(count))
    long = [SeriesSample("x", {"n": str(n) + "x" * (BYTES_AT_ONCE // 4)}, n) for n in range(10)]
    assert [len(metrics_of(parsed(body))["x"].gauge.data_points) for body in requests([("x", "gauge", long)])] == [
        4,
        4,
        2,
    ]


def test_every_part_of_a_page_is_a_scope_and_an_empty_one_is_not_sent() -> None:
    points = DataPoints({}, NOW)
    bodies = [*points.scope("envoy", BEGAN), *points.scope("application", BEGAN)]
    bodies += [*points.family("x", "gauge"), *points.add(SeriesSample("x", {}, 1))]
    bodies += [*points.scope("mesh-pilot", BEGAN), *points.family("x", "gauge"), *points.add(SeriesSample("x", {}, 2))]
    (request,) = map(parsed, [*bodies, *points.end()])
    assert [scope.instrumentation_library.name for scope in scopes_of(request.resource_metrics[0])] == [
        "application",
        "mesh-pilot",
    ]
    assert [*DataPoints({}, NOW).end()] == []


def of_page(starts: Starts, now: float, **values: float) -> dict[str, float]:
    """The starts of the counters of a page that is read now."""
    points = DataPoints({}, now)
    bodies = [*points.scope("application", starts)]
    for name, value in values.items():
        bodies += [*points.family(name, "counter"), *points.add(SeriesSample(name, {}, value))]
    found = metrics_of(*map(parsed, [*bodies, *points.end()]))
    return {name: metric.sum.data_points[0].start_time_unix_nano / 1e9 for name, metric in found.items()}


def test_counters_of_others_begin_when_they_are_seen_and_again_when_they_go_down() -> None:
    starts = Starts()
    assert of_page(starts, 100, a=5, b=7) == {"a": 100, "b": 100}
    assert of_page(starts, 160, a=6, b=7) == {"a": 100, "b": 100}
    assert of_page(starts, 220, a=1, b=9, c=0) == {"a": 160, "b": 160, "c": 160}
    assert of_page(starts, 280, a=2, b=9) == {"a": 160, "b": 160}
    assert of_page(starts, 40, a=3) == {"a": 40}  # the clock was set back


def test_as_many_counters_are_watched_as_is_enough_to_see_a_restart() -> None:
    starts = Starts()
    for value in (5, 1):
        starts.page(100 * value)
        for number in range(3 * Starts.MOST):
            starts.of(number, value)
    assert len(starts._watched) == Starts.MOST


def test_metrics_of_prometheus_client_are_converted() -> None:
    registry = CollectorRegistry()
    Counter("hits", "Hits", ["path"], registry=registry).labels("/").inc(3)
    Gauge("heat", "Heat", registry=registry).set(36.6)
    histogram = Histogram("wait", "Wait", registry=registry, buckets=(1, 2))
    for seconds in (0.5, 1.5, 9):
        histogram.observe(seconds)
    Summary("size", "Size", registry=registry).observe(4)
    found = metrics_of(
        *map(
            parsed,
            requests(
                [
                    (m.name, m.type, [SeriesSample(s.name, s.labels, s.value) for s in m.samples])
                    for m in registry.collect()
                ]
            ),
        )
    )
    assert set(found) == {"hits_total", "heat", "wait", "size"}
    assert found["hits_total"].sum.data_points[0].as_double == 3
    assert [*found["wait"].histogram.data_points[0].bucket_counts] == [1, 1, 1]
    assert found["size"].summary.data_points[0].sum == 4


COUNTS = st.lists(st.integers(0, 100), min_size=1, max_size=8)


@given(COUNTS, st.floats(allow_nan=False, allow_infinity=False))
def test_the_counts_of_buckets_add_up_to_the_running_totals(counts: list[int], total: float) -> None:
    metric = Metric("t", "", "histogram")
    running = 0
    for number, count in enumerate(counts):
        running += count
        bound = "+Inf" if number == len(counts) - 1 else str(number)
        metric.add_sample("t_bucket", {"le": bound}, running)
    metric.add_sample("t_sum", {}, total)
    samples = [SeriesSample(each.name, each.labels, each.value) for each in metric.samples]
    (point,) = converted("t", "histogram", *samples)["t"].histogram.data_points
    assert ([*point.bucket_counts], point.count, point.sum) == (counts, sum(counts), total)


NAMES = st.sampled_from(["t", "t_total", "t_bucket", "t_sum", "t_count", "t_created", "u"])
LABELS = st.dictionaries(st.sampled_from(["le", "quantile", "a"]), st.sampled_from(["", "0.5", "+Inf", "x", "nan"]))
SAMPLES = st.lists(st.builds(SeriesSample, NAMES, LABELS, st.floats(), st.none() | st.floats(-1e9, 1e9)), max_size=20)


@given(st.sampled_from(["counter", "gauge", "histogram", "summary", "untyped", "x"]), SAMPLES, st.booleans())
def test_whatever_comes_each_request_is_one_that_opentelemetry_reads(
    kind: str, samples: list[SeriesSample], is_foreign: bool
) -> None:
    for body in requests([("t", kind, samples)], Starts() if is_foreign else BEGAN):
        parsed(body)
