"""The name table (NDS): hosts with their addresses, as Istio's agents read it."""

from __future__ import annotations

from typing import Any

import attrs
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from mesh_pilot.agent.relay import messages
from mesh_pilot.agent.relay.subscriptions import NameRow, read_name_table
from mesh_pilot.base.protowire import field
from mesh_pilot.envoy.endpoints.name_table import name_table
from mesh_pilot.model.events import Delete, Endpoints, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import Endpoint, Health, Port, Protocol, Resolution, Service
from mesh_pilot.world import World
from mesh_pilot.world.auto_addresses import to_ipv6
from tests.golden.adsdump import NDS, POOL, add_istio_protos
from tests.support.upstreams import target
from tests.support.worlds import SOURCE, sidecar, world_of

add_istio_protos()
NameTable = GetMessageClass(POOL.FindMessageTypeByName(NDS.rpartition("/")[2]))

ENTRIES = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: store, namespace: shop}
spec:
  hosts: [a.test, b.test]
  addresses: [10.9.0.1, 10.8.0.0/16]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: hidden, namespace: shop}
spec:
  hosts: [c.test]
  addresses: [10.9.0.2]
  exportTo: ["."]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: addressless, namespace: shop}
spec: {hosts: [d.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}
"""


def table(world: World, proxy: Proxy) -> dict[str, Any]:
    at = target(world, proxy)
    message = NameTable.FromString(name_table(world.view, at.scope, at.locality.network).body)
    found: dict[str, Any] = MessageToDict(message).get("table", {})
    return found


def test_visible_hosts_have_their_virtual_addresses() -> None:
    row = {"ips": ["10.9.0.1"], "registry": "External"}
    world = world_of(ENTRIES)
    assert table(world, sidecar()) == {"a.test": row, "b.test": row}
    assert set(table(world, sidecar(namespace="shop"))) == {"a.test", "b.test", "c.test"}
    world.apply([Delete(SOURCE, ("config", "ServiceEntry", "shop", "store"))])
    assert table(world, sidecar()) == {}


def test_automatic_addresses_are_for_proxies_that_capture_dns() -> None:
    capturing = sidecar(DNS_CAPTURE="true", DNS_AUTO_ALLOCATE="true")
    (address,) = table(world_of(ENTRIES), capturing)["d.test"]["ips"]
    assert address.startswith("241.")
    six = sidecar("2001:db8::1", DNS_CAPTURE="true", DNS_AUTO_ALLOCATE="true")
    assert table(world_of(ENTRIES), six)["d.test"]["ips"] == [to_ipv6(address)]
    both = sidecar(DNS_CAPTURE="true", DNS_AUTO_ALLOCATE="true", INSTANCE_IPS="10.1.1.1,2001:db8::1")
    assert table(world_of(ENTRIES), both)["d.test"]["ips"] == [address, to_ipv6(address)]
    uncaptured = sidecar(DNS_CAPTURE="true", DNS_AUTO_ALLOCATE="true", INTERCEPTION_MODE="NONE")
    assert "d.test" not in table(world_of(ENTRIES), uncaptured)


async def test_our_agents_read_the_ports_of_a_host_besides() -> None:
    at = target(world := world_of(ENTRIES), sidecar())
    rows = await read_name_table(name_table(world.view, at.scope, at.locality.network).body)
    assert rows["a.test"] == NameRow(("10.9.0.1",), "External", ports=((80, "http"),))


def test_services_of_kubernetes_have_short_names_and_headless_ones_their_endpoints_of_any_port() -> None:
    host = "db.shop.svc.cluster.local"
    service = Service(
        host,
        "shop",
        (Port(5432, "tcp", Protocol.TCP), Port(9090, "metrics", Protocol.HTTP)),
        resolution=Resolution.PASSTHROUGH,
        headless=True,
        namespaced_name=True,
        registry="Kubernetes",
        declared_by_users=False,
    )
    listed = (
        Endpoint("10.0.0.1", 5432, "tcp"),
        Endpoint("10.0.0.1", 9090, "metrics"),
        Endpoint("10.0.0.2", 9090, "metrics"),
        Endpoint("10.0.0.3", 5432, "tcp", network="far"),
        Endpoint("db-0.test", 5432, "tcp"),
    )
    world = world_of()
    world.apply([Upsert(SOURCE, service), Upsert(SOURCE, Endpoints(service.key, listed))])
    assert table(world, sidecar(NETWORK="near")) == {
        host: {"ips": ["10.0.0.1", "10.0.0.2"], "registry": "Kubernetes", "shortname": "db", "namespace": "shop"}
    }
    assert table(world, sidecar())[host]["ips"] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]  # its network is not known


def test_pods_of_a_headless_service_have_their_own_names() -> None:
    world = world_of("")
    ring = Service("ring.shop.svc.cluster.local", "shop", (Port(80, "http", Protocol.HTTP),), headless=True)
    ring = attrs.evolve(ring, resolution=Resolution.PASSTHROUGH, namespaced_name=True, registry="Kubernetes")
    members = tuple(Endpoint(f"10.1.0.{n}", 80, "http", host_name=f"ring-{n}.ring") for n in (1, 2))
    world.apply(
        [Upsert(SOURCE, ring), Upsert(SOURCE, Endpoints(ring.key, (*members, Endpoint("10.1.0.3", 80, "http"))))]
    )
    found = table(world, sidecar())
    assert found["ring.shop.svc.cluster.local"]["ips"] == ["10.1.0.1", "10.1.0.2", "10.1.0.3"]
    assert found["ring-1.ring.shop.svc.cluster.local"] == {
        "ips": ["10.1.0.1"],
        "registry": "Kubernetes",
        "shortname": "ring-1.ring",
        "namespace": "shop",
    }
    assert len(found) == 3


def test_a_pod_of_the_own_cluster_wins_over_one_of_the_same_name_elsewhere_and_unready_ones_have_no_name() -> None:
    world = world_of("")
    ring = Service("ring.shop.svc.cluster.local", "shop", (Port(80, "http", Protocol.HTTP),), headless=True)
    ring = attrs.evolve(ring, resolution=Resolution.PASSTHROUGH, namespaced_name=True, registry="Kubernetes")
    for number, cluster in enumerate(("east", "west")):
        pods = [
            ("ring-0.ring", 1, Health.HEALTHY),
            (f"{cluster}.ring", 2, Health.HEALTHY),
            ("bad.ring", 3, Health.UNHEALTHY),
        ]
        members = (
            Endpoint(f"10.{number}.0.{n}", 80, "http", host_name=name, cluster_id=cluster, health=health)
            for name, n, health in pods
        )
        source = f"kubernetes/{cluster}"
        world.apply(
            [
                Upsert(source, attrs.evolve(ring, cluster_id=cluster)),
                Upsert(source, Endpoints(ring.key, tuple(members))),
            ]
        )
    for number, cluster in enumerate(("east", "west")):
        found = {name.partition(".")[0]: row["ips"] for name, row in table(world, sidecar(CLUSTER_ID=cluster)).items()}
        assert found.pop("ring-0") == [f"10.{number}.0.1"]
        everybody = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2"]
        assert found == {"ring": everybody, "east": ["10.0.0.2"], "west": ["10.1.0.2"]}


def test_a_table_is_read_although_it_begins_with_no_name() -> None:
    at = target(world := world_of(ENTRIES), sidecar())
    body = field(2, name_table(world.view, at.scope, at.locality.network).body)
    assert messages._sotw_answer(body).body == body
