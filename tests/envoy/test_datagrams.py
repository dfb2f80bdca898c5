"""UDP listeners of routers and their clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2

from mesh_pilot.envoy.clusters.outbound import cluster_plans
from mesh_pilot.envoy.endpoints.assignments import assignment, has_assignment
from mesh_pilot.envoy.gateway.listeners import gateway_conflicts, gateway_listeners
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.world import World
from tests.support.envoy_check import complaints
from tests.support.manifests import manifest, service
from tests.support.routing import plain, router, target
from tests.support.worlds import SOURCE, world_of

LABELS = {"gateway.networking.k8s.io/gateway-name": "edge"}
HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\nmetadata: {name: %s, namespace: shop}\n"
GATEWAY = (
    HEAD % "edge"
    + """kind: Gateway
spec:
  gatewayClassName: istio
  listeners:
  - {name: dns, protocol: UDP, port: 53}
  - {name: dns-tcp, protocol: TCP, port: 53}
  - {name: idle, protocol: UDP, port: 54}
"""
)
RED = service("red.test", 70, {"address": "1.1.1.1"}, protocol="UDP")
BLUE = service("blue.test", 70, {"address": "1.1.1.2"}, protocol="UDP")


def udp_route(*backends: tuple[str, int], name: str = "dns", more: str = "") -> str:
    refs = ", ".join(
        f"{{group: networking.istio.io, kind: Hostname, name: {host}, port: 70, weight: {weight}}}"
        for host, weight in backends
    )
    return (
        HEAD % name
        + f"""kind: UDPRoute
spec:
  parentRefs: [{{name: edge, sectionName: dns}}]
  rules: [{{backendRefs: [{refs}]}}{more}]
