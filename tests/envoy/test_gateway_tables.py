"""Route tables of routers: hosts that servers and VirtualServices have in common, merged and collapsed."""

from __future__ import annotations

import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.envoy.gateway.listeners import gateway_route
from mesh_pilot.mesh.virtual_hosts.gateway_tables import common_hosts
from tests.support.routing import clusters, config, gateway_table, router, service, target, virtual_service
from tests.support.worlds import world_of

WEB = "web.shop.svc.cluster.local"
TO_WEB = "route: [{destination: {host: web}}]"


def gateway(hosts: str = "'*'", tls: str = "", *, name: str = "gw", number: int = 80, age: int = 0) -> str:
    more = f", tls: {{{tls}}}" if tls else ""
    port = f"{{number: {number}, name: http, protocol: HTTP}}"
    spec = f"{{selector: {{istio: edge}}, servers: [{{port: {port}, hosts: [{hosts}]{more}}}]}}"
    return config("Gateway", name, spec, namespace="edge", age=age)


def bound(name: str, hosts: str, *rules: str, namespace: str = "shop", age: int = 0, more: str = "") -> str:
    """A VirtualService for the gateway; its rules, or one that can be told by the VirtualService's name."""
    listed = ", ".join(rules) or f"{{name: {name}, route: [{{destination: {{host: {WEB}}}}}]}}"
    spec = f"{{hosts: [{hosts}], gateways: [edge/gw], {more} http: [{listed}]}}"
    return virtual_service(name, spec, namespace=namespace, age=age)


def names(text: str, table: str = "http.80") -> dict[str, list[str]]:
    """Virtual hosts with the names of their routes."""
    found = gateway_table(world_of(service("web", ports="8080 http HTTP") + text), table)
    return {name: [route.name for route in host.routes] for name, host in found.items()}


@pytest.mark.parametrize(
    ("servers", "hosts", "common"),
    [
        (["a.com", "b.com"], ["*.com"], ["a.com", "b.com"]),
        (["*.com"], ["a.com", "x.org"], ["a.com"]),
        (["*.com"], ["*.a.com"], ["*.a.com"]),
        (["*"], ["a.com", "*.b.com"], ["a.com", "*.b.com"]),
        (["a.com"], ["b.com"], []),
        (["a.com", "*.com"], ["a.com"], ["a.com"]),
    ],
)
def test_of_hosts_that_overlap_the_narrower_is_common(servers: list[str], hosts: list[str], common: list[str]) -> None:
    assert list(common_hosts(servers, hosts)) == common


def test_a_host_of_both_has_a_virtual_host_and_answers_on_any_port() -> None:
    world = world_of(service("web", ports="8080 http HTTP") + gateway("'*.com'") + bound("vs", "a.com, a.org"))
    (host,) = gateway_table(world).values()
    assert (host.name, list(host.domains)) == ("a.com:80", ["a.com"])
    assert clusters(host) == [f"outbound|8080||{WEB}"]
    assert host.include_request_attempt_count


def test_wildcards_answer_on_any_port_too() -> None:
    found = gateway_table(world_of(service("web") + gateway() + bound("vs", "'*.com'") + bound("all", "'*'")))
    assert [list(host.domains) for host in found.values()] == [["*.com"], ["*"]]


def test_virtual_services_for_one_host_are_merged_and_what_takes_everything_goes_last() -> None:
    rest = f"{{name: rest, {TO_WEB}}}"
    text = bound("young", "a.com", f"{{name: b, match: [{{uri: {{prefix: /b}}}}], {TO_WEB}}}", age=2)
    text += bound("old", "a.com", f"{{name: a, match: [{{uri: {{prefix: /a}}}}], {TO_WEB}}}", rest, age=1)
    assert names(gateway() + text) == {"a.com:80": ["a", "b", "rest"]}


HTTPS = ["https-redirect", "https-redirect"]
"""The routes of hosts that redirect to HTTPS: for requests whose Host has a port, and for others."""


def test_hosts_that_only_case_tells_apart_are_one_host() -> None:
    """Of two tenants, neither can make Envoy refuse the other's table."""
    text = bound("old", "evil.test, '*.Evil.test'", age=1) + bound("young", "EVIL.test, '*.evil.test'", age=2)
    found = gateway_table(world_of(service("web", ports="8080 http HTTP") + gateway() + text))
    (host,) = found.values()
    assert list(host.domains) == ["evil.test", "*.evil.test"]
    assert [route.name for route in host.routes] == ["old", "young"]


