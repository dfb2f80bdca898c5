"""What Istio has changed since 1.14 and we follow, where no other test holds it, as a proxy is sent it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from tests.envoy.test_istio_differences import CLIENT, EDGE, FILES, WEB, Sent, config, gateway, service
from tests.support.listeners import manager, tcp
from tests.support.worlds import sidecar

TCP_PORT = "{number: 9000, name: tcp, protocol: TCP}"
TO_WEB = f"route: [{{destination: {{host: {WEB}}}}}]"
SERVER = sidecar("10.1.1.1", name="web-1", namespace="shop")
HTTP_SERVER = "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}"
OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def rule(policy: str, more: str = "") -> str:
    return config("DestinationRule", "web", f"{{host: web, trafficPolicy: {{{policy}}}{more}}}")


def cluster(text: str, subset: str = "", mesh: str = "") -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(Sent(text, mesh=mesh).get(CLUSTER, f"outbound|80|{subset}|{WEB}"))
    return found


def routes(http: str, day: int = 1) -> str:
    return config("VirtualService", f"v{day}", f"{{hosts: [{WEB}], http: [{http}]}}", day=day)


# -- services and rules


@pytest.mark.parametrize("selector", ["{}", "{labels: {}}"])
def test_an_empty_workload_selector_selects_nothing(selector: str) -> None:
    entry = service(endpoints="", more=f"workloadSelector: {selector}")
    found = Sent(entry + config("WorkloadEntry", "w", "{address: 10.3.3.3, labels: {a: b}}"))
    assert not found.get(ENDPOINT, f"outbound|80||{WEB}").endpoints


def test_a_warm_up_needs_no_load_balancer_beside_it() -> None:
    found = cluster(service() + rule("loadBalancer: {warmupDurationSecs: 10s}"))
    assert found["leastRequestLbConfig"]["slowStartConfig"]["slowStartWindow"] == "10s"


def test_a_service_of_addresses_may_be_passed_through() -> None:
    found = cluster(service() + rule("loadBalancer: {simple: PASSTHROUGH}"))
    assert found["type"] == "ORIGINAL_DST" and "loadAssignment" not in found


def test_a_retry_budget_is_inherited_by_subsets_and_theirs_wins() -> None:
    text = service() + rule(
        "retryBudget: {percent: 30}",
        ", subsets: [{name: a, trafficPolicy: {loadBalancer: {simple: RANDOM}}}, "
        "{name: b, trafficPolicy: {retryBudget: {}}}]",
    )
    percents = [
        cluster(text, subset)["circuitBreakers"]["thresholds"][0]["retryBudget"]["budgetPercent"]["value"]
        for subset in ("a", "b")
    ]
    assert percents == [30, 20]


def test_a_subset_without_tls_of_its_own_has_that_of_the_rule() -> None:
    subsets = ", subsets: [{name: a, trafficPolicy: {loadBalancer: {simple: RANDOM}}}]"
    text = service() + rule("tls: {mode: DISABLE}", subsets)
    (group,) = Sent(text).get(ENDPOINT, f"outbound|80|a|{WEB}").endpoints
    assert not group.lb_endpoints[0].HasField("metadata")


def test_a_proxy_header_goes_without_tls_too() -> None:
    found = cluster(service() + rule("tls: {mode: DISABLE}, proxyProtocol: {version: V2}"))
    assert found["transportSocket"]["name"] == "envoy.transport_sockets.upstream_proxy_protocol"


def test_endpoints_get_requests_by_the_utilization_that_they_report() -> None:
    text = service() + rule(
        "loadBalancer: {simple: RANDOM}",
        ", subsets: [{name: a, trafficPolicy: {loadBalancer: {backendUtilization: {}}}}, "
        "{name: b, trafficPolicy: {loadBalancer: {backendUtilization: {weightStabilizationPeriod: 4s, "
        "weightExpirationPeriod: 60s, weightUpdatePeriod: 2s, errorUtilizationPenaltyPercent: 150, "
        "metricNamesForComputingUtilization: [named_metrics.queue]}}}}]",
    )
    assert "loadBalancingPolicy" not in cluster(text)
    by_default, told = (
        cluster(text, subset)["loadBalancingPolicy"]["policies"][0]["typedExtensionConfig"]["typedConfig"]
        for subset in ("a", "b")
    )
    kind = "type.googleapis.com/envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3"
    assert by_default == {"@type": f"{kind}.ClientSideWeightedRoundRobin", "errorUtilizationPenalty": 0.0}
    assert told == {
        "@type": f"{kind}.ClientSideWeightedRoundRobin",
        "blackoutPeriod": "4s",
        "weightExpirationPeriod": "60s",
        "weightUpdatePeriod": "2s",
        "errorUtilizationPenalty": 1.5,
        "metricNamesForComputingUtilization": ["named_metrics.queue"],
    }


@pytest.mark.parametrize(("threshold", "enforced"), [(60, 100), (0, 0)])
def test_endpoints_are_ejected_for_their_share_of_failures(threshold: int, enforced: int) -> None:
    found = cluster(service() + rule(f"outlierDetection: {{failurePercentageThreshold: {threshold}}}"))
    detection = found["outlierDetection"]
    assert detection["failurePercentageThreshold"] == threshold
    assert detection["enforcingFailurePercentage"] == enforced


@pytest.mark.parametrize("own", ["clientCertificate: /a.crt, privateKey: /a.key", "credentialName: own"])
def test_roots_may_come_from_a_credential_of_another_name(own: str) -> None:
    found = cluster(service() + rule(f"tls: {{mode: MUTUAL, {own}, caCertCredentialName: theirs}}"))
    common = found["transportSocket"]["typedConfig"]["commonTlsContext"]
    secret = common["combinedValidationContext"]["validationContextSdsSecretConfig"]["name"]
    assert secret == "kubernetes://theirs-cacert"


def test_http2_settings_count_for_connections_that_are_upgraded() -> None:
    found = cluster(service() + rule("connectionPool: {http: {h2UpgradePolicy: UPGRADE, maxConcurrentStreams: 7}}"))
    options = found["typedExtensionProtocolOptions"][OPTIONS]
    assert options["explicitHttpConfig"]["http2ProtocolOptions"]["maxConcurrentStreams"] == 7


@pytest.mark.parametrize("pool", ["tcp: {idleTimeout: 0s}", "http: {idleTimeout: 0s}, tcp: {idleTimeout: 9s}"])
def test_an_idle_timeout_of_zero_is_none(pool: str) -> None:
    found = cluster(service() + rule(f"connectionPool: {{{pool}}}"))
    assert found["typedExtensionProtocolOptions"][OPTIONS]["commonHttpProtocolOptions"]["idleTimeout"] == "0s"


def test_an_idle_timeout_of_zero_is_none_for_connections_too() -> None:
    text = service(ports=TCP_PORT, more="addresses: [10.9.0.1]") + rule("connectionPool: {tcp: {idleTimeout: 0s}}")
    (chain,) = Sent(text).get(LISTENER, "10.9.0.1_9000").filter_chains
    assert tcp(chain).HasField("idle_timeout") and tcp(chain).idle_timeout.seconds == 0


def test_an_address_that_two_services_share_costs_neither_its_others() -> None:
    one = service("one", more="addresses: [10.9.0.1]", ports=f"{{number: 80, name: http, protocol: HTTP}}, {TCP_PORT}")
    two = service("two", more="addresses: [10.9.0.2, 10.9.0.1]", ports=f"{{number: 80, name: http}}, {TCP_PORT}")
    sent = Sent(one + two)
    assert {"10.9.0.1_9000", "10.9.0.2_9000"} <= sent.names(LISTENER)
    domains = [d for h in sent.get(ROUTE, "80").virtual_hosts for d in h.domains]
    assert len(domains) == len(set(domains))


def test_own_namespace_and_others_are_exported_to_by_default_where_the_mesh_says_so() -> None:
    text = service(namespace="far")
    reached = [
        "outbound|80||web.far.svc.cluster.local" in Sent(text, CLIENT, mesh).names(CLUSTER)
        for mesh in ("defaultServiceExportTo: ['.', shop]", "defaultServiceExportTo: ['.']")
    ]
    assert reached == [True, False]


def test_a_delegate_is_seen_as_far_as_virtual_services_are_exported() -> None:
    found = []
    for namespace in ("shop", "far"):
        delegate = f"{{name: part, namespace: {namespace}}}"
        part = config("VirtualService", "part", f"{{http: [{{name: part, {TO_WEB}}}]}}", namespace=namespace)
        text = service() + part + routes(f"{{delegate: {delegate}}}")
        sent = Sent(text, CLIENT, "defaultVirtualServiceExportTo: ['.']")
        found.append([r.name for r in sent.routes("80", f"{WEB}:80")])
    assert found == [["part"], ["default"]]


# -- routes


def test_hosts_under_a_wildcard_that_no_service_has_are_routed() -> None:
    text = service() + config("VirtualService", "v", f"{{hosts: ['*.else.example.com'], http: [{{{TO_WEB}}}]}}")
    hosts = Sent(text).get(ROUTE, "80").virtual_hosts
    assert "*.else.example.com" in [d for h in hosts for d in h.domains]


@pytest.mark.parametrize("everything", ["prefix: /", "regex: '.*'"])
def test_what_takes_everything_ends_a_virtual_service_and_goes_last_at_a_gateway(everything: str) -> None:
    rules = f"{{name: all, match: [{{uri: {{{everything}}}}}], {TO_WEB}}}"
    narrow = f"{{name: b, match: [{{uri: {{prefix: /b}}}}], {TO_WEB}}}"
    sent = Sent(service() + routes(f"{rules}, {narrow}"))
    assert [r.name for r in sent.routes("80", f"{WEB}:80")] == ["all"]
    at_gateway = "{{hosts: [x.example.com], gateways: [edge/gw], http: [{}]}}"
    text = service() + gateway("gw", HTTP_SERVER)
    text += config("VirtualService", "old", at_gateway.format(rules), day=1)
    text += config("VirtualService", "new", at_gateway.format(narrow), day=2)
    assert [r.name for r in Sent(text, EDGE).routes("http.80", "x.example.com:80")] == ["b", "all"]


def test_the_authority_among_the_headers_of_a_destination_is_the_host() -> None:
    text = routes("{route: [{destination: {host: web}, headers: {request: {set: {':authority': x.y}}}}]}")
    (route,) = Sent(service() + text).routes("80", f"{WEB}:80")
    assert route.route.host_rewrite_literal == "x.y"
    assert not route.request_headers_to_add


def test_nothing_limits_the_time_of_a_request_with_a_virtual_service_or_without() -> None:
    for text in (service(), service() + routes(f"{{{TO_WEB}}}")):
        (route,) = Sent(text).routes("80", f"{WEB}:80")
        assert route.route.HasField("timeout") and route.route.timeout.seconds == 0


def test_a_wildcard_namespace_in_a_sidecar_holds_for_namespaces_that_are_named_too() -> None:
    narrow = config("Sidecar", "default", "{egress: [{hosts: ['*/*', 'far/one.far.svc.cluster.local']}]}")
    text = service() + service("one", namespace="far") + service("two", namespace="far") + narrow
    assert "outbound|80||two.far.svc.cluster.local" in Sent(text).names(CLUSTER)


def test_of_two_virtual_services_for_a_host_on_sidecars_the_older_counts_delegate_or_not() -> None:
    to_delegate = f"{{hosts: [{WEB}], http: [{{delegate: {{name: part, namespace: shop}}}}]}}"
    part = config("VirtualService", "part", f"{{http: [{{name: older, route: [{{destination: {{host: {WEB}}}}}]}}]}}")
    younger = f"{{hosts: [{WEB}], http: [{{name: younger, route: [{{destination: {{host: {WEB}}}}}]}}]}}"
    text = service() + part + config("VirtualService", "root", to_delegate, day=2)
    sent = Sent(text + config("VirtualService", "young", younger, day=3))
    assert [r.name for r in sent.routes("80", f"{WEB}:80")] == ["older"]


# -- listeners


def test_a_server_has_curves_and_alpn_of_its_own() -> None:
    own = "ecdhCurves: [P-384, P-384, brainpool], alpnProtocols: [http/1.1]"
    server = "port: {{number: {0}, name: a{0}, protocol: HTTPS}}, hosts: ['*'], tls: {{mode: SIMPLE, {1}, {2}}}"
    text = gateway("one", f"{{{server.format(443, FILES, own)}}}, {{{server.format(444, FILES, 'caCrl: /x')}}}")
    sent = Sent(service() + text, EDGE, mesh="{tlsDefaults: {ecdhCurves: [P-256]}}")
    found = [
        MessageToDict(sent.get(LISTENER, f"0.0.0.0_{port}").filter_chains[0])["transportSocket"]["typedConfig"]
        for port in (443, 444)
    ]
    contexts = [each["commonTlsContext"] for each in found]
    assert [each["tlsParams"]["ecdhCurves"] for each in contexts] == [["P-384"], ["P-256"]]
    assert [each["alpnProtocols"] for each in contexts] == [["http/1.1"], ["h2", "http/1.1"]]


@pytest.mark.parametrize(
    ("policy", "sent"),
    [
        ("", {"retryOn": "reset-before-request", "numRetries": 2}),
        ("defaultInboundHttpRetryPolicy: {}", None),
        ("defaultInboundHttpRetryPolicy: {attempts: 3}", {"retryOn": "reset-before-request", "numRetries": 3}),
        (
            "defaultInboundHttpRetryPolicy: {attempts: 1, retryOn: 'reset,503', backoff: 0.2s, perTryTimeout: 1s}",
            {
                "retryOn": "reset,retriable-status-codes",
                "retriableStatusCodes": [503],
                "numRetries": 1,
                "retryBackOff": {"baseInterval": "0.200s"},
            },
        ),
    ],
)
def test_a_sidecar_asks_its_application_again_as_the_mesh_says(policy: str, sent: dict[str, Any] | None) -> None:
    listener = Sent(service(), SERVER, mesh=f"{{{policy}}}").get(LISTENER, "virtualInbound")
    chains = [chain for chain in listener.filter_chains if chain.filter_chain_match.destination_port.value == 80]
    assert chains
    for chain in chains:
        (route,) = MessageToDict(manager(chain).route_config.virtual_hosts[0])["routes"]
        assert route["route"].get("retryPolicy") == sent


def test_servers_of_one_port_with_addresses_of_their_own_have_listeners_of_their_own() -> None:
    port = "port: {{number: 80, name: {}, protocol: {}}}, bind: 10.0.0.{}, hosts: ['*']"
    text = gateway("one", f"{{{port.format('a', 'HTTP', 1)}}}") + gateway("two", f"{{{port.format('b', 'HTTP', 2)}}}")
    text += gateway("three", f"{{{port.format('c', 'TCP', 3)}}}")
    tcp_rule = "{route: [{destination: {host: db.shop.svc.cluster.local, port: {number: 9000}}}]}"
    text += config("VirtualService", "t", f"{{hosts: ['*'], gateways: [edge/three], tcp: [{tcp_rule}]}}")
    sent = Sent(service("db", ports=TCP_PORT) + text, EDGE)
    assert sent.names(LISTENER) == {"10.0.0.1_80", "10.0.0.2_80", "10.0.0.3_80"}


def test_an_https_server_leaves_an_http_server_of_another_address_its_routes() -> None:
    tls = f"tls: {{mode: SIMPLE, {FILES}}}"
    https = f"{{port: {{number: 443, name: a, protocol: HTTPS}}, bind: 10.0.0.1, hosts: ['*'], {tls}}}"
    http = "{port: {number: 443, name: b, protocol: HTTP}, bind: 10.0.0.2, hosts: ['*']}"
    vs = config("VirtualService", "v", f"{{hosts: [x.example.com], gateways: [edge/two], http: [{{{TO_WEB}}}]}}")
    sent = Sent(service() + gateway("one", https) + gateway("two", http, day=2) + vs, EDGE)
    assert sent.names(LISTENER) == {"10.0.0.1_443", "10.0.0.2_443"}
    assert sent.routes("http.443.10.0.0.2", "x.example.com:443")


def test_headers_of_envoy_are_believed_from_networks_of_the_mesh_at_gateways() -> None:
    networks = """networks:
  far: {endpoints: [{fromCidr: 10.9.0.0/16}, {fromCidr: 10.7.3.0/24}, {fromRegistry: Consul}]}
  near: {endpoints: [{fromCidr: 10.9.0.0/16}]}"""
    for declared, expected in ((networks, [("10.7.3.0", 24), ("10.9.0.0", 16)]), ("", [])):
        sent = Sent(service() + gateway("gw", HTTP_SERVER), EDGE, networks=declared)
        config = manager(sent.get(LISTENER, "0.0.0.0_80").filter_chains[0]).internal_address_config
        assert [(each.address_prefix, each.prefix_len.value) for each in config.cidr_ranges] == expected
    outbound = Sent(service(), CLIENT, networks=networks).get(LISTENER, "0.0.0.0_80")
    assert not manager(outbound.filter_chains[0]).HasField("internal_address_config")


def test_a_log_format_without_a_final_newline_gets_one() -> None:
    sent = Sent("", mesh="{accessLogFile: /dev/stdout, accessLogFormat: '%PROTOCOL%'}")
    (log,) = sent.get(LISTENER, "virtualOutbound").access_log
    assert MessageToDict(log.typed_config)["logFormat"]["textFormatSource"]["inlineString"] == "%PROTOCOL%\n"
