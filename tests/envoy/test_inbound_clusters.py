"""Inbound clusters: how a sidecar reaches its own application."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from google.protobuf.json_format import MessageToDict

from mesh_pilot.envoy.clusters.inbound import inbound_clusters
from tests.support.upstreams import http_options, inbound, target
from tests.support.worlds import sidecar, world_of

IP = "10.2.1.1"

ENTRY = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: store, namespace: shop}}
spec:
  hosts: [store.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {{number: 80, name: http, protocol: HTTP, targetPort: 8080}}
  - {{number: 90, name: grpc, protocol: GRPC}}
  - {{number: 70, name: guess}}
  endpoints: [{{address: {IP}}}, {{address: "2001:db8::1"}}]
---
"""


def rule(policy: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: store, namespace: shop}}
spec: {{host: store, trafficPolicy: {policy}}}
---
"""


def sidecar_config(body: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec: {{{body}}}
---
"""


def clusters(text: str = ENTRY, mesh: str = "", ip: str = IP, **proxy: Any) -> dict[str, Cluster]:
    return inbound(world_of(text, mesh=mesh), sidecar(ip, namespace="shop", **proxy))


def endpoint(cluster: Cluster) -> Any:
    (locality,) = cluster.load_assignment.endpoints
    (only,) = locality.lb_endpoints
    return MessageToDict(only.endpoint.address, preserving_proto_field_name=True)


def test_each_port_of_the_application_is_where_the_client_was_going() -> None:
    found = clusters()
    assert list(found) == ["inbound|8080||", "inbound|90||", "inbound|70||", "InboundPassthroughCluster"]
    cluster = found["inbound|8080||"]
    assert (cluster.type, cluster.lb_policy) == (Cluster.ORIGINAL_DST, Cluster.CLUSTER_PROVIDED)
    assert cluster.cleanup_interval.seconds == 9223372035
    assert cluster.upstream_bind_config.source_address.address == "127.0.0.6"
    assert not cluster.typed_extension_protocol_options
    assert http_options(found["inbound|90||"]).explicit_http_config.HasField("http2_protocol_options")
    assert http_options(found["inbound|70||"]).HasField("use_downstream_protocol_config")


def test_a_proxy_with_ipv6_has_its_own_way_through() -> None:
    found = clusters(ip="2001:db8::1")
    assert found["InboundPassthroughCluster"].upstream_bind_config.source_address.address == "::6"
    assert found["inbound|8080||"].upstream_bind_config.source_address.address == "::6"
    both = clusters(INSTANCE_IPS=f"{IP},2001:db8::9")["InboundPassthroughCluster"].upstream_bind_config
    assert both.source_address.address == "127.0.0.6"
    assert [extra.address.address for extra in both.extra_source_addresses] == ["::6"]


def test_without_interception_the_application_is_at_the_loopback_address() -> None:
    cluster = clusters(INTERCEPTION_MODE="NONE")["inbound|8080||"]
    assert cluster.type == Cluster.STATIC
    assert endpoint(cluster) == {"socket_address": {"address": "127.0.0.1", "port_value": 8080}}
    assert not cluster.HasField("upstream_bind_config")


def test_the_oldest_service_of_a_port_declares_it() -> None:
    older = ENTRY.replace("name: store,", 'name: a, creationTimestamp: "1960-01-01T00:00:00Z",')
    older = older.replace("store.shop", "a.shop").replace("protocol: HTTP,", "protocol: HTTP2,")
    cluster = clusters(ENTRY + older)["inbound|8080||"]
    assert http_options(cluster).explicit_http_config.HasField("http2_protocol_options")


def test_only_the_limits_of_a_rule_are_for_the_services_own_side() -> None:
    """The connection pool and, as in Istio 1.29, the retry budget."""
    limits_of_rule = "connectionPool: {tcp: {maxConnections: 7}}, retryBudget: {percent: 30}"
    policy = f"{{{limits_of_rule}, outlierDetection: {{}}, tls: {{mode: SIMPLE}}}}"
    cluster = clusters(ENTRY + rule(policy))["inbound|8080||"]
    (limits,) = cluster.circuit_breakers.thresholds
    assert (limits.max_connections.value, limits.retry_budget.budget_percent.value) == (7, 30)
    assert not cluster.HasField("outlier_detection")
    assert not cluster.HasField("transport_socket")


def test_settings_of_a_service_port_are_for_where_it_is_served() -> None:
    policy = "{portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 7}}}]}"
    found = clusters(ENTRY + rule(policy))
    assert found["inbound|8080||"].circuit_breakers.thresholds[0].max_connections.value == 7
    assert found["inbound|90||"].circuit_breakers.thresholds[0].max_connections.value > 7


