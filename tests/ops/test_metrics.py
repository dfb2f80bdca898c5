"""Metrics have istiod's names and labels, those that are missing are named with a reason, and clients make up few."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from mesh_pilot.model.events import Endpoints, Replace, Upsert
from mesh_pilot.model.histogram import Histogram, HistogramState
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.model.service import Endpoint, Health, Port, Protocol, Service, ServiceKey
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.metrics.samples import MAX_LABEL, MOST_SERIES, REST, bounded, histogram
from mesh_pilot.ops.metrics.workers import WorkerMetrics, WorkerTotals
from mesh_pilot.world import World
from tests.support.planes import SERVICE, running_plane
from tests.test_docs import described_metrics

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
GRPC = {"grpc_type", "grpc_service", "grpc_method"}

ISTIOD: dict[str, set[str]] = {
    "auto_registration_deletes_total": set(),
    "auto_registration_errors_total": set(),
    "auto_registration_success_total": set(),
    "auto_registration_unregister_total": set(),
    "auto_registration_updates_total": set(),
    "citadel_server_authentication_failure_count": set(),
    "citadel_server_cert_chain_expiry_seconds": set(),
    "citadel_server_cert_chain_expiry_timestamp": set(),
    "citadel_server_csr_count": set(),
    "citadel_server_csr_parsing_err_count": set(),
    "citadel_server_csr_sign_err_count": {"error"},
    "citadel_server_id_extraction_err_count": set(),
    "citadel_server_root_cert_expiry_seconds": set(),
    "citadel_server_root_cert_expiry_timestamp": set(),
    "citadel_server_success_cert_issuance_count": set(),
    "controller_sync_errors_total": {"cluster"},
    "endpoint_no_pod": set(),
    "galley_validation_config_load_error": {"reason"},
    "galley_validation_config_update_error": {"reason"},
    "galley_validation_config_updates": set(),
    "galley_validation_failed": {"group", "version", "resource", "reason"},
    "galley_validation_http_error": {"status"},
    "galley_validation_passed": {"group", "version", "resource"},
    "grpc_server_handled_total": GRPC | {"grpc_code"},
    "grpc_server_handling_seconds": GRPC,
    "grpc_server_msg_received_total": GRPC,
    "grpc_server_msg_sent_total": GRPC,
    "grpc_server_started_total": GRPC,
    "istio_build": {"component", "tag"},
    "istiod_managed_clusters": {"cluster_type"},
    "istiod_remote_cluster_sync_status": {"cluster", "status"},
    "istiod_uptime_seconds": set(),
    "pilot_conflict_inbound_listener": set(),
    "pilot_conflict_outbound_listener_tcp_over_current_tcp": set(),
    "pilot_debounce_time": set(),
    "pilot_destrule_subsets": set(),
    "pilot_dns_cluster_without_endpoints": set(),
    "pilot_duplicate_envoy_clusters": set(),
    "pilot_eds_no_instances": set(),
    "pilot_endpoint_not_ready": set(),
    "pilot_envoy_filter_status": {"name", "patch", "result"},
    "pilot_inbound_updates": {"type"},
    "pilot_info": {"version"},
    "pilot_jwks_resolver_network_fetch_fail_total": set(),
    "pilot_jwks_resolver_network_fetch_success_total": set(),
    "pilot_k8s_cfg_events": {"type", "event"},
    "pilot_k8s_endpoints_pending_pod": set(),
    "pilot_k8s_endpoints_with_no_pods": set(),
    "pilot_k8s_proxies_with_no_service_targets": {"reason"},
    "pilot_k8s_reg_events": {"type", "event"},
    "pilot_no_ip": set(),
    "pilot_proxy_convergence_time": set(),
    "pilot_proxy_queue_time": set(),
    "pilot_push_triggers": {"type"},
    "pilot_pushcontext_init_seconds": set(),
    "pilot_sds_certificate_errors_total": set(),
    "pilot_services": set(),
    "pilot_total_rejected_configs": {"type", "name"},
    "pilot_total_xds_internal_errors": set(),
    "pilot_total_xds_rejects": {"type"},
    "pilot_virt_services": set(),
    "pilot_vservice_dup_domain": set(),
    "pilot_worker_queue_depth": {"queueID"},
    "pilot_worker_queue_duration": {"queueID"},
    "pilot_worker_queue_latency": {"queueID"},
    "pilot_xds": {"version"},
    "pilot_xds_cds_reject": {"node"},  # and "err", see the manual
    "pilot_xds_config_size_bytes": {"type"},
    "pilot_xds_eds_reject": {"node"},
    "pilot_xds_expired_nonce": {"type"},
    "pilot_xds_lds_reject": {"node"},
    "pilot_xds_push_time": {"type"},
    "pilot_xds_pushes": {"type"},
    "pilot_xds_rds_reject": {"node"},
    "pilot_xds_recv_max": set(),
    "pilot_xds_send_time": set(),
    "pilot_xds_write_timeout": set(),
    "provider_lookup_cluster_failures": {"type"},
    "remote_cluster_secret_events_total": {"cluster", "event"},
    "remote_cluster_sync_timeouts_total": {"cluster"},
    "sidecar_injection_failure_total": set(),
    "sidecar_injection_requests_total": set(),
    "sidecar_injection_skip_total": set(),
    "sidecar_injection_success_total": set(),
    "sidecar_injection_time_seconds": set(),
    "webhook_patch_attempts_total": {"name"},
    "webhook_patch_failures_total": {"name", "reason"},
    "webhook_patch_retries_total": {"name"},
    "xds_cache_dependent_config_size": set(),
    "xds_cache_evictions": {"type"},
    "xds_cache_reads": {"type"},
    "xds_cache_size": set(),
}
"""The metrics of a current istiod, by name, with their labels."""

BUCKETS = {
    "grpc_server_handling_seconds": "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10",
    "pilot_debounce_time": "0.01 0.1 0.5 1 3 5 10 20 30",
    "pilot_proxy_convergence_time": "0.1 0.5 1 3 5 10 20 30",
    "pilot_proxy_queue_time": "0.1 0.5 1 3 5 10 20 30",
    "pilot_pushcontext_init_seconds": "0.01 0.1 0.5 1 3 5",
    "pilot_xds_config_size_bytes": "1 10000 1e+06 4e+06 1e+07 4e+07",
    "pilot_xds_push_time": "0.01 0.1 0.5 1 3 5 10 20 30",
    "pilot_xds_send_time": "0.01 0.1 1 3 5 10 20 30",
}
"""The bounds of its histograms, as it writes them."""


@attrs.frozen
class Scraped:
    """A page of metrics: labels by metric, values by sample and labels, bounds by histogram."""

    labels: dict[str, set[str]]
    values: dict[tuple[str, ...], float]
    bounds: dict[str, str]


async def scrape(address: str) -> Scraped:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        text = (await client.get(f"http://{address}/metrics")).text
    found = Scraped(defaultdict(set), {}, {})
    bounds: dict[str, list[str]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        found.labels[family.name] |= set()
        for sample in family.samples:
            found.labels[family.name] |= sample.labels.keys() - {"le"}
            found.values[(sample.name, *sample.labels.values())] = sample.value
            bound = sample.labels.get("le", "+Inf")
            if bound != "+Inf" and bound not in bounds[family.name]:
                bounds[family.name].append(bound)
    found.bounds.update((name, " ".join(each)) for name, each in bounds.items())
    return found


async def talk(address: str) -> None:
    """A proxy accepts clusters, refuses endpoints, answers an old response, and leaves."""
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
        node = {"id": "sidecar~10.9.9.9~web-1.shop~shop.svc.cluster.local"}
        await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
        clusters = await call.recv_message()
        assert clusters is not None
        await call.send_message(DiscoveryRequest(type_url=CLUSTER, response_nonce=clusters.nonce))
        await call.send_message(DiscoveryRequest(type_url=CLUSTER, response_nonce="an older one"))
        names = ["outbound|9080||reviews.test"]
        await call.send_message(DiscoveryRequest(type_url=ENDPOINT, resource_names=names))
        endpoints = await call.recv_message()
        assert endpoints is not None
        refusal = DiscoveryRequest(type_url=ENDPOINT, resource_names=names, response_nonce=endpoints.nonce)
        refusal.error_detail.CopyFrom(Status(code=13, message="no"))
        await call.send_message(refusal)


@pytest.mark.plane
async def test_metrics_are_istiods_or_named_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    (tmp_path / "b.yaml").write_text(SERVICE.replace("name: reviews", "name: ratings").replace("9080", "many"))
    there, absent = described_metrics("Metrics of istiod"), described_metrics("Metrics of istiod that are not here")
    assert ISTIOD.keys() <= there | absent and not there & absent
    async with running_plane(tmp_path, quarantine=None) as plane:
        await talk(plane.addresses.grpc)
        with trio.fail_after(30):
            while plane.state.xds.status.statistics().connected:  # noqa: ASYNC110  the server notices on its own
                await trio.sleep(0.01)
        found = await scrape(plane.addresses.monitoring)
    assert absent.isdisjoint(found.labels)
    assert there <= found.labels.keys() | {"auto_registration_total"}
    wrong = {name: labels for name, labels in ISTIOD.items() if found.labels.get(name, labels) - labels}
    assert wrong == {}
    assert {name: bounds for name, bounds in found.bounds.items() if name in BUCKETS} == BUCKETS
    path = (ADS.split("/")[2], ADS.split("/")[1], "bidi_stream")
    values = found.values
    assert values["grpc_server_started_total", *path] == 1
    assert values["grpc_server_msg_received_total", *path] == 5
    assert values["grpc_server_msg_sent_total", *path] == 2
    assert sum(value for key, value in values.items() if key[0] == "grpc_server_handled_total") == 1
    assert values["pilot_xds_push_time_count", "cds"] == 1
    assert values["pilot_xds_config_size_bytes_bucket", "10000", ENDPOINT] == 1
    assert values["pilot_xds_config_size_bytes_bucket", "1", ENDPOINT] == 0
    assert values["pilot_xds_send_time_count",] == 2
    assert values["pilot_xds_expired_nonce", "cds"] == 1
    assert values["pilot_xds_recv_max",] > 50
    assert values["galley_validation_passed", "networking.istio.io", "serviceentries", "v1"] == 1
    refused = ("networking.istio.io", "invalid_resource", "serviceentries", "v1")
    assert values["galley_validation_failed", *refused] == 1
    assert values["pilot_inbound_updates", "config"] >= 1
    assert values["istiod_uptime_seconds",] > 0


def test_endpoints_that_are_missing_or_not_ready_are_counted() -> None:
    world = World()
    web = ServiceKey("web.consul", "shop")
    ports = (Port(80, "http", Protocol.HTTP),)
    ill = Endpoint("10.0.0.7", 80, "http", health=Health.UNHEALTHY)
    world.apply([Upsert("r", Service(web.host, web.namespace, ports)), Upsert("r", Endpoints(web, (ill,)))])
    assert (world.statistics().endpoints, world.statistics().not_ready) == (1, 1)
    well = attrs.evolve(ill, health=Health.HEALTHY)
    world.apply([Upsert("r", Endpoints(web, (ill, well, attrs.evolve(ill, address="10.0.0.8"))))])
    assert (world.statistics().endpoints, world.statistics().not_ready) == (3, 2)
    world.apply([Replace("r", ("endpoints",), ())])
    assert (world.statistics().endpoints, world.statistics().not_ready) == (0, 0)


@given(st.dictionaries(st.text(max_size=400), st.integers(1, 5), max_size=40), st.integers(0, 400))
def test_labels_that_others_make_up_are_few_and_short_and_lose_no_count(made_up: dict[str, int], more: int) -> None:
    values = made_up | {f"version {number}": 1 for number in range(more)}
    found = bounded("pilot_xds", "text", "gauge", "version", values)
    assert sum(sample.value for sample in found.samples) == sum(values.values())
    labels = [sample.labels["version"] for sample in found.samples]
    assert len(labels) == len(set(labels)) <= MOST_SERIES + 1
    assert max(map(len, labels), default=0) <= MAX_LABEL
    assert len(values) <= MOST_SERIES or REST in labels


def observed(*seconds: float) -> HistogramState:
    made = Histogram((0.1, 1))
    for each in seconds:
        made.observe(each)
    return made.state()


def test_histograms_of_workers_are_added_up() -> None:
    def of(pid: int, *seconds: float) -> WorkerMetrics:
        return WorkerMetrics(pid, [histogram("took", "text", observed(*seconds))], [], [])

    merged: list[Metric] = [*WorkerTotals().merged({1: of(10, 0.0625, 0.5), 2: of(20, 0.0625, 7)}, {2: 0})]
    (took,) = [metric for metric in merged if metric.name == "took"]
    values = {re.sub(r"^took_", "", s.name) + s.labels.get("le", ""): s.value for s in took.samples}
    assert values == {"bucket0.1": 2, "bucket1": 3, "bucket+Inf": 4, "sum": 7.625, "count": 4}
