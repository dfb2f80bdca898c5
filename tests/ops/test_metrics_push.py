"""A control plane's metrics, pushed: all of ``/metrics``, with what they mean; to a real collector, too."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from mesh_pilot.cli.discovery.command import command
from mesh_pilot.net.otlp.push import PushSettings
from mesh_pilot.net.rpc.tls import CertificateFiles
from mesh_pilot.ops.tracing.settings import MetricsPushSettings, ReceiverSettings
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.otel import OtelReceiver, attributes_of, collector, receiver
from tests.support.planes import SERVICE, running_plane


def pushing(url: str, **more: object) -> MetricsPushSettings:
    return MetricsPushSettings(PushSettings(url, 0.5), ReceiverSettings(revision="canary", **more))  # type: ignore[arg-type]


def value(its: OtelReceiver, name: str) -> float:
    """The value of a gauge in the last push."""
    return its.metrics[name].gauge.data_points[0].as_double


@pytest.mark.plane
async def test_everything_that_is_scraped_is_pushed_with_the_same_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    async with (
        receiver() as its,
        running_plane(tmp_path, metrics_push=pushing(its.url)) as plane,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        await eventually(lambda: bool(its.requests) and value(its, "pilot_services") == 1)
        had = len(its.requests)
        await eventually(lambda: len(its.requests) > had)
        page = (await client.get(f"http://{plane.addresses.http}/metrics")).text
        scraped = {family.name: family for family in text_string_to_metric_families(page)}
        pushed = its.metrics
        (resource, *_) = its.requests[-1].resource_metrics
        names = attributes_of(resource.resource)
        assert (names["service.name"], names["revision"]) == ("mesh-pilot", "canary")
        with_samples = {
            sample.name.removesuffix("_bucket") if family.type == "histogram" else sample.name
            for family in scraped.values()
            for sample in family.samples
            if not sample.name.endswith(("_created", "_sum", "_count")) or family.type not in ("histogram", "summary")
        }
        assert pushed.keys() == with_samples
        triggers = pushed["pilot_push_triggers"].sum
        assert triggers.is_monotonic
        (started,) = {point.start_time_unix_nano for point in triggers.data_points}
        assert started == pytest.approx(plane.state.started * 1e9, abs=1e6)
        applied = pushed["pilot_pushcontext_init_seconds"].histogram.data_points[0]
        (count,) = (
            each.value for each in scraped["pilot_pushcontext_init_seconds"].samples if each.name.endswith("_count")
        )
        assert applied.count == sum(applied.bucket_counts) == count
        assert "process_cpu_seconds_total" in pushed
        assert 'mesh_pilot_metrics_pushes{result="exported"}' in page
        assert float(page.partition("\nmesh_pilot_metrics_last_push_timestamp_seconds ")[2].split()[0]) > 1e9


@pytest.mark.process
async def test_opentelemetrys_collector_takes_metrics_and_traces_over_mutual_tls(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(SERVICE)
    its_files = write_certificates(tmp_path, "collector")
    own = write_certificates(tmp_path, "plane")
    files = CertificateFiles(certificate=own.certificate, key=own.key, trusted=own.ca)
    async with (
        collector(tmp_path, its_files) as its,
        running_plane(folder, metrics_push=pushing(its.url, files=files)),
    ):
        await its.has("-> Name: pilot_services", "-> Name: pilot_proxy_convergence_time", "-> revision: Str(canary)")
        await its.has("-> DataType: Histogram", "-> DataType: Sum", "-> DataType: Gauge")


@pytest.mark.plane
async def test_a_receiver_that_is_away_costs_the_plane_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    async with (
        running_plane(tmp_path, metrics_push=pushing("http://127.0.0.1:1")) as plane,
        httpx.AsyncClient(trust_env=False) as client,
    ):

        async def failed() -> bool:
            page = (await client.get(f"http://{plane.addresses.http}/metrics")).text
            return 'mesh_pilot_metrics_pushes{result="failed"} 0.0' not in page

        await eventually(failed)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--otel-metrics", "localhost:4318"], "is not a URL such as http://localhost:4318"),
        (["--otel-metrics-interval", "0s"], "--otel-metrics-interval must be 1 s to 3600 s, not 0 s"),
        (["--otel-tls-cert", "a.pem"], "a certificate needs both of --otel-tls-cert and --otel-tls-key"),
    ],
)
def test_flags_that_are_wrong_are_refused(flags: list[str], reason: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--config-dir", str(tmp_path), "--no-state", *flags])
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())
