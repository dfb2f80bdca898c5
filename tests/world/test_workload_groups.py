"""WorkloadGroups: WorkloadEntries that belong to one inherit its template."""

from __future__ import annotations

from itertools import permutations

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Upsert, item_key
from mesh_pilot.model.service import Endpoint, Locality, ServiceKey
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload, items_of
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import AUTO_REGISTRATION
from tests.support.worlds import SOURCE, configs, update, world_of

ENTRY = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: admin, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
"""
GROUP = """
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web, tier: front}}
  template: {ports: {http: 8080, admin: 8081}, serviceAccount: web, network: vm, locality: eu/a, weight: 3}
"""
WORKLOAD = """
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-1, namespace: shop, annotations: {istio.io/autoRegistrationGroup: web}}
spec: {address: 10.0.0.1, ports: {http: 9090}, labels: {tier: back}, network: other}
"""
MEMBER = RegisteredWorkload(
    key=ConfigKey("WorkloadEntry", "shop", "web-10.0.0.1"),
    group="web",
    identity="spiffe://cluster.local/ns/shop/sa/web",
    address="10.0.0.1",
)


def web(world: World) -> tuple[Endpoint, ...]:
    return world.endpoints.peek(ServiceKey("web.example", "shop"))


def test_an_entry_inherits_what_it_does_not_say_itself_whatever_comes_first() -> None:
    for texts in permutations((ENTRY, GROUP, WORKLOAD)):
        world = world_of()
        for text in texts:
            update(world, text)
        http, admin = web(world)
        assert (http.port, admin.port) == (9090, 8081)
        assert http.labels["app"] == "web" and http.labels["tier"] == "back"
        assert (http.network, http.locality, http.weight) == ("other", Locality("eu", "a"), 3)
        assert http.service_account == "spiffe://cluster.local/ns/shop/sa/web" and http.tls_mode == "istio"


def test_a_change_of_the_group_reaches_its_entries_and_its_end_leaves_them_with_their_own() -> None:
    world = world_of(ENTRY + GROUP + WORKLOAD)
    update(world, GROUP.replace("admin: 8081", "admin: 8082"))
    assert web(world)[1].port == 8082
    world.apply([Delete(SOURCE, item_key(configs(GROUP)[0]))])
    assert web(world) == ()  # without the group it has no label to be selected by


def test_an_entry_that_leaves_the_group_or_is_of_another_namespace_inherits_nothing() -> None:
    selected = WORKLOAD.replace("tier: back", "app: web")
    world = world_of(ENTRY + GROUP + selected)
    update(world, selected.replace("Group: web", "Group: other"))
    assert [e.port for e in web(world)] == [9090, 81]
    update(world, GROUP.replace("name: web, namespace: shop", "name: other, namespace: lab"))
    assert web(world)[0].service_account == ""
    world.apply([Delete(SOURCE, item_key(configs(selected)[0]))])
    assert web(world) == ()


def test_an_auto_registered_entry_of_another_service_account_than_its_group_has_no_effect() -> None:
    """The group may be given to another account while workloads of the first one are connected."""
    world = world_of(ENTRY + GROUP)
    for item in items_of(Record(workload=MEMBER, controller="r1")):
        world.apply([Upsert(AUTO_REGISTRATION, item)])
    assert web(world)
    update(world, GROUP.replace("serviceAccount: web", "serviceAccount: other"))
    assert not web(world) and not list(world.workload_entries("shop", "10.0.0.1"))
    update(world, GROUP.replace("serviceAccount: web, ", ""))
    assert web(world)
