"""The page of exported metrics, walked: ``mesh-pilot proxy`` with a real Envoy, Prometheus and a receiver of OTLP."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from tests.support.binaries import require_binary
from tests.support.command import COMMAND
from tests.support.envoy import eventually, http_client
from tests.support.otel import attributes_of, metrics_of, receiver
from tests.support.planes import SERVICE, running_plane
from tests.support.prometheus import prometheus
from tests.support.proxy_process import admission, proxy_process

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]

SAMPLE = Path(__file__).parents[2] / "samples" / "metrics"
PAGE = SAMPLE.parents[1] / "docs" / "metrics-export.md"


async def mesh_pilot(*arguments: str) -> bytes:
    """Run the command; what it writes."""
    done = await trio.run_process([*COMMAND, *arguments], capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


async def test_metrics_leave_the_machines_as_the_sample_says(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    require_binary("envoy")
    mesh, config, certs = (tmp_path / name for name in ("mesh.yaml", "config", "certs"))
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    flags = admission(tmp_path)
    secure, metrics, server_port, *ports = free_ports(7)
    pilot = (f"--pilot=localhost:{secure}", f"--tls-ca={tmp_path / 'root.pem'}")
    async with receiver() as its:
        text = (SAMPLE / "mesh.yaml").read_text().replace("15092", str(metrics)).replace("60000", "1000")
        mesh.write_text(text.replace("http://otel.internal:4318", its.url))
        plane = {"ca_dir": tmp_path / "ca", "secure_grpc_addr": f"localhost:{secure}", "mesh_config": mesh}
        arguments = ("--name=web-1", "--ip=127.0.0.1", *pilot, *flags)
        async with running_plane(config, **plane), proxy_process(tmp_path / "proxy", ports, *arguments) as proxy:
            ca = f"--ca-dir={tmp_path / 'ca'}"
            token = await mesh_pilot("token", "create", ca, "prometheus", "--namespace=monitoring", "--single-use")
            (tmp_path / "its-token").write_bytes(token)
            (tmp_path / "its-token").chmod(0o600)
            asked = ("certificate", *pilot, f"--out-dir={certs}")
            await mesh_pilot(*asked, f"--token-file={tmp_path / 'its-token'}")
            await mesh_pilot(*asked, "--if-due")
            await proxy.wait_ready()
            job = sample_job(certs)
            async with prometheus(tmp_path, server_port, {"agents": [f"127.0.0.1:{metrics}"]}, **job) as server:
                await server.has('up{job="agents"} == 1')
                await server.has("envoy_server_live == 1")
                await server.has("mesh_pilot_agent_secure_metrics_scrapes_total > 0")
                mesh.write_text(mesh.read_text().replace("sa/prometheus", "sa/another"))
                await server.has('up{job="agents"} == 0')
            await eventually(lambda: "envoy_server_live" in metrics_of(*its.requests), what="pushes")
            names = attributes_of(its.requests[-1].resource_metrics[0].resource)
            assert (names["service.instance.id"], names["service_account"]) == ("web-1.shop", "web")
            state = await proxy.state()
            assert state["secure_metrics"]["is_serving"] and state["secure_metrics"]["refused_total"] > 0
            assert state["metrics_push"]["pushes_total"] > 0
            assert state["envoy"]["hot_restarts"] == 0
            async with http_client() as client:  # from the loopback
                assert (await client.get(f"http://127.0.0.1:{ports[1]}/stats/prometheus")).status_code == 200


def sample_job(certs: Path) -> dict[str, Any]:
    """The sample's job, with files of this test; who is scraped comes from the test."""
    (job,) = yaml.safe_load((SAMPLE / "prometheus.yml").read_text())["scrape_configs"]
    tls = {
        name: str(certs / value.removeprefix("certs/")) if value is not True else True
        for name, value in job["tls_config"].items()
    }
    return {"scheme": job["scheme"], "metrics_path": job["metrics_path"], "tls_config": tls}


def test_the_page_has_what_the_samples_have() -> None:
    blocks = [yaml.safe_load(part.partition("```")[0]) for part in PAGE.read_text().split("```yaml\n")[1:]]
    mesh, scraped, pushed = blocks
    sample = yaml.safe_load((SAMPLE / "mesh.yaml").read_text())["defaultConfig"]["proxyMetadata"]
    assert {**mesh["defaultConfig"]["proxyMetadata"], **pushed["defaultConfig"]["proxyMetadata"]} == sample
    (of_page,), (of_sample,) = (
        scraped["scrape_configs"],
        yaml.safe_load((SAMPLE / "prometheus.yml").read_text())["scrape_configs"],
    )
    assert of_page["relabel_configs"] == of_sample["relabel_configs"][:2]
    assert {**of_page, "relabel_configs": 0} == {**of_sample, "relabel_configs": 0}


@pytest.mark.process
def test_the_collector_takes_the_sample() -> None:
    binary = require_binary("otelcol", built="otelcol/otelcol")
    command = [binary, "validate", "--config", SAMPLE / "otel-collector.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
