"""Endpoints: who serves a cluster, with weights, the way to reach them, and what clients share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from envoy.config.core.v3.health_check_pb2 import DRAINING, UNHEALTHY
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.endpoints.assignments import assignment
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.service import Endpoint, Health, Locality, Port, Protocol, Service, ServiceKey
from mesh_pilot.world import World
from tests.support.upstreams import addresses, eds, endpoints, outbound, target
from tests.support.worlds import SOURCE, sidecar, update, world_of

HOST = "store.shop.svc.cluster.local"
NAME = f"outbound|80||{HOST}"
BY_SNI = f"outbound_.80_._.{HOST}"
"""The cluster of an AUTO_PASSTHROUGH gateway."""


def entry(listed: str, *, host: str = HOST, more: str = "", ports: str = "[{number: 80, name: http}]") -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: store, namespace: shop}}
spec:
  hosts: ["{host}"]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: {ports}
  endpoints: [{listed}]
  {more}
---
"""


def rule(body: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: store, namespace: shop}}
spec: {{host: {HOST}, {body}}}
---
"""


def peer_authentication(body: str, namespace: str = "shop") -> str:
    return f"""
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: store, namespace: {namespace}}}
spec: {{{body}}}
---
"""


def mesh_tls(assigned: ClusterLoadAssignment) -> list[str]:
    """The addresses of endpoints that mesh mTLS is used to."""
    return [
        e.endpoint.address.socket_address.address
        for locality in assigned.endpoints
        for e in locality.lb_endpoints
        if e.metadata.filter_metadata["envoy.transport_socket_match"].fields["tlsMode"].string_value == "istio"
    ]


def registered(*listed: Endpoint) -> World:
    """A World with one service of a registry."""
    world = world_of()
    key = ServiceKey(HOST, "shop")
    service = Service(HOST, "shop", (Port(80, "http", Protocol.HTTP),), created=datetime(2024, 1, 1, tzinfo=UTC))
    world.apply([Upsert(SOURCE, service), Upsert(SOURCE, Endpoints(key, listed))])
    return world


# -- who


def test_endpoints_of_a_port_are_at_its_target_port_by_address() -> None:
    ports = "[{number: 80, name: http, targetPort: 8080}, {number: 90, name: other}]"
    text = entry("{address: 10.2.1.2}, {address: 10.2.1.1, ports: {http: 7070}}", ports=ports)
    world = world_of(text)
    assert addresses(endpoints(world, sidecar(), NAME)) == ["10.2.1.1:7070", "10.2.1.2:8080"]
    assert addresses(endpoints(world, sidecar(), f"outbound|90||{HOST}")) == ["10.2.1.1:90", "10.2.1.2:90"]


def test_a_cluster_without_endpoints_has_an_empty_assignment() -> None:
    world = world_of(entry("{address: 10.2.1.1, labels: {v: a}}") + rule("subsets: [{name: b, labels: {v: b}}]"))
    assert not endpoints(world, sidecar(), f"outbound|80|b|{HOST}").endpoints


@pytest.mark.parametrize(
    "name",
    [
        "outbound|81||" + HOST,
        "outbound|80|v9|" + HOST,
        "outbound|80||other.example.com",
        "inbound|80||",
        "BlackHoleCluster",
        "outbound|x||" + HOST,
    ],
)
def test_what_is_no_eds_cluster_has_no_assignment(name: str) -> None:
    assert eds(world_of(entry("{address: 10.2.1.1}")), sidecar(), name) is None


def test_clusters_that_find_endpoints_by_themselves_have_no_assignment() -> None:
    dns = entry("{address: a.example.com}").replace("STATIC", "DNS")
    assert eds(world_of(dns), sidecar(), NAME) is None
    through = entry("{address: 10.2.1.1}") + rule("trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}")
    assert eds(world_of(through), sidecar(), NAME) is None
    assert eds(world_of(through), sidecar(node_type="router"), NAME) is not None


def test_a_subset_has_the_endpoints_with_its_labels_topology_included() -> None:
    text = entry("{address: 10.2.1.1, labels: {v: a}, locality: eu/1}, {address: 10.2.1.2, labels: {v: a}}")
    subsets = "{name: a, labels: {v: a}}, {name: eu, labels: {v: a, topology.kubernetes.io/region: eu}}"
    world = world_of(text + rule(f"subsets: [{subsets}]"))
    assert addresses(endpoints(world, sidecar(), f"outbound|80|a|{HOST}")) == ["10.2.1.2:80", "10.2.1.1:80"]
    assert addresses(endpoints(world, sidecar(), f"outbound|80|eu|{HOST}")) == ["10.2.1.1:80"]


def test_a_gateway_finds_them_under_the_server_name_too() -> None:
    world = world_of(entry("{address: 10.2.1.1, serviceAccount: a}"))
    name = BY_SNI
    assigned = endpoints(world, sidecar(node_type="router"), name)
    assert (assigned.cluster_name, addresses(assigned)) == (name, ["10.2.1.1:80"])


def test_of_two_namespaces_a_host_is_the_one_that_the_cluster_is_of() -> None:
    red = entry("{address: 10.1.1.1}", host="api.example.com").replace("name: store", "name: red")
    blue = entry("{address: 10.1.1.2}", host="api.example.com").replace("namespace: shop", "namespace: blue")
    private = entry("{address: 10.1.1.3}", host="api.example.com", more='exportTo: ["."]')
    private = private.replace("namespace: shop", "namespace: green")
    world = world_of(red + blue + private)
    for namespace, address in (("shop", "10.1.1.1"), ("blue", "10.1.1.2"), ("green", "10.1.1.3")):
        assigned = endpoints(world, sidecar(namespace=namespace), "outbound|80||api.example.com")
        assert addresses(assigned) == [f"{address}:80"]


def test_a_sidecar_config_narrows_what_has_an_assignment() -> None:
    scope = """
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["~/*"]}]}
"""
    world = world_of(entry("{address: 10.2.1.1}") + scope)
    assert eds(world, sidecar(), NAME) is None
    assert eds(world, sidecar(namespace="shop"), NAME) is not None


# -- how much, how well


def test_weights_add_up_and_no_weight_is_one() -> None:
    assigned = endpoints(
        world_of(entry("{address: 10.2.1.1, weight: 7}, {address: 10.2.1.2, weight: 0}, {address: 10.2.1.3}")),
        sidecar(),
        NAME,
    )
    (locality,) = assigned.endpoints
    assert [e.load_balancing_weight.value for e in locality.lb_endpoints] == [7, 0, 0]
    assert not locality.lb_endpoints[1].HasField("load_balancing_weight")
    assert locality.load_balancing_weight.value == 9


def test_weights_that_add_up_to_more_than_envoy_counts_are_scaled_down() -> None:
    most = 2**32 - 1
    listed = "{address: 10.2.1.1, weight: 4294967295}, {address: 10.2.1.2, weight: 2147483648}, {address: 10.2.1.3}"
    (locality,) = endpoints(world_of(entry(listed)), sidecar(), NAME).endpoints
    first, second, third = (e.load_balancing_weight.value or 1 for e in locality.lb_endpoints)
    assert first + second + third == locality.load_balancing_weight.value <= most
    assert third == 1 and first / second == pytest.approx(2, rel=1e-6)


def test_weights_fit_after_they_were_divided_among_gateways_of_networks() -> None:
    listed = ", ".join(
        f"{{address: 10.2.1.{i}, weight: 4294967295, network: {n}}}" for i, n in enumerate(("a", "a", ""))
    )
    networks = "networks: {a: {gateways: [{address: 7.7.7.1, port: 443}, {address: 7.7.7.2, port: 443}]}}"
    world = world_of(entry(listed, more="exportTo: ['*']"), networks=networks)
    assigned = endpoints(world, sidecar(NETWORK="a"), NAME)
    assert sum(locality.load_balancing_weight.value for locality in assigned.endpoints) <= 2**32 - 1


def test_a_locality_is_always_there_because_envoy_ignores_the_weight_of_one_that_is_not() -> None:
    (locality,) = endpoints(world_of(entry("{address: 10.2.1.1}")), sidecar(), NAME).endpoints
    assert locality.HasField("locality")


def test_the_same_address_counts_once() -> None:
    assigned = endpoints(world_of(entry("{address: 10.2.1.1}, {address: 10.2.1.1}")), sidecar(), NAME)
    assert addresses(assigned) == ["10.2.1.1:80"]
    assert assigned.endpoints[0].load_balancing_weight.value == 1


def workload_entry(name: str, address: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: {name}, namespace: shop}}
spec: {{address: "{address}", labels: {{app: store}}}}
---
"""


