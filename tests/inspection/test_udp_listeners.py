"""UDP listeners in listings and in ``why``: from a dump, and with the objects behind them."""

from __future__ import annotations

import pytest

from mesh_pilot.explain.inspection.dump import ConfigDump, dump_of
from mesh_pilot.explain.inspection.listings.clusters import ClusterFilter, list_clusters
from mesh_pilot.explain.inspection.listings.listeners import ListenerFilter, list_listeners
from mesh_pilot.explain.inspection.why.evidence import DumpEvidence
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.explain.plan.past_world import resources_of
from mesh_pilot.model.resource import ENVOY_TYPES
from mesh_pilot.ops.explain.attribution import Attribution
from mesh_pilot.ops.explain.proxy_description import describe_proxy
from mesh_pilot.world import World
from mesh_pilot.xds.ads.config_dump import config_dump
from mesh_pilot.xds.ads.status import TypeDump
from tests.envoy.test_datagrams import BLUE, GATEWAY, LABELS, RED, keys_of, udp_route
from tests.support.manifests import manifest, service
from tests.support.routing import router, target
from tests.support.worlds import update, world_of

TCP = """---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: dns, namespace: shop}
spec:
  parentRefs: [{name: edge, sectionName: dns-tcp}]
  rules: [{backendRefs: [{group: networking.istio.io, kind: Hostname, name: tcp.test, port: 70}]}]
"""


@pytest.fixture
def world() -> World:
    text = GATEWAY + RED + BLUE + udp_route(("red.test", 3), ("blue.test", 1), ("gone.test", 4)) + TCP
    return world_of(text + service("tcp.test", 70, {"address": "1.1.1.3"}, protocol="TCP"))


@pytest.fixture
def dump(world: World) -> ConfigDump:
    resources = resources_of(world, router(namespace="shop", labels=LABELS))
    dumps = [TypeDump(url, "1", True, tuple(found.values())) for url, found in resources.items() if url in ENVOY_TYPES]
    found = dump_of(config_dump(tuple(dumps)))
    assert found is not None
    return found


def test_listings_have_udp_listeners_and_their_clusters(dump: ConfigDump) -> None:
    (row,) = list_listeners(dump, ListenerFilter(type="udp")).rows
    shares = "outbound|70/udp||red.test 37.5%, outbound|70/udp||blue.test 12.5%, BlackHoleCluster 50%"
    assert row.cells == ("0.0.0.0", "53", "UDP", f"Clusters: {shares}")
    assert [each.cells[2] for each in list_listeners(dump, ListenerFilter(port=53), verbose=False).rows] == [
        "TCP",
        "UDP",
    ]
    assert [each.cells[1] for each in list_clusters(dump, ClusterFilter(fqdn="red.test", port=70)).rows] == ["70/udp"]


def test_why_tells_datagrams_from_connections(dump: ConfigDump, world: World) -> None:
    evidence = DumpEvidence(dump)
    answer = explain(evidence, parse_request("udp://edge.test:53"))
    assert [(each["name"], each["share"]) for each in answer.result["clusters"]] == [
        ("outbound|70/udp||red.test", 37.5),
        ("outbound|70/udp||blue.test", 12.5),
        ("BlackHoleCluster", 50.0),
    ]
    assert [each.text for each in answer.outcomes if each.fails] == ["dropped: the backend, or its port, is not there"]
    steps = {
        step.step: [str(each.key) for each in found]
        for step, found in Attribution(world.view, keys_of(world)).steps(answer)
    }
    assert steps["listener"] == ["KubernetesGateway/shop/edge", "UDPRoute/shop/dns"]
    tcp = explain(evidence, parse_request("tcp://edge.test:53"))
    assert [each["name"] for each in tcp.result["clusters"]] == ["outbound|70||tcp.test"]
    assert explain(evidence, parse_request("udp://edge.test:54")).outcome.startswith(
        "not taken: the proxy does not listen"
    )


def test_describe_says_which_policies_do_not_apply_to_datagrams(world: World) -> None:
    rule = "selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: edge}}\nrules: [{}]"
    update(world, manifest("AuthorizationPolicy", "all", rule))
    proxy = router(namespace="shop", labels=LABELS)
    found = describe_proxy(world.view, proxy, target(world, proxy))
    text = "AuthorizationPolicy does not apply to datagrams: UDP port 53, 54"
    assert text in [each.text for each in found.warnings]