def test_the_sidecars_pools_go_before_the_rules() -> None:
    text = ENTRY + rule("{connectionPool: {tcp: {maxConnections: 7}}}")
    found = clusters(text + sidecar_config("inboundConnectionPool: {tcp: {maxConnections: 5}}"))
    assert found["inbound|8080||"].circuit_breakers.thresholds[0].max_connections.value == 5
    budget = ENTRY + rule("{retryBudget: {percent: 30}}")
    (limits,) = clusters(budget + sidecar_config("inboundConnectionPool: {tcp: {maxConnections: 5}}"))[
        "inbound|8080||"
    ].circuit_breakers.thresholds
    assert (limits.max_connections.value, limits.retry_budget.budget_percent.value) == (5, 30)
    listener = "{port: {number: 9080, name: http, protocol: HTTP}, connectionPool: {tcp: {maxConnections: 3}}}"
    found = clusters(
        text + sidecar_config(f"inboundConnectionPool: {{tcp: {{maxConnections: 5}}}}, ingress: [{listener}]")
    )
    assert found["inbound|9080||"].circuit_breakers.thresholds[0].max_connections.value == 3


@pytest.mark.parametrize(
    ("default", "address", "source"),
    [
        ("127.0.0.1:8181", {"socket_address": {"address": "127.0.0.1", "port_value": 8181}}, ""),
        ("0.0.0.0:8181", {"socket_address": {"address": IP, "port_value": 8181}}, "127.0.0.6"),
        ("unix:///var/run/app.sock", {"pipe": {"path": "/var/run/app.sock"}}, "127.0.0.6"),
    ],
)
def test_ingress_listeners_say_where_the_application_is(default: str, address: dict[str, Any], source: str) -> None:
    listener = f'{{port: {{number: 9080, name: h, protocol: HTTP2}}, defaultEndpoint: "{default}"}}'
    found = clusters(ENTRY + sidecar_config(f"ingress: [{listener}]"))
    assert list(found) == ["inbound|9080||", "InboundPassthroughCluster"]
    cluster = found["inbound|9080||"]
    assert endpoint(cluster) == address
    assert cluster.upstream_bind_config.source_address.address == source
    assert http_options(cluster).explicit_http_config.HasField("http2_protocol_options")


@pytest.mark.parametrize(
    ("default", "dual", "ipv4_alone"),
    [
        ("127.0.0.1:8181", "127.0.0.1", "127.0.0.1"),
        ("[::1]:8181", "::1", "127.0.0.1"),
        ("0.0.0.0:8181", IP, IP),
        ("[::]:8181", "2001:db8::1", IP),
    ],
)
def test_an_application_is_reached_over_the_ip_version_that_is_written(
    default: str, dual: str, ipv4_alone: str
) -> None:
    listener = f'{{port: {{number: 9080, name: h, protocol: HTTP}}, defaultEndpoint: "{default}"}}'
    config = ENTRY + sidecar_config(f"ingress: [{listener}]")
    for more, address in (({"INSTANCE_IPS": f"{IP},2001:db8::1"}, dual), ({}, ipv4_alone)):
        cluster = clusters(config, **more)["inbound|9080||"]
        assert endpoint(cluster)["socket_address"]["address"] == address
        is_loopback = address in ("127.0.0.1", "::1")
        assert cluster.HasField("upstream_bind_config") is not is_loopback


def test_an_ingress_listener_without_a_default_endpoint_is_where_the_client_was_going() -> None:
    config = sidecar_config("ingress: [{port: {number: 9080, name: h, protocol: HTTP}}]")
    assert clusters(ENTRY + config)["inbound|9080||"].type == Cluster.ORIGINAL_DST
    cluster = clusters(ENTRY + config, INTERCEPTION_MODE="NONE")["inbound|9080||"]
    assert endpoint(cluster) == {"socket_address": {"address": "127.0.0.1", "port_value": 9080}}


def test_an_ingress_listener_has_the_limits_of_the_service_whose_endpoint_has_its_port() -> None:
    listeners = "{port: {number: 8080, name: h, protocol: HTTP}}, {port: {number: 80, name: i, protocol: HTTP}}"
    text = ENTRY + rule("{connectionPool: {tcp: {maxConnections: 7}}}")
    found = clusters(text + sidecar_config(f"ingress: [{listeners}]"))
    assert found["inbound|8080||"].circuit_breakers.thresholds[0].max_connections.value == 7
    assert found["inbound|80||"].circuit_breakers.thresholds[0].max_connections.value > 7


def test_clusters_may_be_counted_under_names_of_their_own() -> None:
    found = clusters(mesh="inboundClusterStatName: in_%SERVICE%_%SERVICE_PORT%")
    assert found["inbound|8080||"].alt_stat_name == "in_store.shop.svc.cluster.local_80"


def test_replicas_of_a_service_share_their_clusters() -> None:
    world = world_of(ENTRY.replace('"2001:db8::1"', "10.2.1.2"))
    plans = [
        inbound_clusters(world.view, target(world, sidecar(ip, name=ip, namespace="shop", labels={"ip": ip})).workload)
        for ip in (IP, "10.2.1.2")
    ]
    assert plans[0] == plans[1]
