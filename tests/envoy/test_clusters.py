"""Outbound clusters: which there are, how they find endpoints, connect and choose."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.clusters.dynamic_forward_proxy.v3.cluster_pb2 import ClusterConfig
from envoy.extensions.network.dns_resolver.cares.v3.cares_dns_resolver_pb2 import CaresDnsResolverConfig
from google.protobuf.json_format import MessageToDict

from mesh_pilot.engine import Watch
from mesh_pilot.world import World
from tests.support.plans import outbound_clusters
from tests.support.upstreams import http_options, outbound, target, tls
from tests.support.worlds import sidecar, update, world_of

UNLIMITED = 4294967295

STORE = "store.shop.svc.cluster.local"


def entry(
    name: str = "store",
    *,
    host: str = STORE,
    ports: str = "[{number: 80, name: http, protocol: HTTP}]",
    resolution: str = "STATIC",
    endpoints: str = "[{address: 10.2.1.1, serviceAccount: store}]",
    more: str = "",
) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: ["{host}"]
  location: MESH_INTERNAL
  resolution: {resolution}
  ports: {ports}
  {f"endpoints: {endpoints}" if endpoints else ""}
  {more}
---
"""


def rule(policy: str = "", subsets: str = "[]", host: str = STORE) -> str:
    said = f"trafficPolicy: {policy}, " if policy else ""
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: rule, namespace: shop}}
spec: {{host: "{host}", {said}subsets: {subsets}}}
---
"""


def only(world: World, name: str = f"outbound|80||{STORE}", **proxy: Any) -> Cluster:
    return outbound(world, sidecar(**proxy))[name]


def plain(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


# -- which clusters


def test_each_port_and_subset_has_a_cluster() -> None:
    ports = "[{number: 80, name: http, protocol: HTTP}, {number: 90, name: t, protocol: TCP}]"
    world = world_of(entry(ports=ports) + rule(subsets="[{name: v1, labels: {v: one}}]"))
    assert list(outbound(world, sidecar())) == [
        f"outbound|80||{STORE}",
        f"outbound|80|v1|{STORE}",
        f"outbound|90||{STORE}",
        f"outbound|90|v1|{STORE}",
        "BlackHoleCluster",
        "PassthroughCluster",
    ]


def test_a_router_has_nowhere_but_no_passthrough() -> None:
    names = list(outbound(world_of(entry()), sidecar(node_type="router")))
    assert names == [f"outbound|80||{STORE}", "BlackHoleCluster"]


def test_a_gateway_that_passes_by_server_name_has_a_second_cluster_without_tls() -> None:
    gateway = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: default}
spec:
  servers:
  - {port: {number: 15443, name: tls, protocol: TLS}, hosts: ["*.local"], tls: {mode: AUTO_PASSTHROUGH}}
"""
    found = outbound(world_of(entry() + gateway), sidecar(node_type="router"))
    passed = found[f"outbound_.80_._.{STORE}"]
    assert passed.eds_cluster_config.service_name == passed.name
    assert not passed.transport_socket_matches
    assert found[f"outbound|80||{STORE}"].transport_socket_matches


def test_a_sidecar_has_clusters_for_what_its_sidecar_config_lets_it_reach() -> None:
    scope = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{port: {number: 90, name: t, protocol: TCP}, hosts: ["shop/*"]}]}
"""
    ports = "[{number: 80, name: http, protocol: HTTP}, {number: 90, name: t, protocol: TCP}]"
    found = outbound(world_of(entry(ports=ports) + scope), sidecar())
    assert list(found)[:-2] == [f"outbound|90||{STORE}"]


def test_a_sidecar_config_may_leave_out_what_it_else_imports() -> None:
    def scope(*hosts: str) -> str:
        return f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: default}}
spec: {{egress: [{{hosts: {list(hosts)}}}]}}
"""

    def reached(*hosts: str) -> list[str]:
        return list(outbound(world_of(entry() + scope(*hosts)), sidecar()))[:-2]

    reachable = [f"outbound|80||{STORE}"]
    assert reached("*/*") == reached("*/*", "~other/*") == reached("*/*", "~shop/a.test") == reachable
    assert reached("*/*", "~shop/*") == reached("shop/*", f"~*/{STORE}") == reached("~shop/*", "shop/*") == []


