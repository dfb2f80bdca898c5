"""Several versions of one service: their ports are joined by number, whatever they are called."""

from __future__ import annotations

import pytest

from mesh_pilot.model.events import Delete, Endpoints, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Resolution, Service, ServiceKey
from mesh_pilot.world import World
from tests.support.manifests import manifest
from tests.support.upstreams import addresses, endpoints, inbound, outbound
from tests.support.worlds import SOURCE, sidecar, update, world_of

KEY = ServiceKey("two.test", "shop")


def entry(name: str, *ports: str, address: str = "", month: int = 1, **more: object) -> str:
    """A ServiceEntry for two.test; a port is ``number name target``."""
    split = [port.split() for port in ports]
    spec = {
        "hosts": ["two.test"],
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "ports": [{"number": int(n), "name": p, "protocol": "HTTP", "targetPort": int(t)} for n, p, t in split],
        **({"endpoints": [{"address": address}]} if address else {}),
        **more,
    }
    return manifest("ServiceEntry", name, spec).replace(
        "namespace: shop", f'namespace: shop, creationTimestamp: "2024-{month:02}-01T00:00:00Z"', 1
    )


def reached(world: World, *ports: int) -> dict[int, list[str]]:
    """By port, the endpoints of a client's cluster."""
    return {
        port: addresses(endpoints(world, sidecar(namespace="shop"), f"outbound|{port}||two.test")) for port in ports
    }


A = entry("a", "8080 http 9001", address="10.0.0.3")
B = entry("b", "9080 http 9002", address="10.0.0.4", month=2)
BOTH = {8080: ["10.0.0.3:9001"], 9080: ["10.0.0.4:9002"]}


@pytest.mark.parametrize("texts", [(A, B), (B, A)], ids=["older-first", "younger-first"])
def test_ports_with_one_name_are_two_ports_in_whatever_order_they_come(texts: tuple[str, ...]) -> None:
    assert reached(world_of("".join(texts)), *BOTH) == BOTH
    world = world_of()
    for text in texts:
        update(world, text)
    assert reached(world, *BOTH) == BOTH
    proxy = sidecar(namespace="shop")
    assert {name for name in outbound(world, proxy) if name.endswith("two.test")} == {
        "outbound|8080||two.test",
        "outbound|9080||two.test",
    }


def test_what_stays_when_one_of_them_goes_has_its_own_names_again() -> None:
    world = world_of(A + B)
    assert [port.name for port in _service(world).ports] == ["http", "http-9080"]
    world.apply([Delete(SOURCE, ("config", "ServiceEntry", "shop", "a"))])
    assert [port.name for port in _service(world).ports] == ["http"]
    assert reached(world, 9080) == {9080: ["10.0.0.4:9002"]}


def test_names_that_are_exchanged_do_not_exchange_endpoints() -> None:
    one = entry("a", "8080 http 9001", "9090 admin 9091", address="10.0.0.3")
    two = entry("b", "8080 admin 9003", "9090 http 9093", "7070 http-7070 9007", address="10.0.0.4", month=2)
    assert reached(world_of(one + two), 7070, 8080, 9090) == {
        7070: ["10.0.0.4:9007"],
        8080: ["10.0.0.3:9001", "10.0.0.4:9003"],
        9090: ["10.0.0.3:9091", "10.0.0.4:9093"],
    }


def test_three_ports_of_one_name_have_names_that_are_free() -> None:
    more = entry("c", "9080 http-9080 1", "7070 http 2", address="10.0.0.5", month=3)
    world = world_of(A + B + more + entry("d", "6060 http-9080 3", address="10.0.0.5", month=4))
    names = [port.name for port in _service(world).ports]
    assert len(set(names)) == len(names) == 4 and names[:2] == ["http", "http-9080"]
    assert reached(world, 9080, 7070, 6060) == {
        9080: ["10.0.0.4:9002", "10.0.0.5:1"],
        7070: ["10.0.0.5:2"],
        6060: ["10.0.0.5:3"],
    }


def test_the_port_of_a_younger_one_with_another_resolution_gives_its_endpoints_to_no_other_port() -> None:
    by_dns = B.replace("STATIC", "DNS")
    assert reached(world_of(A + by_dns), 8080) == {8080: ["10.0.0.3:9001"]}


def test_subsets_and_workloads_that_are_selected_follow_the_number() -> None:
    selecting = entry("b", "9080 http 9002", month=2, workloadSelector={"labels": {"app": "b"}})
    workload = manifest("WorkloadEntry", "w", {"address": "10.0.0.6", "ports": {"http": 9006}, "labels": {"app": "b"}})
    rule = manifest("DestinationRule", "two", {"host": "two.test", "subsets": [{"name": "b", "labels": {"app": "b"}}]})
    world = world_of(A + selecting + workload + rule)
    proxy = sidecar(namespace="shop")
    assert addresses(endpoints(world, proxy, "outbound|9080|b|two.test")) == ["10.0.0.6:9006"]
    assert addresses(endpoints(world, proxy, "outbound|8080|b|two.test")) == []
    assert set(inbound(world, sidecar("10.0.0.6", namespace="shop"))) >= {"inbound|9006||"}


@pytest.mark.parametrize("cluster", ["", "east"])
def test_a_service_of_a_registry_and_a_service_entry_are_joined_by_number(cluster: str) -> None:
    world = world_of(B)
    service = Service(
        "two.test", "shop", (Port(8080, "http", Protocol.HTTP),), declared_by_users=False, cluster_id=cluster
    )
    given = Endpoints(KEY, (Endpoint("10.0.0.3", 9001, "http", cluster_id=cluster),))
    world.apply([Upsert(SOURCE, service), Upsert(SOURCE, given)])
    assert reached(world, *BOTH) == BOTH


def test_services_of_two_clusters_are_joined_by_number() -> None:
    world = world_of()
    world.expect("second")
    for source, cluster, number, address in (("test", "east", 8080, "10.0.0.3"), ("second", "west", 9080, "10.0.0.4")):
        service = Service("two.test", "shop", (Port(number, "http", Protocol.HTTP),), cluster_id=cluster)
        given = Endpoints(KEY, (Endpoint(address, number, "http", cluster_id=cluster),))
        world.apply([Upsert(source, service), Upsert(source, given)])
    assert reached(world, 8080, 9080) == {8080: ["10.0.0.3:8080"], 9080: ["10.0.0.4:9080"]}


def _service(world: World) -> Service:
    found = world.view.service(KEY)
    assert found is not None and found.resolution is Resolution.CLIENT_SIDE
    return found
