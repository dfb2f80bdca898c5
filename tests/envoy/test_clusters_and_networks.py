"""Several clusters and networks: whose endpoints a client reaches, at which address, and through which gateways."""

from __future__ import annotations

import attrs
import pytest

from mesh_pilot.mesh.settings.networks import unresolved_hosts
from mesh_pilot.model.events import Delete, Endpoints, Event, MeshNetworksValue, ResolvedHost, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import (
    CLUSTER_LABEL,
    MESH_TLS_MODE,
    NETWORK_LABEL,
    Endpoint,
    Locality,
    NetworkGateway,
    Port,
    Protocol,
    Registration,
    Service,
    ServiceKey,
)
from mesh_pilot.world import World
from tests.support.listeners import listeners
from tests.support.upstreams import addresses, endpoints, target
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

HOST = "store.shop.svc.cluster.local"
NAME = f"outbound|80||{HOST}"
KEY = ServiceKey(HOST, "shop")
GATEWAY = "gateway.istio-system.svc.cluster.local"
OUTLIERS = "outlierDetection: {}"


def service(cluster_id: str, *vips: str, host: str = HOST) -> Service:
    port = Port(80, "tcp", Protocol.TCP)
    return Service(host, "shop", (port,), vips, registry="Test", declared_by_users=False, cluster_id=cluster_id)


def endpoint(address: str, cluster_id: str, network: str = "") -> Endpoint:
    return Endpoint(
        address, 80, "tcp", cluster_id=cluster_id, network=network, tls_mode=MESH_TLS_MODE, service_account="ns/a/sa/b"
    )


def gateway(cluster_id: str, *external: str, network: str, **more: object) -> Service:
    labels = {"topology.istio.io/network": network}
    ports = (Port(15443, "tls", Protocol.TLS), Port(80, "http", Protocol.HTTP))
    found = Service(
        GATEWAY, "istio-system", ports, labels=labels, cluster_id=cluster_id, external_addresses=external,
        registry="Test", declared_by_users=False,
    )  # fmt: skip
    return attrs.evolve(found, **more)


def clusters_of(**parts: list[Service | Endpoints]) -> World:
    """A World with one source for each cluster."""
    world = world_of()
    for name in parts:
        world.expect(name)
    world.apply([Upsert(name, item) for name, items in parts.items() for item in items])
    return world