def test_scopes_that_follow_the_same_rule_share_the_cluster() -> None:
    world = world_of(entry() + rule("{connectionPool: {tcp: {connectTimeout: 1s}}}"))
    plans = []
    for namespace in ("a", "b"):
        at = target(world, sidecar(namespace=namespace))
        plans.append(outbound_clusters(world.view, at.scope, at.locality))
    assert plans[0] == plans[1]


def test_endpoints_that_come_and_go_leave_clusters_alone() -> None:
    world = world_of(entry())
    at = target(world, sidecar())
    watch = Watch(world.memo, lambda: None)
    for call in watch.get(outbound_clusters.query(at.scope, at.locality)).values():
        watch.get(call)
    before = world.memo.statistics().calls
    update(
        world,
        entry(endpoints="[{address: 10.2.1.1, serviceAccount: store}, {address: 10.9.9.9, serviceAccount: store}]"),
    )
    for call in watch.get(outbound_clusters.query(at.scope, at.locality)).values():
        watch.get(call)
    after = world.memo.statistics().calls
    assert (after["cluster"], after["outbound_clusters"]) == (before["cluster"], before["outbound_clusters"])


# -- how endpoints are found


def test_a_static_service_is_by_eds_over_the_same_stream() -> None:
    cluster = only(world_of(entry()))
    assert cluster.type == Cluster.EDS
    assert cluster.eds_cluster_config.service_name == cluster.name
    assert cluster.eds_cluster_config.eds_config.HasField("ads")


def test_a_dns_service_carries_its_names() -> None:
    text = entry(resolution="DNS", endpoints="[{address: a.example.com, ports: {http: 8080}, weight: 3}]")
    cluster = only(world_of(text, mesh="dnsRefreshRate: 11s"))
    assert cluster.type == Cluster.STRICT_DNS
    assert cluster.dns_lookup_family == Cluster.V4_ONLY
    assert (cluster.dns_refresh_rate.seconds, cluster.respect_dns_ttl) == (11, True)
    (locality,) = plain(cluster.load_assignment)["endpoints"]
    assert locality["load_balancing_weight"] == 3
    address = locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    assert address == {"address": "a.example.com", "port_value": 8080}


def test_a_proxy_with_ipv6_alone_resolves_to_ipv6() -> None:
    text = entry(resolution="DNS", endpoints="[{address: a.example.com}]")
    assert only(world_of(text), ip="2001:db8::1").dns_lookup_family == Cluster.V6_ONLY


def test_one_name_at_a_time_needs_exactly_one_and_without_any_the_cluster_is_still_there() -> None:
    one = entry(resolution="DNS_ROUND_ROBIN", endpoints="[{address: a.example.com}]")
    assert only(world_of(one)).type == Cluster.LOGICAL_DNS
    none = entry(resolution="DNS_ROUND_ROBIN", endpoints="", more="workloadSelector: {labels: {a: b}}")
    cluster = only(world_of(none))
    assert cluster.type == Cluster.STRICT_DNS
    assert not cluster.load_assignment.endpoints


def test_name_servers_that_are_away_delay_a_start_by_seconds() -> None:
    for resolution in ("DNS", "DNS_ROUND_ROBIN"):
        text = entry(resolution=resolution, endpoints="[{address: a.example.com}]")
        cluster = only(world_of(text))
        resolver = CaresDnsResolverConfig()
        assert cluster.typed_dns_resolver_config.typed_config.Unpack(resolver)
        assert (resolver.query_timeout_seconds.value, resolver.query_tries.value) == (1, 2)
        assert plain(cluster.dns_failure_refresh_rate) == {"base_interval": "2s", "max_interval": "10s"}
        own = only(world_of(text), OWN_DNS_RESOLVER="true")
        assert not own.HasField("typed_dns_resolver_config"), "its bootstrap has a resolver"


def test_a_subset_of_a_dns_service_has_the_endpoints_with_its_labels() -> None:
    text = entry(resolution="DNS", endpoints="[{address: a.b, labels: {v: one}}, {address: c.d, labels: {v: two}}]")
    cluster = only(world_of(text + rule(subsets="[{name: two, labels: {v: two}}]")), f"outbound|80|two|{STORE}")
    (locality,) = cluster.load_assignment.endpoints
    assert [e.endpoint.address.socket_address.address for e in locality.lb_endpoints] == ["c.d"]


