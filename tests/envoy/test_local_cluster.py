"""The local cluster of an Envoy that can route by zone: the instances like itself, and nothing that others are sent."""

from __future__ import annotations

import attrs
import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.model.proxy import LOCAL_CLUSTER, SELF_DISCOVERY, Proxy
from mesh_pilot.model.resource import ENDPOINT
from tests.support.manifests import manifest
from tests.support.worlds import sidecar, update, world_of

ME = "{address: 10.1.1.1, locality: r1/z1/a, labels: {pod-template-hash: x}}"
PEERS = (
    "{address: 10.1.1.2, locality: r1/z2, labels: {pod-template-hash: x}}",
    "{address: 10.1.1.3, locality: r2/z1, labels: {pod-template-hash: x}}",
    "{address: 10.1.1.4, locality: r1/z1, labels: {pod-template-hash: y}}",
    "{address: 10.1.1.5, locality: r1/z1}",
)
ABOUT_ITSELF = {SELF_DISCOVERY: "true"}


def web(*endpoints: str, name: str = "web") -> str:
    ports = "[{number: 80, name: http, protocol: HTTP}, {number: 90, name: tcp, protocol: TCP}]"
    listed = ", ".join(endpoints or (ME, *PEERS))
    spec = f"location: MESH_INTERNAL, resolution: STATIC, ports: {ports}, endpoints: [{listed}]"
    return manifest("ServiceEntry", name, f"{{hosts: [{name}.test], {spec}}}")


def client(**more: str) -> Proxy:
    return sidecar(namespace="shop", locality="r1/z1/a", **{**ABOUT_ITSELF, **more})


def own(resources: WorldResources) -> dict[str, list[tuple[str, int]]] | None:
    """Addresses and ports by zone; None without an assignment."""
    endpoints = resources.set(ENDPOINT)
    assert endpoints is not None
    found = endpoints.select(frozenset((LOCAL_CLUSTER,))).entries.get(LOCAL_CLUSTER)
    if found is None:
        return None
    message = ClusterLoadAssignment.FromString(found.body)
    assert message.cluster_name == LOCAL_CLUSTER
    return {
        group.locality.zone: [
            (e.endpoint.address.socket_address.address, e.endpoint.address.socket_address.port_value)
            for e in group.lb_endpoints
        ]
        for group in message.endpoints
    }


@pytest.mark.parametrize("node_type", ["sidecar", "router"])
def test_it_has_the_instances_of_the_same_revision_in_the_region_at_the_first_port(node_type: str) -> None:
    found = own(WorldCatalog(world_of(web())).open(client(node_type=node_type)))
    assert found == {"z1": [("10.1.1.1", 80)], "z2": [("10.1.1.2", 80)]}


def test_a_rule_for_the_own_service_changes_nothing() -> None:
    local = "loadBalancer: {localityLbSetting: {distribute: [{from: r1, to: {r1: 100}}]}}"
    rule = manifest("DestinationRule", "web", f"{{host: web.test, trafficPolicy: {{outlierDetection: {{}}, {local}}}}}")
    world = world_of(web())
    opened = WorldCatalog(world).open(client())
    before = own(opened)
    update(world, rule)
    assert own(opened) == before


@pytest.mark.parametrize(
    ("proxy", "expected"),
    [
        (client(), {}),
        (attrs.evolve(client(), metadata={}), None),
        (client(GENERATOR="grpc"), None),
    ],
    ids=["no service", "no local cluster", "proxyless"],
)
def test_it_is_empty_without_a_service_and_only_there_for_those_that_have_one(
    proxy: Proxy, expected: dict[str, list[tuple[str, int]]] | None
) -> None:
    assert own(WorldCatalog(world_of("")).open(proxy)) == expected


def test_a_change_of_the_own_service_wakes_the_proxy_and_one_of_another_does_not() -> None:
    world = world_of(web() + web("{address: 10.9.9.9}", name="other"))
    woken: list[bool] = []
    opened = WorldCatalog(world).open(client(), lambda _: woken.append(True))
    assert own(opened) is not None
    update(world, web("{address: 10.9.9.8}", name="other"))
    assert woken == []
    update(world, web(ME))
    assert woken and own(opened) == {"z1": [("10.1.1.1", 80)]}
