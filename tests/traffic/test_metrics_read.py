"""Where metrics of requests are read: Envoy's pages, and what dashboards and Kiali ask of a real Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from mesh_pilot.cli.demo.envoy_process import running_envoy
from mesh_pilot.envoy.telemetry.metrics import NAMESPACE_OF_STATS
from tests.support.binaries import require_binary
from tests.support.envoy import eventually, http_client
from tests.support.guarded import HOST, guarded
from tests.support.manifests import service
from tests.support.prometheus import prometheus

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

MESH = "defaultProviders: {metrics: [prometheus]}"
DOCS = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)]
RELABEL = next(block for block in BLOCKS if "metric_relabel_configs" in block)
BOOTSTRAP = next(block for block in BLOCKS if "bootstrap_extensions" in block)

TYPES = "type.googleapis.com/envoy.extensions."


async def test_an_extension_of_the_bootstrap_gives_istios_names(tmp_path: Path, free_ports: Ports) -> None:
    require_binary("envoy")
    (port,) = free_ports(1)
    stat = {"name": "istio_requests_total", "tags": [{"name": "response_code", "value_format": "%RESPONSE_CODE%"}]}
    logger = {
        "@type": f"{TYPES}access_loggers.stats.v3.Config",
        "stat_prefix": NAMESPACE_OF_STATS,
        "counters": [{"stat": stat, "value_fixed": 1}],
    }
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
    manager: Any = {
        "@type": f"{TYPES}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "x",
        "access_log": [{"name": "stats", "typed_config": logger}],
        "route_config": {"virtual_hosts": [{"name": "x", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "r", "typed_config": {"@type": f"{TYPES}filters.http.router.v3.Router"}}],
    }
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }
    admin = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    bootstrap: Any = {"admin": admin, "static_resources": {"listeners": [listener]}, **BOOTSTRAP}
    async with running_envoy(bootstrap, tmp_path) as envoy, http_client() as client:
        await envoy.wait_live()
        await client.get(f"http://127.0.0.1:{port}/")

        async def named() -> bool:
            page = (await envoy.get("/stats/prometheus")).text
            return '\nistio_requests_total{response_code="200"} 1\n' in page

        await eventually(named, what="Istio's name")
        assert "istio-metric-names failed to load" in envoy.log.read_text()


IN = 'reporter=~"source|waypoint"'
GRAPH = (
    "source_workload_namespace,source_workload,source_canonical_service,source_canonical_revision,"
    "destination_service_namespace,destination_service,destination_service_name,destination_workload_namespace,"
    "destination_workload,destination_canonical_service,destination_canonical_revision"
)

QUESTIONS = {
    "mesh: rate": f"sum(rate(istio_requests_total{{{IN}}}[10s])) > 0",
    "mesh: errors": f'sum(rate(istio_requests_total{{{IN}, response_code=~"5.."}}[10s])) > 0',
    "mesh: services": f"sum by (destination_workload, destination_service) (rate(istio_requests_total{{{IN}, "
    'destination_workload="front"}[10s])) > 0',
    "mesh: latency": "histogram_quantile(0.9, sum by (le, destination_workload, destination_workload_namespace) "
    f"(rate(istio_request_duration_milliseconds_bucket{{{IN}}}[10s]))) > 0",
    "mesh: tcp": f"sum by (destination_service) (rate(istio_tcp_received_bytes_total{{{IN}}}[10s])) > 0",
    "service: by source": "sum by (source_workload, response_code) (irate(istio_requests_total"
    f'{{reporter="destination", connection_security_policy="mutual_tls", destination_service="{HOST}"}}[10s])) > 0',
    "service: sizes": "histogram_quantile(0.5, sum by (le) (irate(istio_request_bytes_bucket"
    f'{{reporter="destination", destination_service="{HOST}"}}[10s]))) > 0',
    "service: tcp": 'sum(irate(istio_tcp_sent_bytes_total{reporter="destination", '
    'destination_service="data.example.com"}[10s])) > 0',
    "workload: incoming": 'sum(irate(istio_requests_total{reporter="destination", destination_workload="front", '
    'destination_workload_namespace="shop"}[10s])) by (source_workload, source_workload_namespace) > 0',
    "workload: outgoing": 'sum(irate(istio_requests_total{reporter="source", source_workload="web", '
    'source_workload_namespace="shop", destination_service=~".*"}[10s])) by (destination_service) > 0',
    "workload: connections": 'sum(irate(istio_tcp_connections_opened_total{reporter="source"}[10s])) > 0',
    "kiali: graph": 'sum(rate(istio_requests_total{reporter="destination", destination_service_namespace="shop"}[10s]))'
    f" by ({GRAPH},request_protocol,response_code,grpc_response_status,response_flags) > 0",
    "kiali: graph of sources": 'sum(rate(istio_requests_total{reporter="source", source_workload_namespace="shop", '
    f'response_code="503"}}[10s])) by ({GRAPH},request_protocol,response_code,response_flags) > 0',
    "kiali: tcp": f'sum(rate(istio_tcp_sent_bytes_total{{reporter="destination"}}[10s])) by ({GRAPH}) > 0',
    "kiali: security": 'sum(rate(istio_requests_total{reporter="destination"}[10s])) by '
    "(source_principal, destination_principal, connection_security_policy) > 0",
    "kiali: health": 'rate(istio_requests_total{destination_service_namespace="shop", reporter="source"}[10s]) > 0',
}
"""Istio's mesh, service and workload dashboards' main questions, and Kiali's."""


@pytest.mark.slow
async def test_dashboards_and_kiali_have_data(tmp_path: Path, free_ports: Ports) -> None:
    port, dead, *ports = free_ports(6)
    lost = service("lost.example.com", dead, {"address": "127.0.0.9", "labels": {"app": "lost"}})
    async with guarded(tmp_path, ports, mesh=MESH, more=lost) as at:
        pages = [f"{envoy.admin}/stats/prometheus" for envoy in at.mesh.envoys]
        async with prometheus(tmp_path, port, {"envoys": pages}, **RELABEL) as server, trio.open_nursery() as nursery:

            async def load() -> None:
                while True:
                    await at.ask()
                    await at.connect()
                    await at.mesh.get(f"http://127.0.0.1:{dead}/", host="lost.example.com")

            nursery.start_soon(load)
            for question in QUESTIONS.values():
                await server.has(question)
            (edge,) = await server.query(QUESTIONS["kiali: graph of sources"])
            assert set(GRAPH.split(",")) <= set(edge["metric"])
            for name in ("kiali: graph", "kiali: tcp"):
                for sample in await server.query(QUESTIONS[name]):
                    assert set(GRAPH.split(",")) <= set(sample["metric"])
            assert not {name for name in await server.names() if "wasmcustom" in name}
            nursery.cancel_scope.cancel()