def test_dynamic_dns_resolves_what_requests_ask_for() -> None:
    text = entry(host="*.example.com", resolution="DYNAMIC_DNS", endpoints="").replace("INTERNAL", "EXTERNAL")
    cluster = only(world_of(text), "outbound|80||*.example.com")
    assert cluster.lb_policy == Cluster.CLUSTER_PROVIDED
    config = ClusterConfig()
    assert cluster.cluster_type.typed_config.Unpack(config)
    assert config.dns_cache_config.name == "dynamic"


def test_a_dns_cache_of_another_refresh_rate_has_another_name() -> None:
    text = entry(host="*.example.com", resolution="DYNAMIC_DNS", endpoints="").replace("INTERNAL", "EXTERNAL")
    names = []
    for rate in ("60s", "3s", "3.5s", "1234567s", "1234568s"):
        cluster = only(world_of(text, mesh=f"{{dnsRefreshRate: {rate}}}"), "outbound|80||*.example.com")
        config = ClusterConfig.FromString(cluster.cluster_type.typed_config.value)
        names.append(config.dns_cache_config.name)
    assert names[0] == "dynamic"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("proxy", "kind"),
    [
        ({}, Cluster.ORIGINAL_DST),
        ({"node_type": "router"}, Cluster.EDS),
        ({"INTERCEPTION_MODE": "NONE"}, Cluster.EDS),
    ],
)
def test_only_a_proxy_that_traffic_is_redirected_to_knows_where_it_was_going(proxy: dict[str, Any], kind: int) -> None:
    assert only(world_of(entry(resolution="NONE", endpoints="")), **proxy).type == kind
    balanced = entry() + rule("{loadBalancer: {simple: PASSTHROUGH}}")
    assert only(world_of(balanced), **proxy).type == kind


# -- connections


def test_without_a_rule_nothing_is_limited() -> None:
    cluster = only(world_of(entry(), mesh="connectTimeout: 4s"))
    (limits,) = plain(cluster.circuit_breakers)["thresholds"]
    assert limits == dict.fromkeys(
        ("max_connections", "max_pending_requests", "max_requests", "max_retries"), UNLIMITED
    )
    assert cluster.connect_timeout.seconds == 4
    assert not cluster.typed_extension_protocol_options
    assert not cluster.HasField("upstream_connection_options")


def test_a_connection_pool_sets_limits_and_timeouts() -> None:
    pool = """{connectionPool: {
      tcp: {maxConnections: 7, connectTimeout: 1.25s, maxConnectionDuration: 60s,
            tcpKeepalive: {probes: 5, time: 600s}},
      http: {http1MaxPendingRequests: 1, http2MaxRequests: 2, maxRetries: 3,
             maxRequestsPerConnection: 4, idleTimeout: 90s}}}"""
    cluster = only(world_of(entry() + rule(pool), mesh="tcpKeepalive: {probes: 1, interval: 7s}"))
    (limits,) = plain(cluster.circuit_breakers)["thresholds"]
    assert [limits[k] for k in ("max_connections", "max_pending_requests", "max_requests", "max_retries")] == [
        7,
        1,
        2,
        3,
    ]
    assert plain(cluster.connect_timeout) == "1.250s"
    keepalive = plain(cluster.upstream_connection_options.tcp_keepalive)
    assert keepalive == {"keepalive_probes": 5, "keepalive_time": 600, "keepalive_interval": 7}
    options = http_options(cluster)
    assert options.explicit_http_config.HasField("http_protocol_options")
    common = plain(options.common_http_protocol_options)
    expected = {"idle_timeout": "90s", "max_requests_per_connection": 4, "max_connection_duration": "60s"}
    assert common == expected


@pytest.mark.parametrize(
    ("protocol", "policy", "mesh", "allowed"),
    [
        ("HTTP", "UPGRADE", "", True),
        ("HTTP", "DEFAULT", "h2UpgradePolicy: UPGRADE", True),
        ("HTTP", "DO_NOT_UPGRADE", "h2UpgradePolicy: UPGRADE", False),
        ("GRPC", "UPGRADE", "", False),
        ("HTTP2", "DEFAULT", "", False),
    ],
)
def test_websockets_go_over_upgraded_connections(protocol: str, policy: str, mesh: str, allowed: bool) -> None:
    text = entry(ports=f"[{{number: 80, name: http, protocol: {protocol}}}]")
    text += rule(f"{{connectionPool: {{http: {{h2UpgradePolicy: {policy}}}}}}}")
    options = http_options(only(world_of(text, mesh=mesh)))
    assert options.explicit_http_config.http2_protocol_options.allow_connect is allowed