def test_a_workload_with_a_host_name_is_left_out_of_services_that_resolve_none() -> None:
    workloads = workload_entry("a", "10.2.1.1") + workload_entry("b", "b.example") + workload_entry("c", "unix:///c")
    selecting = entry("").replace("endpoints: []", "workloadSelector: {labels: {app: store}}")
    (locality,) = endpoints(world_of(selecting + workloads), sidecar(), NAME).endpoints
    assert [e.endpoint.address.pipe.path for e in locality.lb_endpoints] == ["/c", ""]
    assert locality.load_balancing_weight.value == 2
    cluster = outbound(world_of(selecting.replace("STATIC", "DNS") + workloads), sidecar())[NAME]
    assert "b.example:80" in addresses(cluster.load_assignment)


def test_host_names_of_another_entry_for_the_host_are_left_out() -> None:
    by_name = entry("{address: b.example}").replace("STATIC", "DNS").replace("name: store,", "name: younger,")
    assert addresses(endpoints(world_of(entry("{address: 10.2.1.1}") + by_name), sidecar(), NAME)) == ["10.2.1.1:80"]


def test_a_unix_socket_is_a_pipe() -> None:
    assigned = endpoints(world_of(entry('{address: "unix:///var/run/a.sock"}')), sidecar(), NAME)
    assert assigned.endpoints[0].lb_endpoints[0].endpoint.address.pipe.path == "/var/run/a.sock"


