"""Clusters on demand: what is needed beforehand is there, and the others are what they would be otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.model.proxy import CLUSTERS, Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from tests.support import golden
from tests.support.envoy_model import names_in
from tests.support.golden import adsdump
from tests.support.patching import API, SHOP, envoy_filter, patch
from tests.support.routing import service, virtual_service
from tests.support.worlds import sidecar, update, world_of


def on_demand(proxy: Proxy) -> Proxy:
    return attrs.evolve(proxy, incremental=True, metadata={**proxy.metadata, CLUSTERS: "on-demand"})


def clusters(resources: WorldResources) -> dict[str, Any]:
    held = resources.set(CLUSTER)
    assert held is not None
    return dict(held.snapshot().entries)


def mirrors(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for policy in node.get("request_mirror_policies", ()):
            yield policy["cluster"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from mirrors(part)


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_clusters_that_more_than_requests_go_to_are_there_beforehand(scenario: str) -> None:
    catalog = WorldCatalog(golden.load(scenario))
    for entry in golden.proxies(scenario)[:4]:
        proxy = golden.proxy_of(entry)
        whole, asking = catalog.open(proxy), catalog.open(on_demand(proxy))
        every, needed = clusters(whole), clusters(asking)
        held, tables, listeners = asking.set(CLUSTER), asking.set(ROUTE), asking.set(LISTENER)
        assert held is not None and tables is not None and listeners is not None
        assert needed.items() <= every.items()
        assert {name: held.get(name) for name in every} == every
        if asking.target.scope.on_demand:
            assert all(name.startswith("outbound|") for name in every.keys() - needed.keys())
        elif not entry.get("grpc"):
            assert needed == every
        named = {name for listener in listeners.snapshot().entries.values() for name in names_in(listener).clusters}
        for name in ("80", "8080", "9080", "http_proxy"):
            table = tables.get(name)
            if table is not None:
                message = adsdump.find_class(ROUTE).FromString(table.body)
                named.update(mirrors(adsdump.Expander().msg(message)))
        assert named & every.keys() <= needed.keys()


def rule(text: str) -> str:
    return virtual_service("a", text)


A, B = (f"outbound|80||{name}.shop.svc.cluster.local" for name in "ab")


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("{hosts: [a], http: [{route: [{destination: {host: b}}]}]}", set()),
        ("{hosts: [a], http: [{route: [{destination: {host: a}}], mirror: {host: b}}]}", {B}),
        ("{hosts: [a], http: [{route: [{destination: {host: a}}], mirrors: [{destination: {host: b}}]}]}", {B}),
        ("{hosts: [a], tcp: [{route: [{destination: {host: b, port: {number: 80}}}]}]}", {B}),
        (
            "{hosts: [a.shop.svc.cluster.local], tls: [{match: [{sniHosts: [a.shop.svc.cluster.local]}], "
            "route: [{destination: {host: b, port: {number: 80}}}]}]}",
            {B},
        ),
    ],
)
def test_mirrors_and_destinations_of_connections_are_needed(text: str, needed: set[str]) -> None:
    world = world_of(service("a") + service("b") + rule(text))
    resources = WorldCatalog(world).open(on_demand(sidecar(namespace="shop")))
    assert clusters(resources).keys() & {A, B} == needed
    update(world, rule("{hosts: [a], http: [{route: [{destination: {host: b}}]}]}"))
    assert clusters(resources).keys() & {A, B} == set()


def test_services_of_providers_and_of_the_egress_proxy_are_needed() -> None:
    mesh = "extensionProviders: [{name: t, zipkin: {service: shop/b.shop.svc.cluster.local, port: 80}}]"
    own = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  egress: [{hosts: ["*/*"]}]
  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: a.shop.svc.cluster.local, port: {number: 80}}}
"""
    catalog = WorldCatalog(world_of(service("a") + service("b") + service("c") + own, mesh=mesh))
    held = clusters(catalog.open(on_demand(sidecar(namespace="shop"))))
    assert {name for name in held if name.startswith("outbound|")} == {A, B}


def test_protocols_that_are_not_known_to_be_http_are_needed() -> None:
    ports = "80 http HTTP, 81 grpc GRPC, 82 tcp TCP, 83 tls TLS, 84 some"
    catalog = WorldCatalog(world_of(service("a", ports=ports)))
    held = clusters(catalog.open(on_demand(sidecar(namespace="shop"))))
    assert sorted(name.split("|")[1] for name in held if name.startswith("outbound|")) == ["82", "83", "84"]


def test_proxies_with_patches_get_all_clusters() -> None:
    lua = patch("CLUSTER", "MERGE", "{alt_stat_name: x}", cluster={"service": "none"})
    catalog = WorldCatalog(world_of(SHOP + envoy_filter(lua)))
    assert clusters(catalog.open(on_demand(API))).keys() == clusters(catalog.open(API)).keys()


@pytest.mark.parametrize("proxy", [sidecar(namespace="shop", CLUSTERS="on-demand"), sidecar(namespace="shop")])
def test_who_does_not_ask_for_it_or_cannot_gets_all_at_once(proxy: Proxy) -> None:
    catalog = WorldCatalog(world_of(service("a")))
    assert A in clusters(catalog.open(proxy))


def test_an_edit_of_a_route_does_not_look_through_all_services() -> None:
    def calls(size: int) -> int:
        text = "".join(
            service(f"s{n}") + virtual_service(f"s{n}", f"{{hosts: [s{n}], http: [{{timeout: 1s, route: [$]}}]}}")
            for n in range(size)
        ).replace("$", "{destination: {host: s1}}")
        world = world_of(text)
        resources = WorldCatalog(world).open(on_demand(sidecar(namespace="shop")))
        clusters(resources)
        before = world.memo.statistics().computed
        update(world, virtual_service("s1", "{hosts: [s1], http: [{timeout: 2s, route: [{destination: {host: s1}}]}]}"))
        clusters(resources)
        return world.memo.statistics().computed - before

    assert calls(10) == calls(300) < 10
