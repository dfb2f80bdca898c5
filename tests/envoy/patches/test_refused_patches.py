"""Patches that Envoy refuses: each costs itself, and a real Envoy says the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.envoy_filter import parse, trials
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, EXTENSION, LISTENER, ROUTE
from tests.support.envoy_check import complaints
from tests.support.patching import API, EDGE, HCM, LUA, ROUTER, Shop, envoy_filter, in_filter, in_http_filter, patch

TYPE = "type.googleapis.com/envoy.extensions"
HTTP, NETWORK, TLS = f"{TYPE}.filters.http", f"{TYPE}.filters.network", f"{TYPE}.transport_sockets.tls.v3"
TCP = f"{NETWORK}.tcp_proxy.v3.TcpProxy"
INSPECTOR = f"{TYPE}.filters.listener.tls_inspector.v3.TlsInspector"
OUT, IN, GATE = "SIDECAR_OUTBOUND", "SIDECAR_INBOUND", "GATEWAY"

WEB = (LISTENER, "0.0.0.0_80")
INBOUND = (LISTENER, "virtualInbound")
EDGE_WEB = (LISTENER, "0.0.0.0_8081")
TABLE = (ROUTE, "80")
EDGE_TABLE = (ROUTE, "http.8081")
DATABASE = (CLUSTER, "outbound|9000||api.shop.svc.cluster.local")
NEW_CLUSTER = (CLUSTER, "new")
NEW_LISTENER = (LISTENER, "new")
NEW_CONFIG = (EXTENSION, "new")

Row = tuple[tuple[str, str], dict[str, Any], str]


def web(operation: str, value: Any = None, kind: str = "HTTP_FILTER", context: str = OUT, **match: Any) -> Any:
    """A patch to the listeners of port 80, or 8081 of the gateway, or inbound."""
    name = {OUT: "0.0.0.0_80", IN: "virtualInbound", GATE: "0.0.0.0_8081"}[context]
    return patch(kind, operation, value, context=context, listener={"name": name, **match})


def route(operation: str, value: Any, kind: str = "HTTP_ROUTE", context: str = OUT, **match: Any) -> Any:
    return patch(kind, operation, value, context=context, **({"routeConfiguration": match} if match else {}))


def cluster(operation: str, value: Any) -> Any:
    match = {} if operation == "ADD" else {"cluster": {"name": DATABASE[1]}}
    return patch("CLUSTER", operation, value, context=OUT, **match)


def rows() -> Iterator[Row]:
    """The resource, the patch, and the reason in our words."""
    lua = {"name": "new", "typed_config": {"@type": LUA}}
    router = {"name": "new", "typed_config": {"@type": ROUTER}}
    at_router = in_http_filter("envoy.filters.http.router")
    # HTTP filters
    yield WEB, web("INSERT_FIRST", "{name: new, typed_config: {}}"), "typed_config: @type is missing"
    yield WEB, web("INSERT_FIRST", "{name: new}"), "typed_config: is missing"
    yield WEB, web("INSERT_FIRST", {"typed_config": {"@type": LUA}}), "name: is missing"
    yield WEB, web("INSERT_FIRST", router), "new is terminal, so it has to be the last"
    yield EDGE_WEB, web("INSERT_FIRST", router, context=GATE), "new is terminal, so it has to be the last"
    yield INBOUND, web("INSERT_FIRST", router, context=IN), "new is terminal, so it has to be the last"
    yield WEB, web("REMOVE", **at_router), "envoy.filters.http.cors, is not terminal: a router or proxy has to follow"
    yield WEB, web("INSERT_AFTER", lua, **at_router), "envoy.filters.http.router is terminal, so it has to be the last"
    yield (
        WEB,
        web("INSERT_FIRST", {"name": "new", "typed_config": {"@type": f"{NETWORK}.echo.v3.Echo"}}),
        "typed_config: envoy.extensions.filters.network.echo.v3.Echo is not of kind HTTP filter",
    )
    struct = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "value": {"a": 1}}
    yield WEB, web("INSERT_FIRST", {"name": "new", "typed_config": struct}), "type_url: '' is not the URL of a type"
    yield (
        WEB,
        web("INSERT_FIRST", {"name": "new", "typed_config": {"@type": f"{HTTP}.buffer.v3.Buffer"}}),
        "typed_config.max_request_bytes: is missing",
    )
    names = {"principal_name": {"safe_regex": {"regex": "(a"}}}
    rules = {"policies": {"a": {"permissions": [{"any": True}], "principals": [{"authenticated": names}]}}}
    rbac = {"@type": f"{HTTP}.rbac.v3.RBAC", "rules": rules}
    yield WEB, web("INSERT_FIRST", {"name": "new", "typed_config": rbac}), "principal_name.safe_regex.regex: "
    merged = {"name": "envoy.filters.http.router", "disabled": True, "typed_config": {"@type": ROUTER}}
    yield WEB, web("MERGE", merged, **at_router), "http_filters: the last, envoy.filters.http.router, can't be disabled"
    # network filters
    manager = {"@type": f"{NETWORK}.http_connection_manager.v3.HttpConnectionManager"}
    network = {"kind": "NETWORK_FILTER"}
    at_manager = {**network, **in_filter(HCM)}
    tcp = {"name": "new", "typed_config": {"@type": TCP, "stat_prefix": "a", "cluster": "a"}}
    yield WEB, web("INSERT_FIRST", tcp, **network), "filters: new is terminal, so it has to be the last"
    yield WEB, web("INSERT_FIRST", lua, **network), "filters.http.lua.v3.Lua is not of kind network filter"
    yield WEB, web("REPLACE", {"name": "new", "typed_config": {"@type": TCP}}, **at_manager), "stat_prefix: is missing"
    for field, value, reason in (
        ("stream_idle_timeout", "-1s", "typed_config.stream_idle_timeout: a duration can't be negative"),
        ("scoped_routes", {"name": "a"}, "typed_config.scoped_routes.scope_key_builder: is missing"),
        ("access_log", [{"name": "a"}], "typed_config.access_log[0].typed_config: is missing"),
        ("codec_type", 9, "typed_config.codec_type: 9 is not a value of "),
        ("http_filters", [{"name": "a"}], "typed_config.http_filters[0].typed_config: is missing"),
    ):
        yield WEB, web("MERGE", {"typed_config": {**manager, field: value}}, **at_manager), reason
        gateway = {**at_manager, "context": GATE}
        yield EDGE_WEB, web("MERGE", {"typed_config": {**manager, field: value}}, **gateway), reason
    # listener filters
    own = {"kind": "LISTENER_FILTER"}
    yield WEB, web("INSERT_FIRST", "{name: new}", **own), "typed_config: is missing"
    yield WEB, web("INSERT_FIRST", lua, **own), "filters.http.lua.v3.Lua is not of kind listener filter"
    yield INBOUND, web("ADD", {"typed_config": {"@type": INSPECTOR}}, context=IN, **own), "name: is missing"
    proxy = {"@type": f"{TYPE}.filters.listener.proxy_protocol.v3.ProxyProtocol", "rules": [{"tlv_type": 999}]}
    yield WEB, web("ADD", {"name": "a", "typed_config": proxy}, **own), "rules[0].tlv_type: has to be less than 256"
    # filter chains
    chain = {"kind": "FILTER_CHAIN"}
    for value, reason in (
        ("{filter_chain_match: {transport_protocol: raw_buffer, application_protocols: [h2c]}}", "for the same conn"),
        ("{filter_chain_match: {server_names: ['a*.b']}}", "a wildcard that is not its first label"),
        ("{filter_chain_match: {server_names: [a, A]}}", "is for the same connections"),
        ("{filter_chain_match: {prefix_ranges: [{address_prefix: x}]}}", "address_prefix: 'x' is not an IP address"),
        ("{filter_chain_match: {address_suffix: x}}", "address_suffix: Envoy does not support this field"),
        ("{filter_chain_match: {source_ports: [0]}}", "source_ports[0]: has to be at least 1"),
        ("{filter_chain_match: {server_names: [a]}, transport_socket: {name: tls}}", "typed_config: is missing"),
        ("{filter_chain_match: {server_names: [a]}, transport_socket_connect_timeout: -1s}", "can't be negative"),
    ):
        yield WEB, web("ADD", value, **chain), reason
    sockets = {n: {"name": "tls", "typed_config": {"@type": f"{TLS}.{n}"}} for n in (
        "UpstreamTlsContext", "DownstreamTlsContext"
    )}  # fmt: skip
    named = {"filter_chain_match": {"server_names": ["a"]}}
    socket = sockets["UpstreamTlsContext"]
    yield WEB, web("ADD", {**named, "transport_socket": socket}, **chain), "UpstreamTlsContext is for clusters"
    socket = sockets["DownstreamTlsContext"]
    yield WEB, web("ADD", {**named, "transport_socket": socket}, **chain), "a server needs a certificate"
    yield INBOUND, patch("FILTER_CHAIN", "REMOVE", context=IN), "filter_chains: there is none"
    yield EDGE_WEB, patch("FILTER_CHAIN", "REMOVE", context=GATE), "filter_chains: there is none"
    # listeners
    listener = {"kind": "LISTENER"}
    yield WEB, web("MERGE", "{listener_filters_timeout: -1s}", **listener), "can't be negative"
    yield WEB, web("MERGE", "{connection_balance_config: {}}", **listener), "balance_type: is missing"
    yield WEB, web("MERGE", "{internal_listener: {}}", **listener), "address: an internal listener has none"
    yield (
        EDGE_WEB,
        web("MERGE", "{address: {socket_address: {address: shop.example, port_value: 1}}}", context=GATE, **listener),
        "address.socket_address.address: 'shop.example' is not an IP address",
    )
    at = "address: {socket_address: {address: 127.0.0.1, port_value: 1}}"
    for value, reason in (
        ("{name: new}", "address: is missing"),
        ("{name: new, api_listener: {}, internal_listener: {}}", "internal_listener: goes not with api_listener"),
        (f"{{name: new, {at}}}", "filter_chains: there is none"),
        (f"{{name: new, {at}, filter_chains: [{{name: a}}, {{name: b}}]}}", "for the same connections"),
        (f"{{name: new, address: {{pipe: {{path: /{'a' * 120}}}}}, filter_chains: [{{}}]}}", "more than 107 bytes"),
        ("{name: new, address: {envoy_internal_address: {server_listener_name: a}}}", "internal_listener"),
    ):
        yield NEW_LISTENER, patch("LISTENER", "ADD", value, context=OUT), reason
    # route tables, virtual hosts and routes
    for table, context, match in ((TABLE, OUT, {"name": "80"}), (EDGE_TABLE, GATE, {"name": "http.8081"})):
        whole = {"kind": "ROUTE_CONFIGURATION", "context": context, **match}
        host = {"kind": "VIRTUAL_HOST", "context": context, **match}
        at_route = {"context": context, **match}
        added = "{request_headers_to_add: [{header: {key: Host, value: a}}]}"
        yield table, route("MERGE", added, **whole), "request_headers_to_add[0].header.key: Host can't be changed"
        yield table, route("MERGE", "{response_headers_to_remove: [':status']}", **whole), "can't be removed"
        yield table, route("MERGE", "{typed_per_filter_config: {a: {}}}", **whole), "@type is missing"
        yield table, route("MERGE", "{cluster_specifier_plugins: [{extension: {name: a}}]}", **whole), "is missing"
        yield table, route("ADD", "{name: new}", **host), "domains: has to have at least 1 entries"
        yield table, route("ADD", "{domains: [new]}", **host), "name: is missing"
        yield table, route("ADD", "{name: new, domains: [x.test, X.test]}", **host), "X.test is a domain of new already"
        yield table, route("MERGE", "{require_tls: 7}", **host), "require_tls: 7 is not a value of "
        yield (
            table,
            route("MERGE", "{virtual_clusters: [{name: a}]}", **host),
            "virtual_clusters[0].headers: is",
        )
        for value, reason in (
            ("{route: {cluster: a}}", "match: is missing"),
            ("{match: {prefix: /}}", "action: is missing"),
            ("{match: {prefix: /}, route: {}}", "route.cluster_specifier: is missing"),
            ("{match: {safe_regex: {regex: '(?=a)'}}, route: {cluster: a}}", "match.safe_regex.regex: "),
            ("{match: {prefix: /}, route: {cluster: a, timeout: 9223372037s}}", "route.timeout: a duration has to be"),
            ("{match: {prefix: /}, direct_response: {status: 99}}", "direct_response.status: has to be at least 200"),
            (
                "{match: {prefix: /}, route: {weighted_clusters: {clusters: [{name: a, weight: 0}]}}}",
                "route.weighted_clusters.clusters: the sum of weights is 0",
            ),
            (
                "{match: {prefix: /}, route: {cluster: a, upgrade_configs: [{upgrade_type: a}, {upgrade_type: A}]}}",
                "route.upgrade_configs: has an upgrade twice",
            ),
            ("{match: {prefix: /}, route: {cluster_specifier_plugin: a}}", "the table has no plugin a"),
            ('{match: {prefix: /}, redirect: {path_redirect: "a\\nb"}}', "is not text without NUL and line breaks"),
        ):
            yield table, route("INSERT_FIRST", value, **at_route), reason
        body = {"status": 200, "body": {"inline_string": "a" * 1048577}}
        answer = {"match": {"prefix": "/"}, "direct_response": body}
        yield (
            table,
            route("INSERT_FIRST", answer, **at_route),
            "direct_response.body: has 1048577 bytes, allowed are 1048576",
        )
    catch_all = {"name": "80", "vhost": {"name": "allow_any"}, "kind": "VIRTUAL_HOST"}
    yield TABLE, route("MERGE", "{domains: [API]}", **catch_all), "API is a domain of api.shop.svc.cluster.local:80"
    yield INBOUND, route("INSERT_FIRST", "{match: {prefix: /}, route: {}}", context=IN), "cluster_specifier: is missing"
    # clusters
    for value, reason in (
        ("{connect_timeout: 0s}", "connect_timeout: has to be greater than 0s"),
        ("{type: STATIC}", "eds_cluster_config: is for clusters of type EDS, not STATIC"),
        ("{lb_policy: CLUSTER_PROVIDED}", "lb_policy: CLUSTER_PROVIDED goes with the type ORIGINAL_DST"),
        ("{lb_policy: MAGLEV, maglev_lb_config: {table_size: 4}}", "maglev_lb_config.table_size: 4 is not a prime"),
        ("{outlier_detection: {base_ejection_time: 2s, max_ejection_time: 1s}}", "max_ejection_time: is less than"),
        ("{health_checks: [{}]}", "health_checks[0].timeout: is missing"),
        ("{typed_extension_protocol_options: {a: {}}}", "typed_extension_protocol_options[a]: @type is missing"),
        ("{load_balancing_policy: {}, common_lb_config: {locality_weighted_lb_config: {}}}", "load_balancing_policy: "),
        ("{upstream_bind_config: {source_address: {address: x, port_value: 0}}}", "'x' is not an IP address"),
    ):
        yield DATABASE, cluster("MERGE", value), reason
    for value, reason in (
        ("{name: new, type: EDS}", "eds_cluster_config.eds_config: is missing"),
        ("{name: new, type: ORIGINAL_DST}", "lb_policy: CLUSTER_PROVIDED goes with the type ORIGINAL_DST"),
        ("{name: new, type: LOGICAL_DNS, load_assignment: {cluster_name: a}}", "exactly one endpoint"),
        ("{name: new, type: STATIC, load_assignment: {}}", "load_assignment.cluster_name: is missing"),
        ("{name: new, transport_socket: {name: tls}}", "transport_socket.typed_config: is missing"),
        ("{name: new, lb_policy: LOAD_BALANCING_POLICY_CONFIG}", "load_balancing_policy: is missing"),
        ("{name: new, load_balancing_policy: {policies: [{}]}}", "load_balancing_policy.policies: there is none"),
        (
            "{name: new, type: STRICT_DNS, dns_failure_refresh_rate: {base_interval: 2s, max_interval: 1s}}",
            "dns_failure_refresh_rate.max_interval: is less than base_interval",
        ),
        (
            "{name: new, outlier_detection: {max_ejection_time: 1s}}",
            "outlier_detection.max_ejection_time: is less than base_ejection_time",
        ),
        (
            "{name: new, load_assignment: {cluster_name: a, policy: {drop_overloads: [{category: a}, {category: b}]}}}",
            "load_assignment.policy.drop_overloads: has 2 entries, allowed is 1",
        ),
        (
            "{name: new, track_cluster_stats: {per_endpoint_stats: true}}",
            "track_cluster_stats.per_endpoint_stats: excludes load reports, which bootstraps turn on",
        ),
        ("{name: new, http_protocol_options: {}, http2_protocol_options: {}}", "only if protocol_selection says"),
        (
            "{name: new, common_lb_config: {consistent_hashing_lb_config: {use_hostname_for_hashing: true}}}",
            "use_hostname_for_hashing: goes not with the type STATIC",
        ),
        (
            "{name: new, load_assignment: {cluster_name: a, endpoints: [{leds_cluster_locality_config: {}}]}}",
            "leds_cluster_locality_config: is for clusters of type EDS",
        ),
    ):
        yield NEW_CLUSTER, cluster("ADD", value), reason
    socket = sockets["DownstreamTlsContext"]
    yield NEW_CLUSTER, cluster("ADD", {"name": "new", "transport_socket": socket}), "is for listeners"
    # extension configs
    yield NEW_CONFIG, patch("EXTENSION_CONFIG", "ADD", "{name: new}"), "typed_config: is missing"
    yield NEW_CONFIG, patch("EXTENSION_CONFIG", "ADD", "{name: new, typed_config: {}}"), "@type is missing"
    config = {"name": "new", "typed_config": {"@type": f"{HTTP}.buffer.v3.Buffer"}}
    yield NEW_CONFIG, patch("EXTENSION_CONFIG", "ADD", config), "typed_config.max_request_bytes: is missing"


ROWS = list(rows())
IDS = [f"{i}-{change['applyTo']}-{change['patch']['operation']}" for i, (_, change, _) in enumerate(ROWS)]


def proxy_of(change: dict[str, Any]) -> Proxy:
    return EDGE if change.get("match", {}).get("context") == GATE else API


def body_of(shop: Shop, resource: tuple[str, str]) -> bytes | None:
    found = shop.resource(*resource)
    return found.body if found is not None else None


@pytest.mark.parametrize(("resource", "change", "reason"), ROWS, ids=IDS)
def test_a_patch_that_envoy_would_refuse_costs_itself(resource: tuple[str, str], change: Any, reason: str) -> None:
    proxy = proxy_of(change)
    shop = Shop(envoy_filter(change, namespace="istio-system"), proxy=proxy)
    assert body_of(shop, resource) == body_of(Shop(proxy=proxy), resource)
    found = shop.problem_texts()
    assert found and all("Envoy would refuse" in text for text in found)
    assert any(reason in text for text in found)


@pytest.mark.parametrize(
    ("option", "is_taken"),
    [
        ("{level: 1, name: 9, int_value: 1}", True),
        ("{level: 100, name: 23, int_value: 5}", True),  # before the port is bound a refusal costs the listener alone
        ("{level: 6, name: 23, int_value: 5, state: STATE_LISTENING}", True),
        ("{level: 6, name: 4, int_value: 0, state: STATE_LISTENING}", False),
        ("{level: 100, name: 23, int_value: 5, state: STATE_LISTENING}", False),
        ("{level: 6, name: 23, buf_value: aGVsbG8=, state: STATE_BOUND}", False),
    ],
)
def test_an_option_that_would_end_envoy_if_the_system_refused_it_is_left_out(option: str, is_taken: bool) -> None:
    """Envoy 1.40 crashes when such a listener changes; `tests/door` found it."""
    change = web("MERGE", f"{{socket_options: [{option}]}}", kind="LISTENER")
    shop = Shop(envoy_filter(change, namespace="istio-system"), proxy=API)
    assert (body_of(shop, WEB) != body_of(Shop(proxy=API), WEB)) is is_taken
    assert (shop.problem_texts() == []) is is_taken


@pytest.mark.sweep(2)
@pytest.mark.envoy
@pytest.mark.parametrize(("resource", "change", "reason"), ROWS, ids=IDS)
def test_a_real_envoy_refuses_it(
    resource: tuple[str, str], change: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parse, trials):
        monkeypatch.setattr(module, "refusals", lambda *_, **__: iter(()))
    shop = Shop(envoy_filter(change, namespace="istio-system"), proxy=proxy_of(change))
    body = body_of(shop, resource)
    assert body is not None
    assert not shop.problems
    if resource[0] == CLUSTER:
        assert complaints(tmp_path, (), [body])
    else:
        assert complaints(tmp_path, [body if resource[0] == LISTENER else around(resource[0], body)])


def around(type_url: str, body: bytes) -> bytes:
    """A listener with a route table, or with an extension config as its HTTP filter."""
    manager = HttpConnectionManager(stat_prefix="a")
    if type_url == ROUTE:
        manager.route_config.CopyFrom(RouteConfiguration.FromString(body))
    else:
        manager.route_config.name = "a"
        config = TypedExtensionConfig.FromString(body)
        manager.http_filters.add(name=config.name).typed_config.CopyFrom(config.typed_config)
    manager.http_filters.add(name="router").typed_config.type_url = ROUTER
    listener = Listener(name="a")
    listener.address.socket_address.address = "127.0.0.1"
    listener.address.socket_address.port_value = 1
    listener.filter_chains.add().filters.add(name=HCM).typed_config.CopyFrom(any_of(manager))
    return listener.SerializeToString()