def test_an_empty_keepalive_is_the_operating_systems() -> None:
    cluster = only(world_of(entry() + rule("{connectionPool: {tcp: {tcpKeepalive: {}}}}")))
    assert cluster.upstream_connection_options.HasField("tcp_keepalive")


def test_a_retry_budget_takes_the_place_of_a_number_of_retries() -> None:
    cluster = only(world_of(entry() + rule("{retryBudget: {percent: 30, minRetryConcurrency: 4, budgetInterval: 5s}}")))
    (limits,) = cluster.circuit_breakers.thresholds
    assert plain(limits.retry_budget) == {"budget_percent": {"value": 30.0}, "min_retry_concurrency": 4}
    assert limits.retry_budget.SerializeToString().endswith(b"\x1a\x02\x08\x05"), "budget_interval: 5s"


@pytest.mark.parametrize(
    ("protocol", "http", "mesh", "speaks"),
    [
        ("HTTP", "", "", ""),
        ("TCP", "", "", ""),
        ("GRPC", "", "", "http2"),
        ("HTTP2", "h2UpgradePolicy: DO_NOT_UPGRADE", "", "http2"),
        ("HTTP", "h2UpgradePolicy: UPGRADE", "", "http2"),
        ("HTTP", "", "h2UpgradePolicy: UPGRADE", "http2"),
        ("HTTP", "h2UpgradePolicy: DO_NOT_UPGRADE", "h2UpgradePolicy: UPGRADE", ""),
        ("TCP", "", "h2UpgradePolicy: UPGRADE", ""),
        ("HTTP", "useClientProtocol: true", "h2UpgradePolicy: UPGRADE", "as client"),
        ("", "", "", "as client"),
        ("", "h2UpgradePolicy: UPGRADE", "", "as client"),
        ("TCP", "h2UpgradePolicy: UPGRADE", "", ""),
    ],
)
def test_which_http_is_spoken(protocol: str, http: str, mesh: str, speaks: str) -> None:
    port = f"{{number: 80, name: p{f', protocol: {protocol}' if protocol else ''}}}"
    text = entry(ports=f"[{port}]") + rule(f"{{connectionPool: {{http: {{{http}}}}}}}")
    options = http_options(only(world_of(text, mesh=mesh)))
    assert options.explicit_http_config.HasField("http2_protocol_options") == (speaks == "http2")
    assert options.HasField("use_downstream_protocol_config") == (speaks == "as client")


def test_a_router_does_not_guess_protocols() -> None:
    text = entry(ports="[{number: 80, name: p}]")
    assert not only(world_of(text), node_type="router").typed_extension_protocol_options


def test_http2_has_its_streams_and_pings() -> None:
    text = entry() + rule(
        "{connectionPool: {http: {h2UpgradePolicy: UPGRADE, maxConcurrentStreams: 7, http2KeepAlive: {interval: 5s}}}}"
    )
    options = plain(http_options(only(world_of(text))).explicit_http_config.http2_protocol_options)
    assert options == {
        "allow_connect": True,
        "max_concurrent_streams": 7,
        "connection_keepalive": {"interval": "5s", "timeout": "5s"},
    }


# -- choosing


@pytest.mark.parametrize(
    ("simple", "policy"),
    [
        ("UNSPECIFIED", Cluster.LEAST_REQUEST),
        ("LEAST_CONN", Cluster.LEAST_REQUEST),
        ("LEAST_REQUEST", Cluster.LEAST_REQUEST),
        ("RANDOM", Cluster.RANDOM),
        ("ROUND_ROBIN", Cluster.ROUND_ROBIN),
    ],
)
def test_simple_load_balancers(simple: str, policy: int) -> None:
    assert only(world_of(entry() + rule(f"{{loadBalancer: {{simple: {simple}}}}}"))).lb_policy == policy