def rule(policy: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: store, namespace: shop}}
spec: {{host: {HOST}, trafficPolicy: {{{policy}}}}}
"""


TWO = {
    "east": [service("east", "10.96.0.1"), Endpoints(KEY, (endpoint("10.1.0.1", "east"),))],
    "west": [service("west", "10.97.0.1"), Endpoints(KEY, (endpoint("10.2.0.1", "west"),))],
}


def listener_addresses(world: World, proxy: Proxy) -> set[str]:
    found = (each.address.socket_address for each in listeners(world, proxy).values())
    return {address.address for address in found if address.port_value == 80}


def test_a_service_of_two_clusters_has_the_endpoints_of_both_and_each_client_its_own_clusters_address() -> None:
    world = clusters_of(**TWO)
    for cluster_id, vip in (("west", "10.97.0.1"), ("east", "10.96.0.1"), ("north", "10.96.0.1"), ("", "10.96.0.1")):
        client = sidecar(CLUSTER_ID=cluster_id)
        assert listener_addresses(world, client) == {vip}
        assert addresses(endpoints(world, client, NAME)) == ["10.1.0.1:80", "10.2.0.1:80"]


def test_scopes_differ_by_cluster_only_while_addresses_do() -> None:
    world = clusters_of(**TWO)

    def scopes() -> int:
        return len({target(world, sidecar(CLUSTER_ID=each)).scope for each in ("east", "west")})

    assert scopes() == 2
    world.apply([Delete("west", ("service", *KEY))])
    assert scopes() == 1
    assert listener_addresses(world, sidecar(CLUSTER_ID="west")) == {"10.96.0.1"}


def test_a_cluster_that_goes_takes_its_endpoints_and_addresses_with_it() -> None:
    world = clusters_of(**TWO)
    world.apply([Delete("east", ("service", *KEY)), Delete("east", ("endpoints", *KEY))])
    assert listener_addresses(world, sidecar(CLUSTER_ID="east")) == {"10.97.0.1"}
    assert addresses(endpoints(world, sidecar(CLUSTER_ID="east"), NAME)) == ["10.2.0.1:80"]


LOCAL = "serviceSettings: [{settings: {clusterLocal: true}, hosts: ['*.shop.svc.cluster.local']}]"


@pytest.mark.parametrize(
    ("mesh", "host", "local"),
    [
        ("{}", HOST, False),
        (LOCAL, HOST, True),
        (LOCAL[:-1] + f", {{settings: {{}}, hosts: [{HOST}]}}]", HOST, False),
        ("{}", "dns.kube-system.svc.cluster.local", True),
        ("{}", "kubernetes.default.svc.cluster.local", True),
        ("{}", "istiod.istio-system.svc.cluster.local", True),
        ("serviceSettings: [{hosts: ['*.kube-system.svc.cluster.local']}]", "dns.kube-system.svc.cluster.local", False),
        (
            "serviceSettings: [{hosts: ['dns.kube-system.svc.cluster.local']}]",
            "dns.kube-system.svc.cluster.local",
            False,
        ),
    ],
)
def test_a_cluster_local_service_is_reached_within_the_clients_cluster(mesh: str, host: str, local: bool) -> None:
    world = world_of(mesh=mesh)
    key = ServiceKey(host, "shop")
    listed = (endpoint("10.1.0.1", "east"), endpoint("10.2.0.1", "west"), endpoint("10.3.0.1", ""))
    world.apply([Upsert(SOURCE, service("east", host=host)), Upsert(SOURCE, Endpoints(key, listed))])
    found = endpoints(world, sidecar(CLUSTER_ID="west"), f"outbound|80||{host}")
    assert addresses(found) == (["10.2.0.1:80", "10.3.0.1:80"] if local else [f"10.{n}.0.1:80" for n in (1, 2, 3)])
    assert len(addresses(endpoints(world, sidecar(), f"outbound|80||{host}"))) == 3


def test_clients_fail_over_from_their_own_cluster_to_others() -> None:
    policy = f"{OUTLIERS}, loadBalancer: {{localityLbSetting: {{failoverPriority: [topology.istio.io/cluster]}}}}"
    world = clusters_of(**TWO)
    update(world, rule(policy))
    for cluster_id, first in (("east", "10.1.0.1"), ("west", "10.2.0.1")):
        found = endpoints(world, sidecar(CLUSTER_ID=cluster_id), NAME).endpoints
        at = {g.lb_endpoints[0].endpoint.address.socket_address.address: g.priority for g in found}
        assert at[first] == 0
        assert sorted(at.values()) == [0, 1]


def test_subsets_may_be_of_a_cluster() -> None:
    world = clusters_of(**TWO)
    subsets = "subsets: [{name: west, labels: {topology.istio.io/cluster: west}}]"
    update(world, rule("").replace("trafficPolicy: {}", subsets))
    assert addresses(endpoints(world, sidecar(), f"outbound|80|west|{HOST}")) == ["10.2.0.1:80"]


def test_workload_entries_say_their_cluster_or_are_of_the_control_planes() -> None:
    entry = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: store, namespace: shop}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: tcp}}]
  endpoints: [{{address: 10.1.0.1}}, {{address: 10.2.0.1, labels: {{topology.istio.io/cluster: west}}}}]
"""
    world = World(cluster_id="east")
    world.apply([Upsert(SOURCE, config) for config in configs(entry)])
    assert [e.cluster_id for e in world.endpoints.peek(KEY)] == ["east", "west"]


# -- networks


