"""Patches to filters: HTTP, network and listener filters, by name and order."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2 import TcpProxy

from tests.support.patching import (
    HCM,
    ROUTER,
    Shop,
    envoy_filter,
    filter_names,
    in_filter,
    in_http_filter,
    managers,
    names,
    patch,
)

STATS, FAULT, CORS, LAST = (f"envoy.filters.http.{name}" for name in ("grpc_stats", "fault", "cors", "router"))
TCP = "envoy.filters.network.tcp_proxy"
CSRF = {
    "name": "new",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.csrf.v3.CsrfPolicy",
        "filter_enabled": {"default_value": {"numerator": 100}},
    },
}
JWT = {
    "name": "jwt",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"},
}
RBAC = {"name": "rbac", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"}}
LIMIT = {
    "name": "limit",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit",
        "stat_prefix": "limit",
        "max_connections": 5,
    },
}
ECHO = {"name": "echo", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"}}
TCP_TYPE = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
HCM_TYPE = f"type.googleapis.com/{HttpConnectionManager.DESCRIPTOR.full_name}"


def outbound(operation: str, value: Any = None, **listener: Any) -> dict[str, Any]:
    """A patch to the HTTP filters of outbound listeners."""
    return patch("HTTP_FILTER", operation, value, context="SIDECAR_OUTBOUND", listener=listener)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (outbound("INSERT_FIRST", CSRF), ["new", STATS, FAULT, CORS, LAST]),
        (outbound("INSERT_BEFORE", CSRF), ["new", STATS, FAULT, CORS, LAST]),
        (outbound("INSERT_AFTER", CSRF), [STATS, FAULT, CORS, "new", LAST]),
        (outbound("ADD", CSRF), [STATS, FAULT, CORS, "new", LAST]),
        (outbound("INSERT_BEFORE", CSRF, **in_http_filter(CORS)), [STATS, FAULT, "new", CORS, LAST]),
        (outbound("INSERT_AFTER", CSRF, **in_http_filter(FAULT)), [STATS, FAULT, "new", CORS, LAST]),
        (outbound("INSERT_FIRST", CSRF, **in_http_filter(CORS)), ["new", STATS, FAULT, CORS, LAST]),
        (outbound("INSERT_FIRST", CSRF, **in_http_filter("no.such")), ["new", STATS, FAULT, CORS, LAST]),
        (outbound("REPLACE", CSRF, **in_http_filter(CORS)), [STATS, FAULT, "new", LAST]),
        (outbound("REMOVE", None, **in_http_filter(CORS)), [STATS, FAULT, LAST]),
        (outbound("MERGE", {"name": "renamed"}, **in_http_filter(CORS)), [STATS, FAULT, "renamed", LAST]),
        (outbound("INSERT_BEFORE", CSRF, **in_http_filter("envoy.cors")), [STATS, FAULT, CORS, LAST]),
    ],
)
def test_a_filter_goes_where_the_patch_says(change: dict[str, Any], after: list[str]) -> None:
    shop = Shop(envoy_filter(change))
    assert shop.http_filters("0.0.0.0_80") == [after]
    assert shop.problems == ()


@pytest.mark.parametrize("operation", ["INSERT_BEFORE", "INSERT_AFTER", "REPLACE", "REMOVE", "MERGE"])
def test_where_the_filter_that_is_named_is_not_nothing_is_done_and_nothing_is_wrong(operation: str) -> None:
    shop = Shop(envoy_filter(outbound(operation, CSRF, **in_http_filter("no.such"))))
    assert shop.http_filters("0.0.0.0_80") == [[STATS, FAULT, CORS, LAST]]
    assert shop.problems == ()


@pytest.mark.parametrize(
    ("filter_class", "after"),
    [
        ("AUTHN", ["jwt", "new", "rbac", STATS, FAULT, CORS, LAST]),
        ("AUTHZ", ["jwt", "rbac", "new", STATS, FAULT, CORS, LAST]),
        ("STATS", ["jwt", "rbac", STATS, FAULT, CORS, "new", LAST]),
    ],
)
def test_a_filter_that_is_added_for_a_class_goes_after_that_class(filter_class: str, after: list[str]) -> None:
    change = outbound("ADD", CSRF)
    change["patch"]["filterClass"] = filter_class
    shop = Shop(envoy_filter(outbound("INSERT_FIRST", RBAC), outbound("INSERT_FIRST", JWT), change))
    assert shop.http_filters("0.0.0.0_80") == [after]


def test_a_class_of_which_there_is_none_is_before_everything_else() -> None:
    change = outbound("ADD", CSRF)
    change["patch"]["filterClass"] = "AUTHZ"
    assert Shop(envoy_filter(change)).http_filters("0.0.0.0_80") == [["new", STATS, FAULT, CORS, LAST]]


def test_patches_apply_in_order_so_that_one_can_stand_in_for_what_another_removes() -> None:
    shop = Shop(
        envoy_filter(
            outbound("INSERT_BEFORE", CSRF, **in_http_filter(CORS)), outbound("REMOVE", None, **in_http_filter(CORS))
        )
    )
    assert shop.http_filters("0.0.0.0_80") == [[STATS, FAULT, "new", LAST]]


def test_a_merge_reaches_what_another_patch_has_inserted() -> None:
    more = {"name": "new", "disabled": True}
    shop = Shop(
        envoy_filter(outbound("MERGE", more, **in_http_filter("new"))),
        envoy_filter(outbound("INSERT_FIRST", CSRF), name="g"),
    )
    assert managers(shop.listener("0.0.0.0_80"))[0].http_filters[0].disabled


def test_a_merge_is_into_the_config_of_the_filter() -> None:
    value = {"typed_config": {"@type": ROUTER, "suppress_envoy_headers": True}}
    shop = Shop(envoy_filter(outbound("MERGE", value, **in_http_filter(LAST))))
    last = managers(shop.listener("0.0.0.0_80"))[0].http_filters[-1]
    assert last.name == LAST
    assert Router.FromString(last.typed_config.value).suppress_envoy_headers


def test_a_merge_that_names_no_filter_is_for_those_of_its_type() -> None:
    value = {"typed_config": {"@type": ROUTER, "suppress_envoy_headers": True}}
    shop = Shop(envoy_filter(outbound("MERGE", value)))
    last = managers(shop.listener("0.0.0.0_80"))[0].http_filters[-1]
    assert Router.FromString(last.typed_config.value).suppress_envoy_headers
    assert shop.http_filters("0.0.0.0_80") == [[STATS, FAULT, CORS, LAST]]
    assert shop.problems == ()


def test_a_merge_of_another_type_is_reported_and_costs_only_itself() -> None:
    wrong = {"typed_config": {"@type": ROUTER}}
    shop = Shop(
        envoy_filter(outbound("MERGE", wrong, **in_http_filter(CORS)), outbound("INSERT_FIRST", CSRF)),
    )
    assert shop.http_filters("0.0.0.0_80") == [["new", STATS, FAULT, CORS, LAST]]
    assert shop.problem_texts() == [
        "listener 0.0.0.0_80: envoy.extensions.filters.http.router.v3.Router can't be merged into "
        "envoy.extensions.filters.http.cors.v3.Cors"
    ]


def test_a_port_number_picks_the_listener_outbound_and_the_chain_inbound() -> None:
    shop = Shop(
        envoy_filter(
            outbound("INSERT_FIRST", CSRF, portNumber=81),
            patch("HTTP_FILTER", "INSERT_FIRST", CSRF, context="SIDECAR_INBOUND", listener={"portNumber": 8080}),
        )
    )
    assert shop.http_filters("0.0.0.0_80") == [[STATS, FAULT, CORS, LAST]]
    plain, new = [STATS, FAULT, CORS, LAST], ["new", STATS, FAULT, CORS, LAST]
    assert shop.http_filters("virtualInbound") == [plain, plain, new, new]


@pytest.mark.parametrize(
    ("operation", "match", "after"),
    [
        ("INSERT_BEFORE", in_filter(TCP), ["limit", TCP]),
        ("INSERT_FIRST", {}, ["limit", TCP]),
        ("ADD", {}, ["limit", TCP]),
        ("REPLACE", in_filter(TCP), ["echo"]),
        ("REPLACE", in_filter("envoy.tcp_proxy"), [TCP]),
        ("REMOVE", in_filter(TCP), []),
        ("INSERT_BEFORE", in_filter(HCM), [TCP]),
    ],
)
def test_network_filters_are_patched_alike(operation: str, match: dict[str, Any], after: list[str]) -> None:
    value = ECHO if operation == "REPLACE" else LIMIT
    change = patch("NETWORK_FILTER", operation, value, listener={"portNumber": 9000, **match})
    assert filter_names(Shop(envoy_filter(change)).listener("10.9.1.1_9000")) == [after]


def test_a_network_filter_is_merged_into_its_config() -> None:
    value = {"typed_config": {"@type": TCP_TYPE, "idle_timeout": "7s"}}
    shop = Shop(envoy_filter(patch("NETWORK_FILTER", "MERGE", value, listener=in_filter(TCP))))
    proxy = TcpProxy.FromString(shop.listener("10.9.1.1_9000").filter_chains[0].filters[0].typed_config.value)
    assert proxy.idle_timeout.seconds == 7
    assert proxy.cluster == "outbound|9000||api.shop.svc.cluster.local"


def test_a_connection_manager_that_is_merged_keeps_the_patches_to_its_filters() -> None:
    value = {"typed_config": {"@type": HCM_TYPE, "server_name": "shop"}}
    shop = Shop(
        envoy_filter(
            patch("NETWORK_FILTER", "MERGE", value, listener=in_filter(HCM)),
            patch("HTTP_FILTER", "INSERT_FIRST", CSRF, listener=in_filter(HCM)),
        )
    )
    for name in ("0.0.0.0_80", "virtualInbound"):
        for manager in managers(shop.listener(name)):
            assert manager.server_name == "shop"
            assert names(manager.http_filters)[0] == "new"


def test_a_filter_that_is_discovered_has_nothing_to_merge_into() -> None:
    value = {
        "name": "new",
        "config_discovery": {"config_source": {"ads": {}}, "type_urls": [CSRF["typed_config"]["@type"]]},  # type: ignore[index]
    }
    shop = Shop(
        envoy_filter(
            patch("EXTENSION_CONFIG", "ADD", CSRF),
            outbound("INSERT_FIRST", value),
            outbound("MERGE", CSRF, **in_http_filter("new")),
        )
    )
    assert ["new has no config to merge into" in text for text in shop.problem_texts()] == [True]


@pytest.mark.parametrize(
    ("operation", "wanted", "after"),
    [
        ("INSERT_FIRST", "", ["new", "original_dst", "tls_inspector", "http_inspector"]),
        ("ADD", "", ["original_dst", "tls_inspector", "http_inspector", "new"]),
        ("INSERT_AFTER", "original_dst", ["original_dst", "new", "tls_inspector", "http_inspector"]),
        ("REMOVE", "http_inspector", ["original_dst", "tls_inspector"]),
        ("REPLACE", "http_inspector", ["original_dst", "tls_inspector", "new"]),
    ],
)
def test_listener_filters_are_patched_alike(operation: str, wanted: str, after: list[str]) -> None:
    value = {
        "name": "envoy.filters.listener.new",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol"
        },
    }
    match = {"listenerFilter": f"envoy.filters.listener.{wanted}"} if wanted else {}
    shop = Shop(envoy_filter(patch("LISTENER_FILTER", operation, value, context="SIDECAR_INBOUND", listener=match)))
    inspectors = names(shop.listener("virtualInbound").listener_filters)
    assert [name.removeprefix("envoy.filters.listener.") for name in inspectors] == after


SLOW = {"routeConfiguration": {"vhost": {"route": {"name": "slow"}}}}
WEBSOCKET = {"upgrade_type": "websocket"}


@pytest.mark.parametrize(
    ("added", "upgrades"),
    [
        ([WEBSOCKET], [("websocket", False)]),
        ([{"upgrade_type": "WebSocket", "enabled": False}], [("WebSocket", True)]),
        ([{"upgrade_type": "CONNECT"}, WEBSOCKET, WEBSOCKET], [("websocket", False), ("CONNECT", False)]),
    ],
)
@pytest.mark.parametrize("operation", ["MERGE", "MERGE_AND_REPLACE_LIST"])
def test_an_upgrade_that_is_there_is_merged_and_not_added_again(
    operation: str, added: list[dict[str, Any]], upgrades: list[tuple[str, bool]]
) -> None:
    """The rest of the patch is applied, too: Envoy would refuse all of it for an upgrade that is there twice."""
    kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    value = {"typed_config": {"@type": kind, "upgrade_configs": added, "max_request_headers_kb": 96}}
    shop = Shop(envoy_filter(patch("NETWORK_FILTER", operation, value, listener=in_filter(HCM))))
    assert shop.problem_texts() == []
    for manager in managers(shop.listener("0.0.0.0_80")):
        found = {u.upgrade_type.lower(): u.HasField("enabled") and not u.enabled.value for u in manager.upgrade_configs}
        assert found == {name.lower(): off for name, off in upgrades}
        assert len(found) == len(manager.upgrade_configs)
        assert manager.max_request_headers_kb.value == 96


def test_an_upgrade_of_a_route_is_merged_too() -> None:
    value = {"route": {"upgrade_configs": [WEBSOCKET]}}
    shop = Shop(
        envoy_filter(
            patch("HTTP_ROUTE", "MERGE", value, **SLOW),
            patch("HTTP_ROUTE", "MERGE", {"route": {"upgrade_configs": [{"upgrade_type": "WEBSOCKET"}]}}, **SLOW),
        )
    )
    (route,) = [route for host in shop.table("80").virtual_hosts for route in host.routes if route.name == "slow"]
    assert [config.upgrade_type for config in route.route.upgrade_configs] == ["WEBSOCKET"]
    assert shop.problem_texts() == []
