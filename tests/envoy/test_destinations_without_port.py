"""A destination without a port means the only port of its service, wherever a VirtualService names one."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.world import World
from tests.support.listeners import listeners, tcp
from tests.support.routing import WEB, clusters, config, gateway_table, router, service, table, virtual_service
from tests.support.upstreams import outbound
from tests.support.worlds import sidecar, world_of

ADM = "adm.shop.svc.cluster.local"
TO_ADM = f"outbound|81||{ADM}"
SERVICES = service("web") + service("adm", ports="81 http HTTP") + service("two", ports="81 a HTTP, 82 b HTTP")
GATEWAY = config(
    "Gateway",
    "edge",
    "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*/*']},"
    " {port: {number: 90, name: tcp, protocol: TCP}, hosts: ['*/*']},"
    " {port: {number: 443, name: tls, protocol: TLS}, tls: {mode: PASSTHROUGH}, hosts: ['*/*']}]}",
)

PLACES = {
    "route": "route: [{destination: {host: adm}}]",
    "weights": "route: [{destination: {host: adm}, weight: 1}, {destination: {host: web}, weight: 1}]",
    "mirror": "route: [{destination: {host: web}}], mirror: {host: adm}",
    "mirrors": "route: [{destination: {host: web}}], mirrors: [{destination: {host: adm}}]",
}


def _named(world: World, proxy: Proxy, where: str) -> set[str]:
    """The clusters that the routes of the VirtualService name."""
    found = gateway_table(world, proxy=proxy) if where == "router" else table(world, proxy=proxy)
    named: set[str] = set()
    for name, host in found.items():
        if name.startswith(WEB):
            for route, text in zip(host.routes, clusters(host), strict=True):
                named |= {*text.split("+"), *(m.cluster for m in route.route.request_mirror_policies)}
    return named


@pytest.mark.parametrize("rule", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("where", ["sidecar", "narrowed", "delegate", "router"])
def test_every_place_of_an_http_rule_means_the_only_port(rule: str, where: str) -> None:
    text = SERVICES + GATEWAY
    if where == "delegate":
        text += virtual_service("d", f"{{http: [{{{rule}}}]}}")
        rule = "delegate: {name: d}"
    if where in ("narrowed", "delegate"):
        text += config("Sidecar", "s", "{egress: [{hosts: ['./web.shop.svc.cluster.local']}]}")
    world = world_of(text + virtual_service("v", f"{{hosts: [{WEB}], gateways: [mesh, edge], http: [{{{rule}}}]}}"))
    proxy = router() if where == "router" else sidecar(namespace="shop")
    named = _named(world, proxy, where)
    assert TO_ADM in named and f"outbound|80||{ADM}" not in named
    assert named <= set(outbound(world, proxy)), "each of them is sent"


def test_a_service_of_several_ports_is_reached_at_the_port_of_the_request() -> None:
    rule = virtual_service("v", "{hosts: [web], http: [{route: [{destination: {host: two}}]}]}")
    assert clusters(table(world_of(SERVICES + rule))[f"{WEB}:80"]) == ["outbound|80||two.shop.svc.cluster.local"]


def test_a_destination_without_a_port_brings_all_ports_into_a_sidecars_scope() -> None:
    both = "{destination: {host: two, port: {number: 82}}, weight: 1}, {destination: {host: two}, weight: 1}"
    rule = virtual_service("v", f"{{hosts: [web], http: [{{route: [{both}]}}]}}")
    world = world_of(SERVICES + rule + config("Sidecar", "s", "{egress: [{hosts: ['./web.shop.svc.cluster.local']}]}"))
    found = {name for name in outbound(world, sidecar(namespace="shop")) if "two" in name}
    assert found == {f"outbound|{port}||two.shop.svc.cluster.local" for port in (81, 82)}


def test_subsets_and_hashing_are_those_of_the_port_that_is_meant() -> None:
    policy = "{loadBalancer: {consistentHash: {httpHeaderName: x-user}}, port: {number: 81}}"
    spec = (
        f"{{host: adm, trafficPolicy: {{portLevelSettings: [{policy}]}}, subsets: [{{name: v1, labels: {{v: '1'}}}}]}}"
    )
    rule = virtual_service("v", "{hosts: [web], http: [{route: [{destination: {host: adm, subset: v1}}]}]}")
    world = world_of(SERVICES + rule + config("DestinationRule", "adm", spec))
    (route,) = table(world)[f"{WEB}:80"].routes
    assert route.route.cluster == f"outbound|81|v1|{ADM}"
    assert [hashed.header.header_name for hashed in route.route.hash_policy] == ["x-user"]


@pytest.mark.parametrize("where", ["sidecar", "router"])
def test_tcp_and_tls_rules_mean_the_only_port(where: str) -> None:
    rules = "tcp: [{match: [{port: 90}], route: [{destination: {host: adm}}]}], "
    rules += "tls: [{match: [{port: 443, sniHosts: [raw.test]}], route: [{destination: {host: adm}}]}]"
    text = SERVICES + GATEWAY + service("raw.test", ports="90 tcp TCP, 443 tls TLS", addresses="10.9.0.1")
    world = world_of(text + virtual_service("v", f"{{hosts: [raw.test], gateways: [mesh, edge], {rules}}}"))
    if where == "router":
        held = WorldCatalog(world).open(router()).set(LISTENER)
        assert held is not None
        found = [held.get(f"0.0.0.0_{port}") for port in (90, 443)]
        assert all(each is not None and TO_ADM.encode() in each.body for each in found)
        return
    every = listeners(world, sidecar(namespace="shop"))
    for name in ("10.9.0.1_90", "10.9.0.1_443"):
        assert tcp(every[name].filter_chains[0]).cluster == TO_ADM


def test_proxyless_grpc_means_the_only_port() -> None:
    rule = virtual_service("v", "{hosts: [web], http: [{route: [{destination: {host: adm}}]}]}")
    held = WorldCatalog(world_of(SERVICES + rule)).open(sidecar(namespace="shop", GENERATOR="grpc")).set(ROUTE)
    assert held is not None
    found = held.get(f"outbound|80||{WEB}")
    assert found is not None and TO_ADM.encode() in found.body