def test_networks_have_the_gateways_that_services_say_they_are() -> None:
    far = (endpoint("10.2.0.1", "west", "n2"), endpoint("10.3.0.1", "north", "n2"))
    world = clusters_of(
        east=[service("east"), Endpoints(KEY, (endpoint("10.1.0.1", "east", "n1"), *far))],
        west=[gateway("west", "198.51.100.2", network="n2")],
        north=[gateway("north", "198.51.100.3", network="n2")],
        south=[gateway("south", "198.51.100.4", network="n2")],
    )

    def found() -> list[str]:
        return addresses(endpoints(world, sidecar(NETWORK="n1"), NAME))

    # Each cluster has its own gateway.
    assert found() == ["10.1.0.1:80", "198.51.100.2:15443", "198.51.100.3:15443"]
    world.apply([Delete("west", ("service", GATEWAY, "istio-system"))])
    assert found() == ["10.1.0.1:80", "198.51.100.3:15443", "198.51.100.4:15443"]
    world.apply([Delete(name, ("service", GATEWAY, "istio-system")) for name in ("north", "south")])
    assert found() == ["10.1.0.1:80", "10.2.0.1:80", "10.3.0.1:80"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["198.51.100.2:15443", "198.51.100.3:15443"]),
        ({"external_ports": ((15443, 30443), (80, 30080))}, ["198.51.100.2:30443", "198.51.100.3:30443"]),
        (
            {"labels": {"topology.istio.io/network": "n2", "networking.istio.io/gatewayPort": "80"}},
            ["198.51.100.2:80", "198.51.100.3:80"],
        ),
        ({"labels": {"topology.istio.io/network": "n2", "networking.istio.io/gatewayPort": "81"}}, ["10.2.0.1:80"]),
        ({"external_addresses": ()}, ["10.2.0.1:80"]),
        ({"external_addresses": ("2001:db8::1",)}, []),
        ({"external_addresses": ("2001:db8::1", "198.51.100.9")}, ["198.51.100.9:15443"]),
    ],
)
def test_a_gateways_port_and_addresses(more: dict[str, object], expected: list[str]) -> None:
    west = gateway("west", "198.51.100.2", "198.51.100.3", network="n2", **more)
    world = clusters_of(west=[west, service("west"), Endpoints(KEY, (endpoint("10.2.0.1", "west", "n2"),))])
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == expected


def test_mesh_networks_name_clusters_and_the_services_of_their_gateways() -> None:
    networks = """
networks:
  n1: {endpoints: [{fromRegistry: east}], gateways: [{address: 203.0.113.1, port: 443}]}
  n2: {endpoints: [{fromRegistry: west}], gateways: [{registryServiceName: %s, port: 80}]}
"""
    world = clusters_of(**TWO)
    unlabelled = {"labels": {}}
    both: list[Event] = [
        Upsert(name, gateway(name, f"198.51.100.{number}", network="", **unlabelled))
        for number, name in enumerate(("east", "west"), 1)
    ]
    (settings,) = world_of(networks=networks % GATEWAY).mesh_settings()
    assert isinstance(settings, MeshNetworksValue)
    world.apply([*both, Upsert(SOURCE, settings)])
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.2:80"]
    assert addresses(endpoints(world, sidecar(NETWORK="n2"), NAME)) == ["10.2.0.1:80", "203.0.113.1:443"]


def test_a_gateway_with_a_host_name_is_at_its_addresses_once_they_are_known() -> None:
    west = gateway("west", "lb.example.com", network="n2")
    world = clusters_of(west=[west, service("west"), Endpoints(KEY, (endpoint("10.2.0.1", "west", "n2"),))])

    def found() -> list[str]:
        return addresses(endpoints(world, sidecar(NETWORK="n1"), NAME))

    assert unresolved_hosts(world.view) == {"lb.example.com"}
    assert found() == ["10.2.0.1:80"]
    world.apply([Upsert(SOURCE, ResolvedHost("lb.example.com", ("198.51.100.5", "198.51.100.6")))])
    assert found() == ["198.51.100.5:15443", "198.51.100.6:15443"]
    world.apply([Upsert(SOURCE, ResolvedHost("lb.example.com", ("198.51.100.7",)))])
    assert found() == ["198.51.100.7:15443"]
    networks = (
        "networks: {n2: {gateways: [{address: other.example.com, port: 443}, {address: 203.0.113.1, port: 443}]}}"
    )
    assert unresolved_hosts(world_of(networks=networks).view) == {"other.example.com"}


