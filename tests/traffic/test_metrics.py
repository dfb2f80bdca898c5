"""Istio's metrics of requests and connections, as stock Envoys count them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support.envoy import RealEnvoy
from tests.support.fleet import fleet
from tests.support.mutual import HOST, REVIEWS, STRICT, WEB, served_by_sidecar, with_metadata

pytestmark = pytest.mark.envoy

MESH = "defaultProviders: {metrics: [prometheus]}"

_SAMPLE = re.compile(r"^envoy_wasmcustom_(istio_\w+?)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = list[tuple[Mapping[str, str], float]]


async def samples(envoy: RealEnvoy, metric: str) -> Samples:
    """The samples of a metric: labels and value."""
    page = (await envoy.get("/stats/prometheus?filter=istio")).text
    found = _SAMPLE.findall(page)
    return [(dict(_LABEL.findall(labels)), float(value)) for name, labels, value in found if name == metric]


SOURCE = {
    "source_workload": "web",
    "source_workload_namespace": "shop",
    "source_app": "web",
    "source_version": "unknown",
    "source_canonical_service": "web",
    "source_canonical_revision": "latest",
    "source_cluster": "vms",
    "source_principal": "spiffe://cluster.local/ns/shop/sa/web",
}
DESTINATION = {
    "destination_workload": "reviews",
    "destination_workload_namespace": "shop",
    "destination_app": "reviews",
    "destination_version": "unknown",
    "destination_canonical_service": "reviews",
    "destination_canonical_revision": "latest",
    "destination_cluster": "unknown",
    "destination_principal": "spiffe://cluster.local/ns/shop/sa/reviews",
    "destination_service": HOST,
    "destination_service_name": HOST,
    "destination_service_namespace": "shop",
}
REQUEST = {
    "request_protocol": "http",
    "response_code": "200",
    "grpc_response_status": "",
    "response_flags": "-",
}


async def test_both_sidecars_name_both_workloads(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    port, target = free_ports(2)
    async with fleet(tmp_path, mesh=MESH) as mesh:
        app = await mesh.backend("app")
        mesh.write(served_by_sidecar(port, target, app) + STRICT)
        server = await mesh.envoy(REVIEWS)
        client = await mesh.envoy(with_metadata(WEB, {"CLUSTER_ID": "vms"}))
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"app"}, url, host=HOST)
        forged = {"x-mesh-peer-workload": "forged", "x-mesh-peer-version": "forged"}
        await mesh.get(url, host=HOST, headers=forged)
        ((by_client, _),) = await samples(client, "istio_requests_total")
        assert by_client == {
            "reporter": "source",
            **SOURCE,
            **DESTINATION,
            **REQUEST,
            "connection_security_policy": "unknown",
        }
        ((by_server, _),) = await samples(server, "istio_requests_total")
        assert by_server == {
            "reporter": "destination",
            **SOURCE,
            **DESTINATION,
            **REQUEST,
            "connection_security_policy": "mutual_tls",
        }
        for metric in ("request_duration_milliseconds", "request_bytes", "response_bytes"):
            counts = await samples(server, f"istio_{metric}_count")
            assert [labels for labels, _ in counts] == [by_server], metric
        await mesh.assert_all_taken()