def test_new_endpoints_warm_up() -> None:
    text = entry() + rule("{loadBalancer: {simple: ROUND_ROBIN, warmupDurationSecs: 40s}}")
    config = only(world_of(text)).round_robin_lb_config.slow_start_config
    assert plain(config) == {"slow_start_window": "40s"}
    text = entry() + rule("{loadBalancer: {warmup: {duration: 10s, minimumPercent: 5, aggression: 0.5}}}")
    config = only(world_of(text)).least_request_lb_config.slow_start_config
    found = plain(config)
    assert found["aggression"].pop("runtime_key")
    assert found == {
        "slow_start_window": "10s",
        "min_weight_percent": {"value": 5.0},
        "aggression": {"default_value": 0.5},
    }


@pytest.mark.parametrize(
    ("hashing", "policy", "size"),
    [
        ("httpHeaderName: x", Cluster.RING_HASH, 1024),
        ("httpHeaderName: x, minimumRingSize: 4096", Cluster.RING_HASH, 4096),
        ("useSourceIp: true, ringHash: {minimumRingSize: 9}", Cluster.RING_HASH, 9),
        ("ringHash: {minimumRingSize: 9}", Cluster.RING_HASH, 9),
        ("useSourceIp: true, maglev: {tableSize: 101}", Cluster.MAGLEV, 101),
        ("useSourceIp: true, maglev: {tableSize: 101}", Cluster.MAGLEV, 101),
    ],
)
def test_consistent_hashing(hashing: str, policy: int, size: int) -> None:
    cluster = only(world_of(entry() + rule(f"{{loadBalancer: {{consistentHash: {{{hashing}}}}}}}")))
    assert cluster.lb_policy == policy
    found = (
        cluster.maglev_lb_config.table_size
        if policy == Cluster.MAGLEV
        else cluster.ring_hash_lb_config.minimum_ring_size
    )
    assert found.value == size


WEIGHED = "locality_weighted_lb_config"
SPREAD = '{distribute: [{from: "*", to: {"*": 100}}]}'


@pytest.mark.parametrize(
    ("setting", "mesh", "specifier"),
    [
        ("", "", None),
        ("localityLbSetting: {enabled: true}", "", None),
        ("", f"localityLbSetting: {SPREAD}", WEIGHED),
        ("localityLbSetting: {enabled: false}", f"localityLbSetting: {SPREAD}", None),
        (f"localityLbSetting: {SPREAD}", "localityLbSetting: {enabled: false}", WEIGHED),
        ("localityLbSetting: {failover: [{from: a, to: b}]}", "", None),
        ("localityLbSetting: {failover: [{from: a, to: b}]}}, outlierDetection: {", "", WEIGHED),
        ("localityLbSetting: {failoverPriority: [zone]}}, outlierDetection: {", "", WEIGHED),
        ("", "zoneAwareLbSetting: {enabled: true}", "zone_aware_lb_config"),
        (f"localityLbSetting: {SPREAD}", "zoneAwareLbSetting: {enabled: true}", WEIGHED),
        ("zoneAwareLbSetting: {minClusterSize: 3}", "", "zone_aware_lb_config"),
        ("", f"{{zoneAwareLbSetting: {{}}, localityLbSetting: {SPREAD}}}", "zone_aware_lb_config"),
        ("zoneAwareLbSetting: {enabled: false}", f"localityLbSetting: {SPREAD}", "zone_aware_lb_config"),
    ],
)
def test_localities_are_weighed_where_a_setting_says_how(setting: str, mesh: str, specifier: str | None) -> None:
    cluster = only(world_of(entry() + rule(f"{{loadBalancer: {{{setting}}}}}"), mesh=mesh))
    assert cluster.common_lb_config.WhichOneof("locality_config_specifier") == specifier


ZONES_OFF = {"routing_enabled": {}}


@pytest.mark.parametrize(
    ("setting", "mesh", "metadata", "zone_aware"),
    [
        ("zoneAwareLbSetting: {}", "", {}, {}),
        ("zoneAwareLbSetting: {minClusterSize: 3}", "", {}, {"min_cluster_size": "3"}),
        ("zoneAwareLbSetting: {enabled: false}", "zoneAwareLbSetting: {}", {}, ZONES_OFF),
        ("", "zoneAwareLbSetting: {enabled: false}", {}, ZONES_OFF),
        ("localityLbSetting: {enabled: false}", "zoneAwareLbSetting: {}", {}, None),
        ("", "", {}, None),
        ("", "", {"ENABLE_SELF_DISCOVERY": "true"}, ZONES_OFF),
        ("zoneAwareLbSetting: {}", "", {"ENABLE_SELF_DISCOVERY": "true"}, {}),
        (f"localityLbSetting: {SPREAD}", "", {"ENABLE_SELF_DISCOVERY": "true"}, None),
    ],
)
def test_envoys_that_can_route_by_zone_do_so_only_where_a_setting_says_it(
    setting: str, mesh: str, metadata: dict[str, str], zone_aware: dict[str, Any] | None
) -> None:
    cluster = only(world_of(entry() + rule(f"{{loadBalancer: {{{setting}}}}}"), mesh=mesh), **metadata)
    assert plain(cluster.common_lb_config).get("zone_aware_lb_config") == zone_aware