def test_a_proxy_sees_the_networks_that_it_asks_for() -> None:
    listed = (endpoint("10.1.0.1", "east", "n1"), endpoint("10.2.0.1", "west", "n2"), endpoint("10.3.0.1", "east"))
    world = clusters_of(
        east=[service("east"), Endpoints(KEY, listed)], west=[gateway("west", "198.51.100.2", network="n2")]
    )
    edge = sidecar(node_type="router", NETWORK="n1", REQUESTED_NETWORK_VIEW="n1")
    assert addresses(endpoints(world, edge, NAME)) == ["10.1.0.1:80", "10.3.0.1:80"]
    every = sidecar(NETWORK="n1", REQUESTED_NETWORK_VIEW="n1,n2")
    assert addresses(endpoints(world, every, NAME)) == ["10.1.0.1:80", "10.3.0.1:80", "198.51.100.2:15443"]


# -- datacenters of Consul


def instance(address: str, datacenter: str, network: str = "", id: str = "web-1") -> Endpoint:
    found = endpoint(address, datacenter, network)
    return attrs.evolve(found, registration=Registration("node", "web", id), locality=Locality(datacenter))


def consul_service(*gateways: NetworkGateway, host: str = HOST) -> Service:
    return attrs.evolve(service("", host=host), registry="Consul", network_gateways=gateways)


def datacenters(networks: str, *more: NetworkGateway) -> World:
    """Two datacenters whose instances serve one host; ``more``: gateways in the second."""
    world = clusters_of(
        dc1=[consul_service(), Endpoints(KEY, (instance("10.1.0.1", "dc1"),))],
        dc2=[
            consul_service(),
            Endpoints(KEY, (instance("10.2.0.1", "dc2"),)),
            consul_service(*more, host=GATEWAY),
        ],
    )
    (settings,) = world_of(networks=networks).mesh_settings()
    world.apply([Upsert(SOURCE, settings)])
    return world


TWO_NETWORKS = "networks: {n1: {endpoints: [{fromRegistry: %s}]}, n2: {endpoints: [{fromRegistry: %s}], gateways: %s}}"
FAR = NetworkGateway("198.51.100.2", 15443, "", "dc2")


@pytest.mark.parametrize("named", [("dc1", "dc2"), ("Consul/dc1", "consul/dc2"), ("dc1", "consul/dc2")])
def test_datacenters_are_networks_by_their_names(named: tuple[str, str]) -> None:
    world = datacenters(TWO_NETWORKS % (*named, "[{address: 203.0.113.1, port: 443}]"))
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "203.0.113.1:443"]
    assert addresses(endpoints(world, sidecar(NETWORK="n2"), NAME)) == ["10.1.0.1:80", "10.2.0.1:80"]


def test_a_datacenter_is_told_apart_from_a_cluster_of_the_same_name() -> None:
    world = datacenters(TWO_NETWORKS % ("dc2", "consul/dc2", "[{address: 203.0.113.1, port: 443}]"))
    kube = ServiceKey("kube.shop.svc.cluster.local", "shop")
    in_kubernetes = attrs.evolve(service("dc2", host=kube.host), registry="Kubernetes")
    listed = Endpoints(kube, (endpoint("10.9.0.1", "dc2"),))
    world.apply([Upsert(SOURCE, in_kubernetes), Upsert(SOURCE, listed)])
    client = sidecar(NETWORK="n1")
    assert addresses(endpoints(world, client, NAME)) == ["10.1.0.1:80", "203.0.113.1:443"]
    assert addresses(endpoints(world, client, f"outbound|80||{kube.host}")) == ["10.9.0.1:80"]


