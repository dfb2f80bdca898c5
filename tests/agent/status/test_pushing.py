"""What the agent pushes: the pages of Envoy and the application, and its own numbers, as OTLP."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.settings import ExportSettings
from mesh_pilot.agent.status.exports import MetricsExports, read_exports
from mesh_pilot.agent.status.pushing import AgentPush, resource_of
from mesh_pilot.agent.status.samples import Family, Lines
from mesh_pilot.agent.status.scraping import MergedMetrics, ScrapeTarget
from mesh_pilot.net.otlp.data_points import SeriesSample
from mesh_pilot.net.otlp.push import PushSettings
from tests.support.envoy import eventually
from tests.support.otel import OtelReceiver, attributes_of, collector, metrics_of, parsed, receiver, scopes_of
from tests.support.small_http import Said, small_http

TEXT = "text/plain; version=0.0.4"
ENVOY = b"""\
# TYPE envoy_cluster_upstream_rq counter
envoy_cluster_upstream_rq{envoy_cluster_name="a"} 3
# TYPE envoy_wasmcustom_istio_requests_total counter
envoy_wasmcustom_istio_requests_total{reporter="source",path="a\\"}\\\\n\\nb"} 5
# TYPE envoy_cluster_wait histogram
envoy_cluster_wait_bucket{le="0.5"} 1
envoy_cluster_wait_bucket{le="+Inf"} 3
envoy_cluster_wait_sum{} 9.5
envoy_cluster_wait_count{} 3
# TYPE envoy_server_live gauge
envoy_server_live{} 1
"""
APPLICATION = b"""\
# HELP orders_total Orders\\\\n
# TYPE orders_total counter
orders_total 7 1700000000000
bad line here
plain 2"""
NODE = EnvoyNode("web-1", "shop", labels={"app": "web", "version": "v2"}, metadata={"CLUSTER_ID": "dc1"})


@attrs.frozen
class Numbers:
    answers_total: int = 4
    is_fresh: bool = True


def no_tls(roots: Path | None) -> ssl.SSLContext:
    raise AssertionError("no TLS here")


def made(exports: MetricsExports, envoy: int, application: int) -> AgentPush:
    target = ScrapeTarget("application", f"http://127.0.0.1:{application}/metrics")
    metrics = MergedMetrics(f"127.0.0.1:{envoy}", [target], {"dns": Numbers})
    return AgentPush(Observable(exports), metrics, lambda: resource_of(NODE), no_tls)


async def test_the_pages_are_pushed_each_as_a_scope() -> None:
    async with (
        receiver() as its,
        small_http({"/stats/prometheus": Said(ENVOY, TEXT)}) as envoy,
        small_http({"/metrics": Said(APPLICATION, TEXT)}) as application,
        trio.open_nursery() as nursery,
    ):
        push = made(MetricsExports(push=PushSettings(its.url, 0.2)), envoy.port, application.port)
        nursery.start_soon(push.run)
        await eventually(lambda: len(its.requests) >= 2)
        nursery.cancel_scope.cancel()
    (resource,) = its.requests[-1].resource_metrics
    assert (
        attributes_of(resource.resource).items()
        >= {
            "service.name": "web",
            "service.namespace": "shop",
            "service.version": "v2",
            "service.instance.id": "web-1.shop",
            "dataplane": "web-1.shop",
            "namespace": "shop",
            "workload": "web",
            "cluster": "dc1",
        }.items()
    )
    names = [scope.instrumentation_library.name for scope in scopes_of(resource)]
    assert names == ["envoy", "application", "mesh-pilot"]
    found = its.metrics
    assert found["envoy_cluster_upstream_rq"].sum.data_points[0].as_double == 3
    (requests,) = found["istio_requests_total"].sum.data_points
    assert attributes_of(requests) == {"reporter": "source", "path": 'a"}\\n\nb'}
    assert [*found["envoy_cluster_wait"].histogram.data_points[0].bucket_counts] == [1, 2]
    assert found["envoy_server_live"].gauge.data_points[0].as_double == 1
    assert found["orders_total"].description == "Orders\\n"
    assert found["orders_total"].sum.data_points[0].time_unix_nano == 1_700_000_000 * 10**9
    assert found["plain"].gauge.data_points[0].as_double == 2
    assert found["mesh_pilot_agent_dns_answers_total"].sum.data_points[0].as_double == 4
    assert found["mesh_pilot_agent_dns_is_fresh"].gauge.data_points[0].as_double == 1
    assert "bad" not in found
    first, second = (metrics_of(each)["istio_requests_total"].sum.data_points[0] for each in its.requests[:2])
    assert first.start_time_unix_nano == first.time_unix_nano == second.start_time_unix_nano < second.time_unix_nano


async def test_what_is_away_costs_its_own_metrics_and_the_receiver_may_change() -> None:
    async with (
        receiver() as its,
        receiver() as other,
        small_http({"/metrics": Said(APPLICATION, TEXT)}) as application,
        trio.open_nursery() as nursery,
    ):
        exports = Observable(MetricsExports(push=PushSettings(its.url, 0.1)))
        target = ScrapeTarget("application", f"http://127.0.0.1:{application.port}/metrics")
        push = AgentPush(exports, MergedMetrics("127.0.0.1:1", [target], {}), dict, no_tls)
        nursery.start_soon(push.run)
        await eventually(lambda: bool(its.requests))
        assert {"orders_total", "mesh_pilot_agent_missing_parts"} <= its.metrics.keys()
        exports.set(MetricsExports(push=PushSettings(other.url, 0.1)))
        await eventually(lambda: bool(other.requests))
        exports.set(MetricsExports())
        await eventually(lambda: repr(push) == "<AgentPush None>")
        nursery.cancel_scope.cancel()


@pytest.mark.process
async def test_opentelemetrys_collector_takes_it(tmp_path: Path) -> None:
    async with (
        collector(tmp_path) as its,
        small_http({"/stats/prometheus": Said(ENVOY, TEXT)}) as envoy,
        small_http({"/metrics": Said(APPLICATION + b"\nodd NaN\n", TEXT)}) as application,
        trio.open_nursery() as nursery,
    ):
        push = made(MetricsExports(push=PushSettings(its.url, 0.3)), envoy.port, application.port)
        nursery.start_soon(push.run)
        await its.has("-> Name: istio_requests_total", "-> Name: mesh_pilot_agent_dns_answers_total")
        await its.has("-> service.instance.id: Str(web-1.shop)", "InstrumentationScope application", "Value: NaN")
        await its.has("-> IsMonotonic: true", "-> AggregationTemporality: Cumulative", "ExplicitBounds #0: 0.500000")
        assert push.statistics().failures_total == 0
        nursery.cancel_scope.cancel()


def test_lines_are_read_whatever_is_in_them() -> None:
    page = (
        '# HELP a Of "a"\\n\n# TYPE a gauge\na{x="1",y="}\\" 2",} +Inf 1500\na 1e3\n\n# EOF\n#\n# TYPE b\n'
        'b{ x = "\\\\" } .5\nc{} NaN\n'
    )
    family, first, second, third, fourth = Lines().read(page.encode())
    assert family == Family("a", "gauge", 'Of "a"\n')
    assert isinstance(first, SeriesSample) and isinstance(third, SeriesSample) and isinstance(second, SeriesSample)
    assert (first.labels, first.value, first.at) == ({"x": "1", "y": '}" 2'}, float("inf"), 1.5)
    assert (second.name, second.labels, second.value, second.at) == ("a", {}, 1000.0, None)
    assert (third.name, third.labels, third.value) == ("b", {"x": "\\"}, 0.5)
    assert isinstance(fourth, SeriesSample) and fourth.value != fourth.value


def read(own: ExportSettings, metadata: Mapping[str, str]) -> tuple[MetricsExports, list[tuple[str, str]]]:
    refused: list[tuple[str, str]] = []
    found = read_exports(own, metadata, {15020: "--status-port"}, lambda name, reason: refused.append((name, reason)))
    return found, refused


METADATA = {
    "ENVOY_SECURE_MERGED_METRICS_PORT": "15092",
    "SECURE_METRICS_PRINCIPALS": "cluster.local/ns/monitoring/sa/prometheus, spiffe://a.b/prom",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://otel:4318",
    "OTEL_METRIC_EXPORT_INTERVAL": "30000",
    "OTEL_EXPORTER_OTLP_CERTIFICATE": "/etc/otel.pem",
    "METRICS_LOCALHOST_ACCESS_ONLY": "true",
}


def test_the_meshs_settings_count_where_the_machine_says_nothing() -> None:
    found, refused = read(ExportSettings(), METADATA)
    principals = frozenset(["spiffe://cluster.local/ns/monitoring/sa/prometheus", "spiffe://a.b/prom"])
    push = PushSettings("http://otel:4318", 30.0)
    assert (found, refused) == (MetricsExports(15092, principals, push, Path("/etc/otel.pem"), True), [])
    own = ExportSettings(0, ("spiffe://c/ns/a/sa/b",), "https://mine:4318", 5.0, Path("/mine.pem"))
    mine = MetricsExports(0, frozenset(own.secure_principals), PushSettings("https://mine:4318", 5.0), own.roots, True)
    assert read(own, METADATA) == (mine, [])
    assert read(ExportSettings(), {}) == (MetricsExports(), [])


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("ENVOY_SECURE_MERGED_METRICS_PORT", "web", lambda found: found.port == 0),
        ("ENVOY_SECURE_MERGED_METRICS_PORT", "70000", lambda found: found.port == 0),
        ("ENVOY_SECURE_MERGED_METRICS_PORT", "15020", lambda found: found.port == 0),
        ("SECURE_METRICS_PRINCIPALS", "prometheus", lambda found: found.principals == frozenset()),
        ("SECURE_METRICS_PRINCIPALS", "*", lambda found: found.principals == frozenset()),
        ("SECURE_METRICS_PRINCIPALS", "a/ns/b/sa/c,*", lambda found: len(found.principals) == 1),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "otel:4317", lambda found: found.push is None),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://[", lambda found: found.push is None),
        ("OTEL_METRIC_EXPORT_INTERVAL", "30s", lambda found: found.push.interval_seconds == 60),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1", lambda found: found.push.interval_seconds == 60),
        ("OTEL_METRIC_EXPORT_INTERVAL", "9" * 5000, lambda found: found.push.interval_seconds == 60),
    ],
)
def test_what_cannot_be_read_is_left_out_and_said_and_opens_nothing(
    name: str, text: str, left: Callable[[MetricsExports], bool]
) -> None:
    found, refused = read(ExportSettings(), {**METADATA, name: text})
    assert left(found)
    assert [field for field, _ in refused] == [name]


def test_a_request_of_the_double_is_read_as_the_real_ones() -> None:
    assert metrics_of(parsed(b'{"resourceMetrics": []}')) == {}
    assert OtelReceiver().url == "http://localhost:0"