def test_outlier_detection_says_what_is_said_and_turns_success_rates_off() -> None:
    outlier = """{outlierDetection: {consecutive5xxErrors: 9, consecutiveGatewayErrors: 0, interval: 7s,
      baseEjectionTime: 45s, maxEjectionPercent: 33, minHealthPercent: 50,
      splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 6}}"""
    cluster = only(world_of(entry() + rule(outlier)))
    assert plain(cluster.outlier_detection) == {
        "consecutive_5xx": 9,
        "enforcing_consecutive_5xx": 100,
        "consecutive_gateway_failure": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "interval": "7s",
        "base_ejection_time": "45s",
        "max_ejection_percent": 33,
        "enforcing_success_rate": 0,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 6,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
    }
    assert cluster.common_lb_config.healthy_panic_threshold.value == 50


def test_an_empty_outlier_detection_is_on_and_never_panics() -> None:
    cluster = only(world_of(entry() + rule("{outlierDetection: {}}")))
    assert plain(cluster.outlier_detection) == {"enforcing_success_rate": 0}
    assert cluster.common_lb_config.HasField("healthy_panic_threshold")


def test_outliers_may_be_found_by_status_codes() -> None:
    text = entry() + rule("{outlierDetection: {outlierDetectionHttpErrorCodes: [500, 429]}}")
    matcher = http_options(only(world_of(text))).outlier_detection.error_matcher
    codes = [r.http_response_headers_match.headers[0].string_match.exact for r in matcher.or_match.rules]
    assert codes == ["429", "500"]


def test_clusters_may_be_counted_under_names_of_their_own() -> None:
    mesh = 'outboundClusterStatName: "%SERVICE_FQDN%_%SERVICE_PORT_NAME%_%SERVICE_PORT%_%TARGET_PORT%_%SUBSET_NAME%"'
    world = world_of(entry() + rule(subsets="[{name: v1}]"), mesh=mesh)
    assert only(world, f"outbound|80|v1|{STORE}").alt_stat_name == f"{STORE}_http_80_80_v1"


@pytest.mark.parametrize(
    ("protocol", "policy"),
    [
        ("GRPC", "{tls: {mode: DISABLE}}"),
        ("HTTP", "{connectionPool: {http: {idleTimeout: 3s}}}"),
        ("HTTP", "{connectionPool: {http: {useClientProtocol: true}}}"),
        ("HTTP", "{outlierDetection: {outlierDetectionHttpErrorCodes: [500]}}"),
    ],
)
def test_a_cluster_of_any_host_verifies_the_requested_one_whatever_options_it_has(protocol: str, policy: str) -> None:
    ports = f"[{{number: 80, name: web, protocol: {protocol}}}]"
    text = entry(host="*.example.com", resolution="DYNAMIC_DNS", ports=ports, endpoints="").replace(
        "INTERNAL", "EXTERNAL"
    )
    options = http_options(only(world_of(text + rule(policy, host="*.example.com")), "outbound|80||*.example.com"))
    said = options.upstream_http_protocol_options
    assert said.auto_sni and said.auto_san_validation


def test_a_host_too_long_for_a_server_name_has_none() -> None:
    host = ".".join(["a" * 60] * 3 + ["b" * 56])
    world = world_of(entry(host=host) + rule("{tls: {mode: ISTIO_MUTUAL}}", "[{name: v1}]", host))
    assert len(tls(only(world, f"outbound|80||{host}")).sni) == len(host) + len("outbound_.80_._.") == 255
    assert tls(only(world, f"outbound|80|v1|{host}")).sni == ""
    without_rule = world_of(entry(host=f"c{host}"))
    match = only(without_rule, f"outbound|80||c{host}").transport_socket_matches[0]
    assert b"outbound_" not in match.transport_socket.typed_config.value