def test_endpoints_that_drain_are_said_to_and_unhealthy_ones_are_left_out() -> None:
    listed = [Endpoint(f"10.2.1.{i}", 80, "http", health=health) for i, health in enumerate(Health)]
    assigned = endpoints(registered(*listed), sidecar(), NAME)
    (locality,) = assigned.endpoints
    assert addresses(assigned) == ["10.2.1.0:80", "10.2.1.2:80"]
    assert locality.lb_endpoints[1].health_status == DRAINING


def test_who_takes_over_for_a_service_comes_after_all_of_its_own_whatever_clients_prefer() -> None:
    def at(last: int, region: str, rank: int = 0) -> Endpoint:
        return Endpoint(f"10.2.1.{last}", 80, "http", locality=Locality(region), failover_rank=rank)

    def priorities(world: World) -> dict[str, int]:
        found = endpoints(world, sidecar(locality="eu"), NAME)
        return {a: g.priority for g in found.endpoints for a in addresses(ClusterLoadAssignment(endpoints=[g]))}

    own, third, second = (at(1, "eu"), at(2, "us")), (at(3, "eu", 3), at(2, "us", 3)), (at(4, "us", 1), at(5, "eu", 1))
    world = registered(*third, *second, *own)
    together = {"10.2.1.1:80": 0, "10.2.1.2:80": 0, "10.2.1.4:80": 1, "10.2.1.5:80": 1, "10.2.1.3:80": 2}
    assert priorities(world) == together, "an address that is in two ranks is in the lower one"
    update(world, rule("trafficPolicy: {outlierDetection: {}}"))
    assert list(priorities(world).items()) == [
        ("10.2.1.1:80", 0),
        ("10.2.1.2:80", 1),
        ("10.2.1.5:80", 2),
        ("10.2.1.4:80", 3),
        ("10.2.1.3:80", 4),
    ]
    update(world, rule("trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: eu, to: {eu: 100}}]}}}"))
    shared = dict(together)
    del shared["10.2.1.2:80"]
    assert priorities(world) == shared, "the share of a region is one of the service's own endpoints"
    assert priorities(registered(*third)) == {"10.2.1.2:80": 0, "10.2.1.3:80": 0}