"""
    )


def keys_of(world: World, **given: Any) -> ProxyKeys:
    return target(world, router(namespace="shop", labels=LABELS, **given))


def listeners(world: World, **given: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for name, query in gateway_listeners(world.view, keys_of(world, **given).workload).items():
        resource = query.get(world.view)
        if resource is not None:
            message = listener_pb2.Listener.FromString(resource.body)
            found[name] = plain(message)
    return found


def clusters(world: World) -> dict[str, dict[str, Any]]:
    keys = keys_of(world)
    found = {}
    for shard in cluster_plans(world.view, keys.scope, keys.locality):
        for name, query in shard.get(world.view).items():
            resource = query.get(world.view)
            if resource is not None:
                found[name] = plain(cluster_pb2.Cluster.FromString(resource.body))
    return found


def proxy_of(listener: dict[str, Any]) -> dict[str, Any]:
    (found,) = listener["listener_filters"]
    config: dict[str, Any] = found["typed_config"]
    return config


def test_a_udp_listener_has_the_port_of_a_tcp_one_and_is_there_with_a_route_only() -> None:
    assert "0.0.0.0_53_udp" not in listeners(world_of(GATEWAY + RED))
    found = listeners(world_of(GATEWAY + RED + udp_route(("red.test", 1))))
    assert set(found) == {"0.0.0.0_53_udp"}
    listener = found["0.0.0.0_53_udp"]
    address = {"protocol": "UDP", "address": "0.0.0.0", "port_value": 53}
    assert listener["address"] == {"socket_address": address} and "filter_chains" not in listener
    proxy = proxy_of(listener)
    assert proxy["stat_prefix"] == "outbound|70/udp||red.test"
    assert proxy["matcher"]["on_no_match"]["action"]["typed_config"]["cluster"] == "outbound|70/udp||red.test"


def test_weights_are_fractions_of_what_is_left() -> None:
    world = world_of(GATEWAY + RED + BLUE + udp_route(("red.test", 1), ("blue.test", 3), ("gone.test", 6)))
    matcher = proxy_of(listeners(world)["0.0.0.0_53_udp"])["matcher"]
    shares = [
        (
            each["on_match"]["action"]["typed_config"]["cluster"],
            each["predicate"]["single_predicate"]["custom_match"]["typed_config"]["runtime_fraction"]["default_value"],
        )
        for each in matcher["matcher_list"]["matchers"]
    ]
    assert [(name, share["numerator"]) for name, share in shares] == [
        ("outbound|70/udp||red.test", 100_000),
        ("outbound|70/udp||blue.test", 333_333),
    ]
    assert matcher["on_no_match"]["action"]["typed_config"]["cluster"] == "BlackHoleCluster"


def test_only_backends_of_routes_have_clusters_for_datagrams_and_these_have_no_tls() -> None:
    rule = manifest("DestinationRule", "red", "host: red.test\ntrafficPolicy: {tls: {mode: SIMPLE}}")
    world = world_of(GATEWAY + RED + BLUE + rule + udp_route(("red.test", 1)))
    found = clusters(world)
    assert "outbound|70/udp||blue.test" not in found and "outbound|70||red.test" not in found
    assert "transport_socket" not in found["outbound|70/udp||red.test"]
    sidecar = target(world)
    assert not any(
        "udp" in name
        for plan in cluster_plans(world.view, sidecar.scope, sidecar.locality)
        for name in plan.get(world.view)
    )


def test_a_tcp_and_a_udp_port_of_one_number_have_each_their_own_endpoints() -> None:
    world = world_of(GATEWAY + udp_route(("red.test", 1)))
    ports = (Port(70, "dns", Protocol.UDP, 5353), Port(70, "dns-tcp", Protocol.TCP, 5354))
    both = Service("red.test", "shop", ports)
    endpoints = (Endpoint("1.1.1.1", 5353, "dns"), Endpoint("1.1.1.2", 5354, "dns-tcp"))
    world.apply([Upsert(SOURCE, both), Upsert(SOURCE, Endpoints(both.key, endpoints))])
    assert {"outbound|70||red.test", "outbound|70/udp||red.test"} <= set(clusters(world))
    keys = keys_of(world)
    for name, mine, others in (
        ("outbound|70/udp||red.test", b"1.1.1.1", b"1.1.1.2"),
        ("outbound|70||red.test", b"1.1.1.2", b"1.1.1.1"),
    ):
        found = assignment(world.view, keys.scope, keys.locality, name)
        assert found is not None and has_assignment(world.view, keys.scope, name)
        assert mine in found.body and others not in found.body


def test_a_second_route_and_a_second_rule_are_conflicts() -> None:
    more = ", {backendRefs: [{group: networking.istio.io, kind: Hostname, name: blue.test, port: 70}]}"
    second = udp_route(("blue.test", 1), name="other")
    world = world_of(GATEWAY + RED + BLUE + udp_route(("red.test", 1), more=more) + second)
    found = gateway_conflicts(world.view, keys_of(world).workload)
    assert [(each.listener, each.reason) for each in found] == [("0.0.0.0_53_udp", "both claim every datagram")] * 2


def test_both_families_are_listened_at() -> None:
    world = world_of(GATEWAY + RED + udp_route(("red.test", 1)))
    (listener,) = listeners(world, INSTANCE_IPS="10.9.9.9,2001:db8::9").values()
    further = [each["address"]["socket_address"] for each in listener.get("additional_addresses", ())]
    assert further == [{"protocol": "UDP", "address": "::", "port_value": 53}]


@pytest.mark.envoy
def test_envoy_takes_listeners_of_both_families_and_of_weights(tmp_path: Path) -> None:
    world = world_of(GATEWAY + RED + BLUE + udp_route(("red.test", 1), ("blue.test", 3), ("gone.test", 6)))
    plan = gateway_listeners(world.view, keys_of(world, INSTANCE_IPS="10.9.9.9,2001:db8::9").workload)
    found = [resource for query in plan.values() if (resource := query.get(world.view)) is not None]
    assert [each.name for each in found] == ["0.0.0.0_53_udp"]
    assert complaints(tmp_path, [each.body for each in found]) == ""