def test_registered_gateways_are_of_the_network_that_they_say_or_that_their_datacenter_is() -> None:
    said = FAR._replace(network="n3")
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), FAR, said._replace(address="198.51.100.3"))
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.2:15443"]
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), said)
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "10.2.0.1:80"]
    # Those of no known network are of that which names their service.
    named = f"[{{registryServiceName: {GATEWAY}, port: 15443}}]"
    world = datacenters(f"networks: {{n2: {{endpoints: [{{fromCidr: 10.2.0.0/16}}], gateways: {named}}}}}", FAR)
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.2:15443"]


def test_an_address_range_is_the_network_of_what_registries_have_and_not_of_service_entries() -> None:
    ranges = "networks: {n2: {endpoints: [{fromCidr: 10.2.0.0/16}], gateways: [{address: 198.51.100.2, port: 15443}]}}"
    world = clusters_of(c1=[service("c1"), Endpoints(KEY, (endpoint("10.1.0.1", "c1"), endpoint("10.2.0.1", "c1")))])
    (settings,) = world_of(networks=ranges).mesh_settings()
    world.apply([Upsert(SOURCE, settings)])
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.2:15443"]
    world.apply([Upsert("c1", attrs.evolve(service("c1"), declared_by_users=True))])
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "10.2.0.1:80"]


def test_a_registered_gateways_host_name_is_resolved() -> None:
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), FAR._replace(address="gw.example.com"))
    assert unresolved_hosts(world.view) == {"gw.example.com"}


def test_one_address_in_two_networks_is_two_endpoints() -> None:
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), FAR)
    world.apply([Upsert("dc2", Endpoints(KEY, (instance("10.1.0.1", "dc2"),)))])
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.2:15443"]


def test_a_proxy_is_of_the_network_and_cluster_of_its_registration() -> None:
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), FAR)
    update(world, rule(f"{OUTLIERS}, loadBalancer: {{localityLbSetting: {{failoverPriority: [{CLUSTER_LABEL}]}}}}"))
    for ip, first, others in (
        ("10.1.0.1", "10.1.0.1:80", ["198.51.100.2:15443"]),
        ("10.2.0.1", "10.2.0.1:80", ["10.1.0.1:80"]),
    ):
        found = endpoints(world, sidecar(ip=ip, namespace="shop"), NAME)
        levels = {a: g.priority for g in found.endpoints for a in addresses(type(found)(endpoints=[g]))}
        assert levels == {first: 0, **dict.fromkeys(others, 1)}


def test_networks_of_datacenters_count_for_failover() -> None:
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"), FAR)
    update(world, rule(f"{OUTLIERS}, loadBalancer: {{localityLbSetting: {{failoverPriority: [{NETWORK_LABEL}]}}}}"))
    found = endpoints(world, sidecar(NETWORK="n1"), NAME)
    levels = {a: g.priority for g in found.endpoints for a in addresses(type(found)(endpoints=[g]))}
    assert levels == {"10.1.0.1:80": 0, "198.51.100.2:15443": 1}


def test_gateways_of_the_gateway_api_are_gateways_of_a_network() -> None:
    gateway_object = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: far, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec:
  gatewayClassName: istio-remote
  addresses: [{type: IPAddress, value: 198.51.100.7}, {type: Hostname, value: far.example.com}, {value: 198.51.100.8}]
  listeners:
  - {name: between, port: 15443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: other, port: 443, protocol: TLS, tls: {mode: Passthrough}}
"""
    world = datacenters(TWO_NETWORKS % ("dc1", "dc2", "[]"))
    update(world, gateway_object)
    assert unresolved_hosts(world.view) == {"far.example.com"}
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "198.51.100.7:15443"]
    update(world, gateway_object.replace("topology.istio.io/network: n2", "app: far"))
    assert addresses(endpoints(world, sidecar(NETWORK="n1"), NAME)) == ["10.1.0.1:80", "10.2.0.1:80"]
