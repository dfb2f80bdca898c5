"""Patches to route tables: those fetched by name, and those inside virtualInbound."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from tests.support.patching import EDGE, Shop, envoy_filter, managers, names, patch

HOST = "api.shop.svc.cluster.local:80"
TEAPOT = {"name": "tea", "match": {"path": "/tea"}, "direct_response": {"status": 418}}
SECURE = "https.443.https.edge.istio-system"


def table(*patches: dict[str, Any], name: str = "80") -> RouteConfiguration:
    return Shop(envoy_filter(*patches)).table(name)


def routes(*patches: dict[str, Any]) -> list[str]:
    """The routes of the service's virtual host."""
    return names(next(h for h in table(*patches).virtual_hosts if h.name == HOST).routes)


def on_route(operation: str, value: Any = None, route: dict[str, Any] | None = None) -> dict[str, Any]:
    vhost: dict[str, Any] = {"name": HOST} | ({"route": route} if route is not None else {})
    return patch("HTTP_ROUTE", operation, value, context="SIDECAR_OUTBOUND", routeConfiguration={"vhost": vhost})


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (on_route("ADD", TEAPOT), ["slow", "gone", "rest", "tea"]),
        (on_route("INSERT_FIRST", TEAPOT), ["tea", "slow", "gone", "rest"]),
        (on_route("INSERT_BEFORE", TEAPOT), ["tea", "slow", "gone", "rest"]),
        (on_route("INSERT_AFTER", TEAPOT), ["slow", "gone", "rest", "tea"]),
        (on_route("INSERT_BEFORE", TEAPOT, {"name": "rest"}), ["slow", "gone", "tea", "rest"]),
        (on_route("INSERT_AFTER", TEAPOT, {"name": "slow"}), ["slow", "tea", "gone", "rest"]),
        (on_route("INSERT_FIRST", TEAPOT, {"name": "rest"}), ["tea", "slow", "gone", "rest"]),
        (on_route("INSERT_FIRST", TEAPOT, {"name": "none"}), ["slow", "gone", "rest"]),
        (on_route("REMOVE", None, {"name": "slow"}), ["gone", "rest"]),
        (on_route("REMOVE", None, {"action": "REDIRECT"}), ["slow", "rest"]),
        (on_route("REMOVE", None, {"action": "ROUTE"}), ["gone"]),
        (on_route("REMOVE", None, {"action": "ANY"}), []),
        (on_route("REMOVE", None, {"name": "slow", "action": "DIRECT_RESPONSE"}), ["slow", "gone", "rest"]),
    ],
)
def test_a_route_goes_where_the_patch_says(change: dict[str, Any], after: list[str]) -> None:
    assert routes(change) == after


def test_a_merge_for_every_route_leaves_those_alone_that_are_put_in_beside_them() -> None:
    found = table(
        on_route("INSERT_FIRST", TEAPOT), on_route("MERGE", {"route": {"timeout": "9s"}}, {"action": "ROUTE"})
    )
    host = next(h for h in found.virtual_hosts if h.name == HOST)
    assert [(r.name, r.WhichOneof("action"), r.route.timeout.seconds) for r in host.routes] == [
        ("tea", "direct_response", 0),
        ("slow", "route", 9),
        ("gone", "redirect", 0),
        ("rest", "route", 9),
    ]


def test_virtual_hosts_are_merged_replaced_removed_and_added() -> None:
    edge = "edge.istio-system.svc.cluster.local:80"
    spare = {"name": "spare", "domains": ["spare.example.com"]}

    def host(operation: str, value: Any, **vhost: str) -> dict[str, Any]:
        return patch("VIRTUAL_HOST", operation, value, routeConfiguration={"vhost": vhost} if vhost else {"name": "80"})

    found = table(
        host("MERGE", {"response_headers_to_remove": ["x"]}, name=HOST),
        host("REMOVE", None, name=edge),
        host("ADD", spare),
        host("REPLACE", {"name": "closed", "domains": ["*"]}, domainName="*"),
    )
    assert names(found.virtual_hosts) == [HOST, "closed", "spare"]
    assert list(found.virtual_hosts[0].response_headers_to_remove) == ["x"]
    assert list(found.virtual_hosts[1].routes) == []


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ({"name": "80"}, True),
        ({"portNumber": 80}, True),
        ({}, True),
        ({"name": "81"}, False),
        ({"portNumber": 8080}, False),
    ],
)
def test_a_table_is_matched_by_name_and_port(match: dict[str, Any], found: bool) -> None:
    value = {"max_direct_response_body_size_bytes": 7}
    changed = table(patch("ROUTE_CONFIGURATION", "MERGE", value, routeConfiguration=match))
    assert (changed.max_direct_response_body_size_bytes.value == 7) is found


def test_a_table_can_not_be_renamed() -> None:
    shop = Shop(envoy_filter(patch("ROUTE_CONFIGURATION", "MERGE", {"name": "81"})))
    assert shop.table("80").name == "80"
    assert "can't be renamed to 81" in shop.problem_texts()[0]


@pytest.mark.parametrize(
    ("match", "found"),
    [({}, [True, True, True, True]), ({"portNumber": 8080}, [False, False, True, True])],
)
def test_tables_inside_the_inbound_listener_are_patched_too(match: dict[str, Any], found: list[bool]) -> None:
    change = patch(
        "HTTP_ROUTE",
        "MERGE",
        {"route": {"timeout": "11s"}},
        context="SIDECAR_INBOUND",
        routeConfiguration={**match, "vhost": {"route": {"name": "default"}}},
    )
    inbound = managers(Shop(envoy_filter(change)).listener("virtualInbound"))
    assert [m.route_config.virtual_hosts[0].routes[0].route.timeout.seconds == 11 for m in inbound] == found


def test_a_patch_to_outbound_tables_is_not_for_those_inside_listeners() -> None:
    plain = Shop().listener("virtualInbound")
    change = patch("HTTP_ROUTE", "REMOVE", context="SIDECAR_OUTBOUND")
    assert Shop(envoy_filter(change)).listener("virtualInbound") == plain


@pytest.mark.parametrize(
    ("match", "plain", "secure"),
    [
        ({"portNumber": 80}, True, False),
        ({"portNumber": 8081}, False, False),
        ({"portNumber": 443}, False, True),
        ({"portName": "https"}, False, True),
        ({"gateway": "istio-system/edge"}, False, True),
        ({"gateway": "shop/edge"}, False, False),
        ({"name": SECURE}, False, True),
        ({"vhost": {"name": "shop.example.com:80"}}, True, False),
        ({"vhost": {"domainName": "shop.example.com"}}, True, True),
    ],
)
def test_tables_of_a_router_are_matched_by_what_its_servers_say(
    match: dict[str, Any], plain: bool, secure: bool
) -> None:
    change = patch("HTTP_ROUTE", "INSERT_FIRST", TEAPOT, context="GATEWAY", routeConfiguration=match)
    shop = Shop(envoy_filter(change, namespace="istio-system"), proxy=EDGE)
    found = [shop.table(name).virtual_hosts[0].routes[0].name == "tea" for name in ("http.8081", SECURE)]
    assert found == [plain, secure]
