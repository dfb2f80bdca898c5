"""Consul's routers, splitters and resolvers at gateways: they hold for whoever calls the service."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.consul.mesh import ConsulMesh, MeshSettings, ServiceFacts
from mesh_pilot.consul.mesh.values import ClientPort
from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.mesh.routing.client import route_client
from mesh_pilot.mesh.routing.origins import route_origins
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Upsert
from mesh_pilot.world import World
from tests.support.routing import config, gateway_table, plain, router, service, table, target, virtual_service
from tests.support.worlds import SOURCE, update, world_of

SHOP, ADMIN = "shop.service.consul", "admin.service.consul"
SERVICES = service(SHOP, namespace="default", ports="80 http HTTP") + service(
    ADMIN, namespace="default", ports="81 http HTTP"
)
GATEWAY = config(
    "Gateway",
    "gw",
    "{selector: {istio: edge}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: ['*']}]}",
    namespace="edge",
)
TO_SHOP = f"route: [{{destination: {{host: {SHOP}}}}}]"
V = {name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")}
ROUTER = {
    "Routes": [
        {
            "Match": {"HTTP": {"PathPrefix": "/admin", "Methods": ["GET"]}},
            "Destination": {"Service": "admin", "PrefixRewrite": "/", "RequestTimeout": "7s"},
        }
    ]
}
SPLIT = {"Splits": [{"Weight": 90, "ServiceSubset": "v1"}, {"Weight": 10, "Service": "admin"}]}


def edge(*rules: str, hosts: str = "'*'", gateways: str = "edge/gw", name: str = "edge") -> str:
    return virtual_service(
        name, f"{{hosts: [{hosts}], gateways: [{gateways}], http: [{', '.join(rules)}]}}", namespace="edge"
    )


def world(text: str, **entries: dict[str, Any]) -> World:
    """A world with these entries about shop, by the last part of their kind."""
    mesh = ConsulMesh(MeshSettings(datacenter="dc1"))
    mesh.put_service("shop", ServiceFacts("default", client_ports=(ClientPort(80, "http"),)))
    mesh.put_service("admin", ServiceFacts("default", client_ports=(ClientPort(81, "http"),)))
    for kind, entry in entries.items():
        mesh.put_entry(f"service-{kind}", "shop", entry)
    made = world_of(SERVICES + GATEWAY + text)
    objects = [o for part in mesh.flush() for change in part for o in change.objects]
    made.apply([Upsert(SOURCE, o.config(SOURCE)) for o in objects])
    return made


def routes(found: World, host: str = "*:8080") -> list[rc.Route]:
    hosts = gateway_table(found, "http.8080")
    return list(hosts[host].routes)


def leads(route: rc.Route) -> dict[str, int]:
    """The clusters of a route with their weights."""
    action = route.route
    if action.cluster:
        return {action.cluster: 1}
    return {each.name: each.weight.value for each in action.weighted_clusters.clusters}


def at(host: str, port: int, subset: str = "") -> str:
    return f"outbound|{port}|{subset}|{host}"


def test_a_default_subset_holds_for_a_gateway() -> None:
    (route,) = routes(world(edge(f"{{{TO_SHOP}}}"), resolver={"DefaultSubset": "v1", "Subsets": V}))
    assert leads(route) == {at(SHOP, 80, "v1"): 1}


def test_a_redirect_holds_and_leads_to_the_port_of_the_other_service() -> None:
    (route,) = routes(world(edge(f"{{{TO_SHOP}}}"), resolver={"Redirect": {"Service": "admin"}}))
    assert leads(route) == {at(ADMIN, 81): 1}


def test_a_router_and_a_splitter_hold_with_all_that_they_say() -> None:
    found = world(
        edge(f"{{{TO_SHOP}}}"),
        router=ROUTER,
        splitter=SPLIT,
        resolver={"Subsets": V, "RequestTimeout": "9s"},
    )
    first, rest = routes(found)
    assert (first.match.prefix, leads(first)) == ("/admin", {at(ADMIN, 81): 1})
    assert (first.route.timeout.seconds, first.route.prefix_rewrite) == (7, "/")
    assert leads(rest) == {at(SHOP, 80, "v1"): 9, at(ADMIN, 81): 1}
    assert rest.route.timeout.seconds == 9


def test_a_rule_of_a_gateway_and_a_route_of_a_router_have_in_common_what_matches_both() -> None:
    rules = [
        f"{{name: inside, match: [{{uri: {{prefix: /admin/users}}}}], {TO_SHOP}}}",
        f"{{name: apart, match: [{{uri: {{prefix: /shop}}}}], {TO_SHOP}}}",
        f"{{name: posts, match: [{{method: {{exact: POST}}}}], {TO_SHOP}}}",
        f"{{name: rest, timeout: 1s, {TO_SHOP}}}",
    ]
    found = [
        (r.name, plain(r.match).get("prefix"), r.route.timeout.seconds)
        for r in routes(world(edge(*rules), router=ROUTER))
    ]
    assert found == [
        ("inside", "/admin/users", 7),
        ("inside", "/admin/users", 0),
        ("apart", "/shop", 0),
        ("posts", "/", 0),
        ("rest", "/admin", 1),
        ("rest", "/", 1),
    ]


def test_of_several_destinations_each_keeps_its_share() -> None:
    rule = f"{{route: [{{destination: {{host: {SHOP}}}, weight: 40}}, {{destination: {{host: {ADMIN}}}, weight: 60}}]}}"
    found = world(edge(rule), splitter=SPLIT, resolver={"Subsets": V}, router=ROUTER)
    (route,) = routes(found)
    assert [(c.name, c.weight.value) for c in route.route.weighted_clusters.clusters] == [
        (at(SHOP, 80, "v1"), 9),
        (at(ADMIN, 81), 1),
        (at(ADMIN, 81), 15),
    ]
    (line,) = [line for line in reference_lines(found) if "consul-shop" in line["object"]]
    assert line["reason"].endswith(
        "the router does not hold for a rule with several destinations; splits and subsets do"
    )
    assert "VirtualService/edge/edge" in line["reason"]


def test_what_cannot_hold_is_left_out_and_reported() -> None:
    rules = [
        f"{{match: [{{uri: {{regex: '/a.*'}}}}], {TO_SHOP}}}",
        f"{{match: [{{uri: {{prefix: /x}}}}], rewrite: {{uri: /y}}, {TO_SHOP}}}",
    ]
    found = world(edge(*rules), router=ROUTER, resolver={"DefaultSubset": "v1", "Subsets": V})
    assert [leads(route) for route in routes(found)] == [{at(SHOP, 80, "v1"): 1}] * 2
    reasons = [(line["field"], line["reason"].partition(": ")[2]) for line in reference_lines(found)]
    assert reasons == [
        ("spec.http[0]", "a route of its router and this rule match by a regular expression; it is left out"),
        ("spec.http[1]", "a route of its router matches paths, and this rule rewrites them first; it is left out"),
    ]


def test_mirrored_requests_go_where_the_chain_says() -> None:
    rule = f"{{route: [{{destination: {{host: {ADMIN}}}}}], mirror: {{host: {SHOP}}}}}"
    (route,) = routes(world(edge(rule), resolver={"DefaultSubset": "v2", "Subsets": V}))
    assert [policy.cluster for policy in route.route.request_mirror_policies] == [at(SHOP, 80, "v2")]


@pytest.mark.parametrize("said", ["subset: v2", "subset: v2, port: {number: 80}"])
def test_a_rule_that_names_a_subset_says_it_all(said: str) -> None:
    rule = f"{{route: [{{destination: {{host: {SHOP}, {said}}}}}]}}"
    (route,) = routes(world(edge(rule), resolver={"DefaultSubset": "v1", "Subsets": V}, router=ROUTER))
    assert leads(route) == {at(SHOP, 80, "v2"): 1}


def test_a_users_routes_of_the_service_for_sidecars_replace_the_chain_at_gateways_too() -> None:
    users = edge(f"{{{TO_SHOP}}}", hosts=SHOP, gateways="mesh", name="mine")
    (route,) = routes(world(edge(f"{{{TO_SHOP}}}") + users, resolver={"DefaultSubset": "v1", "Subsets": V}))
    assert leads(route) == {at(SHOP, 80): 1}


def test_sidecars_are_routed_as_before() -> None:
    both = edge(f"{{{TO_SHOP}}}", hosts="other.test", gateways="edge/gw, mesh")
    found = world(both, resolver={"DefaultSubset": "v1", "Subsets": V})
    assert leads(routes(found, "other.test:8080")[0]) == {at(SHOP, 80, "v1"): 1}
    assert leads(table(found, "80")["other.test:80"].routes[0]) == {at(SHOP, 80): 1}
    assert leads(table(found, "80")[f"{SHOP}:80"].routes[0]) == {at(SHOP, 80, "v1"): 1}


def test_a_change_of_the_chain_reaches_the_gateway() -> None:
    found = world(edge(f"{{{TO_SHOP}}}"))
    assert leads(routes(found)[0]) == {at(SHOP, 80): 1}
    mesh = ConsulMesh(MeshSettings(datacenter="dc1"))
    mesh.put_service("shop", ServiceFacts("default", client_ports=(ClientPort(80, "http"),)))
    mesh.put_entry("service-resolver", "shop", {"DefaultSubset": "v1", "Subsets": V})
    made = [o.config(SOURCE) for part in mesh.flush() for change in part for o in change.objects]
    found.apply([Upsert(SOURCE, each) for each in made])
    assert leads(routes(found)[0]) == {at(SHOP, 80, "v1"): 1}
    update(found, edge(f"{{{TO_SHOP}}}", hosts=SHOP, gateways="mesh", name="mine"))
    assert leads(routes(found)[0]) == {at(SHOP, 80): 1}


def test_why_names_the_rule_of_the_gateway() -> None:
    found = world(edge(f"{{{TO_SHOP}}}"), router=ROUTER)
    key = ConfigKey("VirtualService", "edge", "edge")
    client = route_client(found.view, target(found, router()).scope, "edge/gw", key)
    origins = list(route_origins(found.view, key, client, 8080))
    assert [(str(each.rule.key), each.rule.path, each.takes_all) for each in origins] == [
        ("VirtualService/edge/edge", "spec.http[0]", False),
        ("VirtualService/edge/edge", "spec.http[0]", True),
    ]


@pytest.mark.parametrize(
    ("resolver", "cluster"),
    [
        ({"DefaultSubset": "v1", "Subsets": V}, at(SHOP, 80, "v1")),
        ({"Redirect": {"Service": "admin"}}, at(ADMIN, 81)),
        ({"ConnectTimeout": "3s"}, at(SHOP, 80)),
    ],
)
def test_connections_follow_resolvers(resolver: dict[str, Any], cluster: str) -> None:
    port = "{number: 5432, name: tcp, protocol: TCP}"
    servers = f"{{selector: {{istio: edge}}, servers: [{{port: {port}, hosts: ['*']}}]}}"
    text = config("Gateway", "tcp", servers, namespace="edge")
    text += virtual_service("tcp", f"{{hosts: ['*'], gateways: [edge/tcp], tcp: [{{{TO_SHOP}}}]}}", namespace="edge")
    found = world(text, resolver=resolver)
    made = gateway_listeners(found.view, target(found, router()).workload)["0.0.0.0_5432"].get(found.view)
    assert made is not None
    (chain,) = plain(Listener.FromString(made.body))["filter_chains"]
    assert chain["filters"][-1]["typed_config"]["cluster"] == cluster