def test_a_host_that_redirects_is_one_with_that_of_a_virtual_service_whatever_their_case() -> None:
    text = gateway("Evil.test", "httpsRedirect: true") + gateway("evil.test", name="other", age=1)
    found = names(text + bound("vs", "evil.test").replace("edge/gw", "edge/other"))
    assert found == {"evil.test:80": [*HTTPS, "vs"]}


def test_a_table_allows_direct_responses_as_long_as_a_virtual_service_may_have() -> None:
    world = world_of(gateway() + bound("vs", "a.com"))
    resource = gateway_route(world.view, target(world, router()).workload, "http.80")
    assert resource is not None
    table = RouteConfiguration.FromString(resource.body)
    assert table.max_direct_response_body_size_bytes.value == 1024 * 1024
    assert table.ignore_port_in_host_matching


def test_hosts_with_the_same_routes_share_a_virtual_host_named_after_the_longest() -> None:
    found = gateway_table(world_of(service("web") + gateway() + bound("vs", "b.com, long.example.com, a.com")))
    (host,) = found.values()
    assert host.name == "long.example.com:80"
    assert list(host.domains) == ["long.example.com", "a.com", "b.com"]


def test_a_server_may_limit_who_routes_its_hosts() -> None:
    text = gateway("'shop/a.com', './b.com', '*/c.com'")
    text += bound("shop", "a.com, b.com, c.com") + bound("lab", "a.com, c.com", namespace="lab", age=1)
    assert names(text) == {"a.com:80": ["shop"], "c.com:80": ["shop", "lab"]}


def test_a_virtual_service_that_the_router_may_not_see_is_not_there() -> None:
    assert names(gateway() + bound("vs", "a.com", more="exportTo: ['.'],")) == {"blackhole:80": []}
    assert names(gateway() + bound("vs", "a.com", more="exportTo: [edge],")) == {"a.com:80": ["vs"]}


def test_a_virtual_service_for_the_mesh_is_not_the_gateways() -> None:
    mesh = virtual_service("vs", f"{{hosts: [a.com], http: [{{{TO_WEB}}}]}}")
    assert names(gateway() + mesh) == {"blackhole:80": []}


def test_one_for_both_has_each_rule_where_it_matches() -> None:
    rules = [f"{{name: {g}, match: [{{gateways: [{g}], uri: {{prefix: /}}}}], {TO_WEB}}}" for g in ("mesh", "edge/gw")]
    both = virtual_service("vs", f"{{hosts: [a.com], gateways: [mesh, edge/gw], http: [{', '.join(rules)}]}}")
    assert names(gateway() + both) == {"a.com:80": ["edge/gw"]}


def test_ports_in_matches_are_the_gateways_own() -> None:
    rules = [f"{{name: p{p}, match: [{{port: {p}}}], {TO_WEB}}}" for p in (80, 443)]
    assert names(gateway() + bound("vs", "a.com", *rules)) == {"a.com:80": ["p80"]}


def test_a_table_without_hosts_answers_404_to_everything() -> None:
    (host,) = gateway_table(world_of(gateway("a.com"))).values()
    assert (host.name, list(host.domains), len(host.routes)) == ("blackhole:80", ["*"], 0)


def test_redirecting_servers_redirect_their_hosts_routed_or_not() -> None:
    text = gateway("a.com, 'shop/b.com'", "httpsRedirect: true") + bound("vs", "a.com")
    found = gateway_table(world_of(service("web") + text))
    assert {name: [route.name for route in host.routes] for name, host in found.items()} == {
        "a.com:80": [*HTTPS, "vs"],
        "b.com:80": HTTPS,
    }
    assert list(found["b.com:80"].domains) == ["b.com"]


def test_a_host_that_one_server_redirects_is_redirected_whoever_else_has_it() -> None:
    text = gateway("a.com") + gateway("a.com", "httpsRedirect: true", name="gw2", age=1) + bound("vs", "a.com")
    found = gateway_table(world_of(service("web") + text))
    assert [route.name for route in found["a.com:80"].routes] == [*HTTPS, "vs"]


def test_a_table_that_no_server_has_is_not_served() -> None:
    world = world_of(gateway())
    assert gateway_route(world.view, target(world, router()).workload, "http.81") is None