def test_unhealthy_ones_are_sent_where_outliers_are_detected_so_that_failover_sees_them() -> None:
    world = registered(Endpoint("10.2.1.1", 80, "http", health=Health.UNHEALTHY))
    update(world, rule("trafficPolicy: {outlierDetection: {}}"))
    (locality,) = endpoints(world, sidecar(), NAME).endpoints
    assert locality.lb_endpoints[0].health_status == UNHEALTHY


# -- mesh mTLS


PASSTHROUGH_GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: istio-system}
spec:
  selector: {istio: edge}
  servers: [{port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ["*.local"]}]
---
"""

BOTH = "{address: 10.2.1.1, serviceAccount: a, labels: {v: a}}, {address: 10.2.1.2, labels: {v: b}}"


def test_mesh_mtls_is_for_endpoints_that_have_it() -> None:
    assert mesh_tls(endpoints(world_of(entry(BOTH)), sidecar(), NAME)) == ["10.2.1.1"]


def test_a_workload_without_a_proxy_gets_plaintext_by_its_label_or_a_policy_though_it_has_an_account() -> None:
    service = entry("", more="workloadSelector: {labels: {v: a}}").replace("endpoints: []", "")
    workload = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: one, namespace: shop}
spec: {address: 10.2.1.1, serviceAccount: a, labels: {v: a}}
---
"""
    world = world_of(service + workload)
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == ["10.2.1.1"]
    update(world, peer_authentication("mtls: {mode: DISABLE}"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == []
    update(world, peer_authentication("mtls: {mode: PERMISSIVE}"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == ["10.2.1.1"]
    update(world, workload.replace("v: a", "v: a, security.istio.io/tlsMode: disabled"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == []


def test_a_rule_that_disables_tls_does_so_for_endpoints_too() -> None:
    text = entry(BOTH) + rule("trafficPolicy: {tls: {mode: DISABLE}}")
    assert mesh_tls(endpoints(world_of(text), sidecar(), NAME)) == []


def test_a_subset_that_disables_tls_does_so_in_its_own_cluster() -> None:
    subset = "{name: a, labels: {v: a}, trafficPolicy: {tls: {mode: DISABLE}}}"
    world = world_of(entry(BOTH) + rule(f"subsets: [{subset}]"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == ["10.2.1.1"]
    assert mesh_tls(endpoints(world, sidecar(), NAME.replace("||", "|a|"))) == []


@pytest.mark.parametrize(
    ("tls", "found"),
    [
        ("{mode: SIMPLE, caCertificates: /ca.pem}", ["10.1.0.1:80"]),
        ("{mode: MUTUAL, clientCertificate: /c, privateKey: /k, caCertificates: /ca.pem}", ["10.1.0.1:80"]),
        ("{mode: DISABLE}", ["10.1.0.1:80"]),
        ("{mode: ISTIO_MUTUAL}", ["10.1.0.1:80", "198.51.100.2:15443", "198.51.100.3:15443"]),
    ],
)
def test_a_gateway_to_another_network_leads_to_nothing_but_mesh_mtls(tls: str, found: list[str]) -> None:
    spread = "{address: 10.1.0.1, network: a, serviceAccount: s}, {address: 10.2.0.2, network: b, serviceAccount: s}"
    world = world_of(entry(spread) + rule(f"trafficPolicy: {{tls: {tls}}}"), networks=NETWORKS)
    assert addresses(endpoints(world, sidecar(NETWORK="a"), NAME)) == found


def test_a_workload_that_accepts_only_plaintext_gets_plaintext() -> None:
    one = Endpoint("10.2.1.1", 80, "http", labels={"v": "a"}, tls_mode="istio", namespace="shop")
    two = Endpoint("10.2.1.2", 80, "http", labels={"v": "b"}, tls_mode="istio", namespace="shop")
    world = registered(one, two)
    update(world, peer_authentication("selector: {matchLabels: {v: a}}, mtls: {mode: DISABLE}"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == ["10.2.1.2"]
    update(world, peer_authentication("selector: {matchLabels: {v: a}}, portLevelMtls: {81: {mode: DISABLE}}"))
    assert mesh_tls(endpoints(world, sidecar(), NAME)) == ["10.2.1.1", "10.2.1.2"]


def test_a_passthrough_gateway_leads_only_to_endpoints_with_mesh_mtls() -> None:
    edge = sidecar(node_type="router")
    world = world_of(entry(BOTH))
    assert addresses(endpoints(world, edge, BY_SNI)) == ["10.2.1.1:80"]
    assert addresses(endpoints(world, edge, NAME)) == ["10.2.1.1:80", "10.2.1.2:80"]


def test_a_passthrough_gateway_leaves_out_endpoints_whose_rule_or_policy_turns_mtls_off() -> None:
    edge = sidecar(node_type="router")
    ruled = entry(BOTH) + rule("trafficPolicy: {tls: {mode: DISABLE}}")
    assert addresses(endpoints(world_of(ruled), edge, BY_SNI)) == []
    world = world_of(entry(BOTH))
    assert addresses(endpoints(world, edge, BY_SNI)) == ["10.2.1.1:80"]
    update(world, peer_authentication("mtls: {mode: DISABLE}"))
    assert addresses(endpoints(world, edge, BY_SNI)) == []
    update(world, peer_authentication("mtls: {mode: PERMISSIVE}"))
    assert addresses(endpoints(world, edge, BY_SNI)) == ["10.2.1.1:80"]


def test_a_passthrough_gateways_dns_clusters_have_endpoints_with_mesh_mtls_only() -> None:
    text = entry("{address: a.example.com, serviceAccount: a}, {address: b.example.com}").replace("STATIC", "DNS")
    edge = sidecar(node_type="router", labels={"istio": "edge"})
    world = world_of(text + PASSTHROUGH_GATEWAY)
    found = outbound(world, edge)
    assert addresses(found[BY_SNI].load_assignment) == ["a.example.com:80"]
    assert addresses(found[NAME].load_assignment) == ["a.example.com:80", "b.example.com:80"]
    update(world, rule("trafficPolicy: {tls: {mode: DISABLE}}"))
    assert addresses(outbound(world, edge)[BY_SNI].load_assignment) == []


# -- several networks

NETWORKS = """
networks:
  a: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{address: 198.51.100.1, port: 15443}]}
  b: {gateways: [{address: 198.51.100.2, port: 15443}, {address: 198.51.100.3, port: 15443}]}
"""

SPREAD = """{address: 10.1.0.1, serviceAccount: a, network: a},
  {address: 10.2.0.1, serviceAccount: a, network: b, weight: 3}, {address: 10.2.0.2, network: b}"""


def test_another_network_is_reached_through_its_gateways_by_mesh_mtls_only() -> None:
    world = world_of(entry(SPREAD), networks=NETWORKS)
    near = endpoints(world, sidecar(NETWORK="a"), NAME)
    assert addresses(near) == ["10.1.0.1:80", "198.51.100.2:15443", "198.51.100.3:15443"]
    (locality,) = near.endpoints
    # Weights are scaled so that they divide evenly between the two gateways.
    assert [e.load_balancing_weight.value for e in locality.lb_endpoints] == [2, 3, 3]
    assert mesh_tls(near) == ["10.1.0.1", "198.51.100.2", "198.51.100.3"]
    far = endpoints(world, sidecar(NETWORK="b"), NAME)
    assert addresses(far) == ["10.2.0.1:80", "10.2.0.2:80", "198.51.100.1:15443"]


def test_a_passthrough_gateway_of_a_network_leads_to_its_own_and_others_endpoints_with_mesh_mtls() -> None:
    text = entry(SPREAD + ", {address: 10.1.0.2}")
    world = world_of(text, networks=NETWORKS)
    near = endpoints(world, sidecar(node_type="router", NETWORK="a"), BY_SNI)
    assert addresses(near) == ["10.1.0.1:80", "198.51.100.2:15443", "198.51.100.3:15443"]
    assert mesh_tls(near) == ["10.1.0.1", "198.51.100.2", "198.51.100.3"]
    far = endpoints(world, sidecar(node_type="router", NETWORK="b"), BY_SNI)
    assert addresses(far) == ["10.2.0.1:80", "198.51.100.1:15443"]


def test_a_proxy_of_no_known_network_reaches_everything_directly() -> None:
    world = world_of(entry(SPREAD), networks=NETWORKS)
    assert len(addresses(endpoints(world, sidecar(), NAME))) == 3


def test_a_rule_for_mesh_mtls_makes_no_sidecar_behind_a_gateway() -> None:
    text = entry("{address: 10.2.0.2, network: b}") + rule("trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}")
    found = endpoints(world_of(text, networks=NETWORKS), sidecar(NETWORK="a"), NAME)
    assert addresses(found) == []


def test_gateways_may_be_a_service_of_the_registry() -> None:
    gateway = entry(
        "{address: 203.0.113.9}", host="gw.example.com", ports="[{number: 443, name: tls, targetPort: 8443}]"
    )
    gateway = gateway.replace("name: store", "name: gw")
    networks = "networks: {b: {gateways: [{registryServiceName: gw.example.com, port: 443}]}}"
    world = world_of(entry(SPREAD) + gateway, networks=networks)
    assert addresses(endpoints(world, sidecar(NETWORK="a"), NAME)) == ["10.1.0.1:80", "203.0.113.9:8443"]


def test_a_gateway_by_name_is_where_the_service_of_that_name_is() -> None:
    gateway = entry("{address: 203.0.113.9}", host="gw.example.com", ports="[{number: 443, name: tls}]")
    networks = "networks: {b: {gateways: [{address: gw.example.com, port: 443}]}}"
    world = world_of(entry(SPREAD) + gateway.replace("name: store", "name: gw"), networks=networks)
    assert addresses(endpoints(world, sidecar(NETWORK="a"), NAME)) == ["10.1.0.1:80", "203.0.113.9:443"]


def test_a_registrys_endpoints_are_in_its_network_unless_they_say_otherwise() -> None:
    networks = NETWORKS.replace("b: {gateways", "b: {endpoints: [{fromRegistry: external}], gateways")
    world = world_of(
        entry("{address: 10.1.0.1, network: a}, {address: 10.2.0.2, serviceAccount: a}"), networks=networks
    )
    found = endpoints(world, sidecar(NETWORK="a"), NAME)
    assert addresses(found) == ["10.1.0.1:80", "198.51.100.2:15443", "198.51.100.3:15443"]


def test_an_endpoint_without_address_is_reached_through_its_networks_gateway_alone() -> None:
    world = world_of(entry("{address: 10.2.0.1, network: b}, {network: b, serviceAccount: a}"), networks=NETWORKS)
    assert addresses(endpoints(world, sidecar(NETWORK="b"), NAME)) == ["10.2.0.1:80"]
    far = endpoints(world, sidecar(NETWORK="a"), NAME)
    assert addresses(far) == ["198.51.100.2:15443", "198.51.100.3:15443"]


# -- sharing


def test_clients_for_which_it_is_the_same_share_the_bytes() -> None:
    world = world_of(entry("{address: 10.2.1.1, locality: eu/1}") + rule("trafficPolicy: {outlierDetection: {}}"))
    proxies: list[dict[str, Any]] = [{"namespace": "a"}, {"namespace": "b", "labels": {"app": "b"}}]
    found = [eds(world, sidecar(**p, locality="eu/2"), NAME) for p in proxies]
    assert found[0] is found[1]
    assert eds(world, sidecar(locality="us/1"), NAME) is not found[0]


def test_passthrough_gateways_share_the_bytes_apart_from_those_of_other_clients() -> None:
    world = world_of(entry(BOTH))
    edges = [sidecar(node_type="router", namespace=namespace, locality=f"{namespace}/1") for namespace in ("eu", "us")]
    assert eds(world, edges[0], BY_SNI) is eds(world, edges[1], BY_SNI)
    watch = Watch(world.memo, lambda: None)
    at = target(world, edges[0])
    watch.get(assignment.query(at.scope, at.locality, BY_SNI))
    before = world.memo.statistics().calls
    update(world, peer_authentication("mtls: {mode: STRICT}"))
    watch.get(assignment.query(at.scope, at.locality, BY_SNI))
    # A policy that turns nothing off costs no assignment.
    assert world.memo.statistics().calls["load_assignment"] == before["load_assignment"]


def test_a_change_of_one_services_endpoints_costs_one_assignment() -> None:
    others = "".join(
        entry("{address: 10.3.1.1}", host=f"h{i}.example.com").replace("name: store", f"name: h{i}") for i in range(20)
    )
    world = world_of(entry("{address: 10.2.1.1}") + others)
    watch = Watch(world.memo, lambda: None)
    at = target(world, sidecar())
    for host in (HOST, *(f"h{i}.example.com" for i in range(20))):
        watch.get(assignment.query(at.scope, at.locality, f"outbound|80||{host}"))
    watch.take()
    before = world.memo.statistics().calls
    assert before["endpoint_viewpoint"] == 1  # one for all services to which it is the same
    update(world, entry("{address: 10.2.1.1}, {address: 10.2.1.2}"))
    stale = watch.take()
    assert [args[-1] for _, args in stale] == [NAME]
    for query in stale:
        watch.get(query)
    calls = world.memo.statistics().calls
    assert calls["load_assignment"] - before["load_assignment"] == 1
    assert calls["assignment"] - before["assignment"] == 1


def test_gateways_of_any_numbers_leave_weights_that_fit() -> None:
    sizes = {"a": 97, "b": 89, "c": 83, "d": 101, "e": 103}
    gateways = {name: [f"7.{n}.1.{i}" for i in range(size)] for n, (name, size) in enumerate(sizes.items())}
    listed = (
        f"{name}: {{gateways: [{', '.join(f'{{address: {a}, port: 443}}' for a in of)}]}}"
        for name, of in gateways.items()
    )
    networks = f"networks: {{{', '.join(listed)}}}"
    remote = (f"{{address: 10.9.{n}.1, network: {name}, serviceAccount: a}}" for n, name in enumerate(sizes))
    own = (f"{{address: 10.1.0.{i}}}" for i in range(100))
    found = endpoints(world_of(entry(", ".join((*own, *remote))), networks=networks), sidecar(NETWORK="z"), NAME)
    weights = {
        e.endpoint.address.socket_address.address: e.load_balancing_weight.value
        for locality in found.endpoints
        for e in locality.lb_endpoints
    }
    assert len(weights) == 100 + sum(sizes.values())
    shares = [sum(weights[address] for address in of) / weights["10.1.0.0"] for of in gateways.values()]
    assert all(0.98 < share <= 1 for share in shares)


def test_registries_may_list_endpoints_in_any_order() -> None:
    listed = [Endpoint(f"10.2.1.{i}", 80, "http") for i in range(3)]
    one, other = registered(*listed), registered(*reversed(listed))
    assert eds(one, sidecar(), NAME) == eds(other, sidecar(), NAME)
