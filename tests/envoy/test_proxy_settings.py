"""Settings of proxies: the mesh's ``defaultConfig`` and a node's PROXY_CONFIG, in listeners, routes and clusters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager as Manager,
)
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from mesh_pilot.envoy.clusters.connection_pool import HTTP_OPTIONS
from mesh_pilot.envoy.clusters.inbound import inbound_clusters
from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.mesh.proxy.proxy_config import own_settings
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world import World
from tests.support.envoy_check import complaints
from tests.support.listeners import listeners, manager
from tests.support.plans import outbound_clusters
from tests.support.routing import config, router, service, table, target, virtual_service
from tests.support.worlds import sidecar, world_of

WEB = service("web.example", addresses="10.9.0.1")
GATEWAY = config(
    "Gateway",
    "gw",
    "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
    namespace="edge",
)


def mesh(**settings: Any) -> str:
    return json.dumps({"defaultConfig": settings})


def edge(world: World, **metadata: Any) -> Listener:
    seen = target(world, router(**metadata))
    (call,) = gateway_listeners(world.view, seen.workload).values()
    found = call.get(world.view)
    assert found is not None
    return Listener.FromString(found.body)


def edge_manager(world: World, **metadata: Any) -> Manager:
    return manager(edge(world, **metadata).filter_chains[0])


def own_cluster(world: World, name: str, proxy: Proxy) -> Cluster:
    seen = target(world, proxy)
    plan = {
        **outbound_clusters(world.view, seen.scope, seen.locality),
        **inbound_clusters(world.view, seen.workload),
    }
    found = plan[name].get(world.view)
    assert found is not None
    return Cluster.FromString(found.body)


def options(cluster: Cluster) -> http_protocol_options_pb2.HttpProtocolOptions:
    packed = cluster.typed_extension_protocol_options[HTTP_OPTIONS]
    return http_protocol_options_pb2.HttpProtocolOptions.FromString(packed.value)


def test_the_edge_profile_sets_what_envoy_recommends_and_explicit_settings_go_first() -> None:
    settings = {"profile": "EDGE", "httpMaxConcurrentStreams": 200, "httpMergeSlashes": False}
    world = world_of(GATEWAY + WEB, mesh=mesh(connectionSettings=settings))
    found = edge_manager(world)
    assert found.http2_protocol_options.max_concurrent_streams.value == 200
    assert found.http2_protocol_options.initial_stream_window_size.value == 65536
    assert found.common_http_protocol_options.idle_timeout.seconds == 3600
    assert found.request_headers_timeout.seconds == 60
    assert found.stream_idle_timeout.seconds == found.request_timeout.seconds == 300
    assert found.merge_slashes is False
    assert found.path_with_escaped_slashes_action == Manager.UNESCAPE_AND_REDIRECT
    assert edge(world).per_connection_buffer_limit_bytes.value == 32768
    assert own_cluster(world, "outbound|80||web.example", router()).per_connection_buffer_limit_bytes.value == 32768


def test_a_proxys_own_settings_are_for_it_alone() -> None:
    world = world_of(GATEWAY + WEB, mesh=mesh(gatewayTopology={"numTrustedProxies": 1}))
    own = {"connectionSettings": {"httpIdleTimeout": "30s"}, "concurrency": 4}
    assert edge_manager(world).common_http_protocol_options.HasField("idle_timeout") is False
    for given in (own, json.dumps(own)):
        found = edge_manager(world, PROXY_CONFIG=given)
        assert found.common_http_protocol_options.idle_timeout.seconds == 30
        assert found.xff_num_trusted_hops == 1
    trusting = edge_manager(world, PROXY_CONFIG={"gatewayTopology": {"numTrustedProxies": 3}})
    assert trusting.xff_num_trusted_hops == 3


def test_a_proxys_own_tracing_goes_before_the_meshs() -> None:
    world = world_of(GATEWAY, mesh='{"enableTracing": true}')
    found = edge_manager(world, PROXY_CONFIG={"tracing": {"sampling": 25}})
    assert found.tracing.random_sampling.value == 25
    assert edge_manager(world).tracing.random_sampling.value == 1


@pytest.mark.parametrize(
    "value",
    [None, "", "nonsense", "[]", pytest.param("[" * 100_000, id="deep"), 5, {"concurrency": 2}, {"tracing": None}],
)
def test_what_shapes_nothing_or_can_not_be_read_leaves_proxies_together(value: object) -> None:
    assert own_settings(value) == ""


@pytest.mark.envoy
@pytest.mark.parametrize("own", [False, True])
def test_gateways_read_the_proxy_protocol_before_all_else_where_it_is_announced(own: bool, tmp_path: Path) -> None:
    said = {"gatewayTopology": {"proxyProtocol": {}}}
    metadata = {"PROXY_CONFIG": said} if own else {}
    settings = "" if own else mesh(**said)
    secure = GATEWAY.replace("protocol: HTTP}", "protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}")
    for text, expected in ((GATEWAY, ["proxy_protocol"]), (secure + WEB, ["proxy_protocol", "tls_inspector"])):
        found = edge(world_of(text, mesh=settings), **metadata)
        assert [f.name.rpartition(".")[2] for f in found.listener_filters] == expected
        assert complaints(tmp_path, [found.SerializeToString()]) == ""
    world = world_of(GATEWAY, mesh=mesh(gatewayTopology={"numTrustedProxies": 1}))
    assert not edge(world).listener_filters


def test_sidecars_take_connections_without_the_proxy_protocol() -> None:
    found = listeners(world_of(WEB, mesh=mesh(gatewayTopology={"proxyProtocol": {}})), sidecar())
    assert not [f for item in found.values() for f in item.listener_filters if "proxy_protocol" in f.name]


def test_headers_that_proxies_add_can_be_switched_off_or_changed() -> None:
    said = {
        "server": {"value": "front"},
        "requestId": {"disabled": True},
        "envoyDebugHeaders": {"disabled": True},
        "forwardedClientCert": "FORWARD_ONLY",
        "setCurrentClientCertDetails": {"subject": False, "dns": False, "chain": True},
        "xForwardedPort": {"enabled": True},
    }
    world = world_of(GATEWAY, mesh=mesh(proxyHeaders=said))
    found = edge_manager(world)
    assert found.server_name == "front"
    assert found.generate_request_id.value is False and found.HasField("generate_request_id")
    assert found.forward_client_cert_details == Manager.FORWARD_ONLY
    details = found.set_current_client_cert_details
    assert (details.subject.value, details.dns, details.chain, details.uri) == (False, False, True, True)
    assert found.append_x_forwarded_port
    assert router_pb2.Router.FromString(found.http_filters[-1].typed_config.value).suppress_envoy_headers


def test_a_server_header_that_is_off_is_left_as_the_application_sent_it() -> None:
    world = world_of(GATEWAY, mesh=mesh(proxyHeaders={"server": {"disabled": True}}))
    found = edge_manager(world)
    assert found.server_name == "" and found.server_header_transformation == Manager.PASS_THROUGH


def test_attempts_are_counted_unless_that_is_off() -> None:
    assert table(world_of(WEB))["web.example:80"].include_request_attempt_count
    world = world_of(WEB, mesh=mesh(proxyHeaders={"attemptCount": {"disabled": True}}))
    assert not any(host.include_request_attempt_count for host in table(world).values())


def test_the_host_that_a_route_rewrites_is_told_where_that_is_on() -> None:
    route = "{hosts: [web.example], http: [{rewrite: {authority: a.b}, route: [{destination: {host: web.example}}]}]}"
    text = WEB + virtual_service("vs", route)
    assert not table(world_of(text))["web.example:80"].routes[0].route.append_x_forwarded_host
    world = world_of(text, mesh=mesh(proxyHeaders={"xForwardedHost": {"enabled": True}}))
    assert table(world)["web.example:80"].routes[0].route.append_x_forwarded_host


def test_the_case_of_headers_is_kept_on_both_sides() -> None:
    client = sidecar("127.0.0.1", namespace="shop")
    world = world_of(WEB, mesh=mesh(proxyHeaders={"preserveHttp1HeaderCase": True}))
    found = manager(listeners(world, client)["0.0.0.0_80"].filter_chains[0])
    assert found.http_protocol_options.header_key_format.HasField("stateful_formatter")
    for name in ("outbound|80||web.example", "inbound|80||"):
        kept = options(own_cluster(world, name, client)).explicit_http_config.http_protocol_options
        assert kept.header_key_format.HasField("stateful_formatter")
    for name in ("PassthroughCluster", "InboundPassthroughCluster"):
        kept = options(own_cluster(world, name, client)).use_downstream_protocol_config.http_protocol_options
        assert kept.header_key_format.HasField("stateful_formatter")


def test_applications_are_reached_at_the_loopback_address_where_the_mesh_says_so() -> None:
    client = sidecar("127.0.0.1", namespace="shop")
    assert own_cluster(world_of(WEB), "inbound|80||", client).type == Cluster.ORIGINAL_DST
    found = own_cluster(world_of(WEB, mesh='{"inboundTrafficPolicy": {"mode": "LOCALHOST"}}'), "inbound|80||", client)
    assert found.type == Cluster.STATIC
    where = found.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address
    assert (where.address, where.port_value) == ("127.0.0.1", 80)


def test_hosts_that_nobody_declared_are_resolved_where_the_mesh_says_so_and_no_sidecar_else() -> None:
    mesh = '{"outboundTrafficPolicy": {"mode": "ALLOW_ANY_DYNAMIC_DNS"}}'
    assert "allow_any_dynamic_dns" in table(world_of(WEB, mesh=mesh))
    own = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: shop}
spec: {egress: [{hosts: ["*/*"]}], outboundTrafficPolicy: {mode: ALLOW_ANY}}
"""
    found = table(world_of(WEB + own, mesh=mesh))
    assert "allow_any" in found and "allow_any_dynamic_dns" not in found


@pytest.mark.envoy
@pytest.mark.smoke
def test_a_real_envoy_takes_all_of_it(tmp_path: Path) -> None:
    said = {
        "proxyHeaders": {
            "server": {"disabled": True},
            "preserveHttp1HeaderCase": True,
            "requestId": {"disabled": True},
            "xForwardedPort": {"enabled": True},
        },
        "connectionSettings": {
            "profile": "EDGE",
            "httpDrainTimeout": "7s",
            "httpMaxStreamDuration": "60s",
            "httpMaxConnectionDuration": "90s",
        },
    }
    world = world_of(GATEWAY + WEB, mesh=mesh(**said))
    client = sidecar("127.0.0.1", namespace="shop")
    found = [edge(world).SerializeToString(), *(x.SerializeToString() for x in listeners(world, client).values())]
    clusters = [own_cluster(world, n, client).SerializeToString() for n in ("outbound|80||web.example", "inbound|80||")]
    assert complaints(tmp_path, found, clusters) == ""
