"""Patches that match nothing at any proxy that they are for are told; those that match at another proxy are not."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.diagnostics import PatchFailure
from mesh_pilot.model.config import Severity
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import ROUTE
from tests.support.patching import (
    API,
    EDGE,
    HCM,
    LUA,
    OTHER,
    SHOP,
    envoy_filter,
    in_filter,
    in_http_filter,
    patch,
)
from tests.support.worlds import world_of

JWT = in_http_filter("envoy.filters.http.jwt_authn")
ROUTER = in_http_filter("envoy.filters.http.router")
SCRIPT = {"name": "lua", "typed_config": {"@type": LUA}}
HEADER = {"request_headers_to_add": [{"header": {"key": "x-a", "value": "1"}}]}
TABLES = {API: "80", OTHER: "80", EDGE: "http.8081"}

Json = dict[str, Any]


def told(*filters: str, proxies: tuple[Proxy, ...] = (EDGE,), ask: bool = True) -> dict[PatchFailure, list[str]]:
    """Problems at these proxies, which have asked for a route table unless told otherwise."""
    catalog = WorldCatalog(world_of(SHOP + "".join(filters)))
    for proxy in proxies:
        asked = frozenset((TABLES[proxy],)) if ask else frozenset()
        resources = catalog.open(proxy, requested=lambda kind, asked=asked: asked if kind == ROUTE else frozenset())
        tables = resources.set(ROUTE)
        assert tables is not None
        if ask:
            tables.get(TABLES[proxy])
    return dict(catalog.diagnostics().patches())


MISSES = {
    "a port in a virtual host's name": (
        patch("VIRTUAL_HOST", "MERGE", HEADER, context="GATEWAY",
              routeConfiguration={"vhost": {"name": "shop.example.com:8080"}}),
        "any route table",
        "routeConfiguration.vhost.name shop.example.com:8080 "
        "(route table http.8081 has the virtual hosts shop.example.com:80)",
    ),
    "a filter that is not there": (
        patch("HTTP_FILTER", "INSERT_BEFORE", SCRIPT, context="GATEWAY", listener=JWT), "any listener",
        "has the filters",
    ),
    "a merge into a filter that is not there": (
        patch("HTTP_FILTER", "MERGE", SCRIPT, context="GATEWAY", listener=JWT), "any listener",
        "envoy.filters.http.router",
    ),
    "a service that is not there": (
        patch("CLUSTER", "MERGE", {"connect_timeout": "2s"}, context="GATEWAY", cluster={"service": "none.test"}),
        "any cluster", "cluster.service none.test",
    ),
    "a listener's port": (
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1024}, context="GATEWAY",
              listener={"portNumber": 9999}), "any listener", "listener.portNumber 9999",
    ),
    "a listener's name": (
        patch("LISTENER", "REMOVE", context="GATEWAY", listener={"name": "none"}), "any listener", "listener.name none",
    ),
    "a network filter": (
        patch("NETWORK_FILTER", "REMOVE", context="GATEWAY", listener=in_filter("none")),
        "any listener", HCM,
    ),
    "a route": (
        patch("HTTP_ROUTE", "MERGE", {"route": {"timeout": "1s"}}, context="GATEWAY",
              routeConfiguration={"vhost": {"route": {"name": "none"}}}), "any route table", "vhost.route.name none",
    ),
    "a route table": (
        patch("ROUTE_CONFIGURATION", "MERGE", HEADER, context="GATEWAY", routeConfiguration={"name": "none"}),
        "any route table", "routeConfiguration.name none",
    ),
    "a chain": (
        patch("FILTER_CHAIN", "REMOVE", context="GATEWAY", listener={"filterChain": {"sni": "none.test"}}),
        "any listener", "listener.filterChain.sni none.test",
    ),
    "a context": (
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1024}, context="SIDECAR_INBOUND"),
        "any listener", "context SIDECAR_INBOUND is not that of router proxies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSES)
def test_a_patch_that_matches_nothing_is_told_with_its_conditions_and_what_is_near(what: str) -> None:
    missing, where, reason = MISSES[what]
    selector = {"workloadSelector": {"labels": {"gateway": "edge"}}}
    text = envoy_filter(
        patch("HTTP_FILTER", "INSERT_BEFORE", SCRIPT, context="GATEWAY", listener=ROUTER),
        missing,
        namespace="istio-system",
        **selector,
    )
    ((problem, proxies),) = told(text).items()
    assert (problem.field, problem.resource, problem.severity) == ("spec.configPatches[1]", where, Severity.WARNING)
    assert reason in problem.reason
    assert proxies == ["edge.istio-system"]


@pytest.mark.parametrize(
    "one",
    [
        patch("HTTP_FILTER", "INSERT_BEFORE", SCRIPT, listener=ROUTER),
        patch("HTTP_FILTER", "MERGE", SCRIPT, context="GATEWAY", listener=in_http_filter("none")),
        patch("CLUSTER", "MERGE", {"connect_timeout": "2s"}, cluster={"service": "api.shop.svc.cluster.local"}),
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1}, listener={"name": "virtualInbound"}),
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1}, context="SIDECAR_INBOUND"),
        patch("EXTENSION_CONFIG", "ADD", {**SCRIPT, "name": "own"}),
        patch("VIRTUAL_HOST", "MERGE", HEADER, context="GATEWAY"),
    ],
)
def test_there_is_no_false_alarm_where_a_patch_matches_at_another_proxy_or_may_yet(one: Json) -> None:
    """A patch for gateways is not judged while only sidecars are connected."""
    text = envoy_filter(one, namespace="istio-system")
    proxies = (API, OTHER) if one.get("match", {}).get("context") == "GATEWAY" else (API, OTHER, EDGE)
    assert told(text, proxies=proxies) == {}


def test_patches_to_route_tables_are_judged_when_a_proxy_has_asked_for_some() -> None:
    missing, *_ = MISSES["a route table"]
    assert told(envoy_filter(missing, namespace="istio-system"), ask=False) == {}


def test_a_patch_that_cannot_be_applied_is_told_once() -> None:
    renaming = patch("CLUSTER", "MERGE", {"name": "x"}, cluster={"name": "PassthroughCluster"})
    (problem,) = told(envoy_filter(renaming), proxies=(API,))
    assert "can't be renamed" in problem.reason


def test_a_patch_that_misses_at_many_proxies_is_one_problem() -> None:
    text = envoy_filter(patch("HTTP_FILTER", "MERGE", SCRIPT, listener=JWT), namespace="istio-system")
    ((_, proxies),) = told(text, proxies=(API, OTHER, EDGE)).items()
    assert proxies == ["api.shop", "edge.istio-system", "other.shop"]
