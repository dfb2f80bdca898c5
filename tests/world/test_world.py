from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Endpoints,
    MeshConfigValue,
    Rejected,
    Replace,
    SourceAdded,
    SourceRemoved,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.model.hosts import host_covers, host_matches
from mesh_pilot.model.service import Endpoint, Port, Protocol, Resolution, Service, ServiceKey
from mesh_pilot.world import World
from mesh_pilot.world.names import full_gateway, full_host
from mesh_pilot.world.service_entries import endpoints_of
from tests.support.worlds import SOURCE, configs, update, world_of

WEB = ServiceKey("web.example.com", "shop")

ENTRY = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  hosts: [web.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  endpoints:
  - {address: 10.0.0.1, serviceAccount: web, locality: eu/a, labels: {version: v1}}
"""

SELECTING = ENTRY.replace(
    "  endpoints:\n  - {address: 10.0.0.1, serviceAccount: web, locality: eu/a, labels: {version: v1}}\n",
    "  workloadSelector: {labels: {app: web}}\n",
)


def workload(name: str, address: str, app: str = "web", namespace: str = "shop") -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{address: {address}, labels: {{app: {app}}}, ports: {{http: 9090}}}}
"""


def virtual_service(
    name: str, host: str, *, gateways: str = "[mesh]", created: str = "2024-03-01", prefix: str = "/"
) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop, creationTimestamp: "{created}T00:00:00Z"}}
spec:
  hosts: [{host}]
  gateways: {gateways}
  http: [{{match: [{{uri: {{prefix: "{prefix}"}}}}], route: [{{destination: {{host: {host}}}}}]}}]
"""


def addresses(world: World, key: ServiceKey = WEB) -> list[str]:
    return [e.address for e in world.endpoints.peek(key)]


def test_a_service_entry_becomes_a_service_and_its_endpoints() -> None:
    world = world_of(ENTRY)
    service = world.services.peek(WEB)
    assert service is not None
    assert service.ports == (Port(80, "http", Protocol.HTTP, 8080),)
    assert service.resolution is Resolution.CLIENT_SIDE
    (endpoint,) = world.endpoints.peek(WEB)
    assert (endpoint.address, endpoint.port, endpoint.service_port) == ("10.0.0.1", 8080, "http")
    assert endpoint.service_account == "spiffe://cluster.local/ns/shop/sa/web"
    assert endpoint.tls_mode == "istio"
    assert endpoint.labels == {
        "version": "v1",
        "topology.kubernetes.io/region": "eu",
        "topology.kubernetes.io/zone": "a",
    }
    assert [key for key, _ in world.endpoints_at.peek("10.0.0.1")] == [WEB]


def test_a_removed_service_entry_leaves_nothing_behind() -> None:
    world = world_of(ENTRY)
    world.apply([Delete(SOURCE, ("config", "ServiceEntry", "shop", "web"))])
    assert world.services.peek(WEB) is None
    assert not len(world.endpoints) and not len(world.endpoints_at) and not len(world.services_named)
    assert not len(world.services_exported)


def test_a_selector_follows_workloads_as_they_come_change_and_go() -> None:
    world = world_of(SELECTING + "---" + workload("w1", "10.0.0.1"))
    assert addresses(world) == ["10.0.0.1"]
    update(world, workload("w2", "10.0.0.2"))
    assert addresses(world) == ["10.0.0.1", "10.0.0.2"]
    assert {e.port for e in world.endpoints.peek(WEB)} == {9090}
    update(world, workload("w1", "10.0.0.1", app="other"))
    assert addresses(world) == ["10.0.0.2"]
    update(world, workload("w3", "10.0.0.3", namespace="elsewhere"))
    assert addresses(world) == ["10.0.0.2"]
    world.apply([Delete(SOURCE, ("config", "WorkloadEntry", "shop", "w2"))])
    assert addresses(world) == []


def test_a_dns_entry_without_endpoints_resolves_its_own_host() -> None:
    world = world_of(SELECTING.replace("STATIC", "DNS").replace("  workloadSelector: {labels: {app: web}}\n", ""))
    (endpoint,) = world.endpoints.peek(WEB)
    assert (endpoint.address, endpoint.port, endpoint.tls_mode) == ("web.example.com", 8080, "")


def test_a_new_trust_domain_gives_endpoints_new_identities() -> None:
    world = world_of(ENTRY)
    mesh = world.mesh.peek(())
    changed = type(mesh).parse(bytes(mesh))
    changed.trust_domain = "example.org"
    world.apply([Upsert(SOURCE, MeshConfigValue(changed))])
    assert world.endpoints.peek(WEB)[0].service_account == "spiffe://example.org/ns/shop/sa/web"


def test_two_registries_of_one_host_add_up() -> None:
    world = World()
    world.expect("consul")
    world.expect("kubernetes")
    http, grpc = Port(80, "http", Protocol.HTTP), Port(90, "grpc", Protocol.GRPC)
    world.apply(
        [
            Upsert("kubernetes", Service(*WEB, ports=(grpc, Port(80, "other", Protocol.TCP)), registry="Kubernetes")),
            Upsert("consul", Service(*WEB, ports=(http,), registry="Consul")),
            Upsert("kubernetes", Endpoints(WEB, (Endpoint("10.0.0.2", 90, "grpc"),))),
            Upsert("consul", Endpoints(WEB, (Endpoint("10.0.0.1", 80, "http"),))),
        ]
    )
    service = world.services.peek(WEB)
    assert service is not None
    assert service.ports == (http, grpc)
    assert addresses(world) == ["10.0.0.1", "10.0.0.2"]
    world.apply([Replace("consul", (), ())])
    assert addresses(world) == ["10.0.0.2"]


def test_the_oldest_service_entry_of_a_host_declares_it_and_all_endpoints_serve_it() -> None:
    younger = ENTRY.replace("name: web, ", "name: younger, ").replace("2024-03-01", "2024-03-02")
    younger = younger.replace("10.0.0.1", "10.0.0.2").replace("protocol: HTTP", "protocol: TCP")
    world = world_of(younger + "---" + ENTRY)
    service = world.services.peek(WEB)
    assert service is not None
    assert [(p.number, p.protocol) for p in service.ports] == [(80, Protocol.HTTP)]
    assert addresses(world) == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(("resolution", "ports"), [("STATIC", [80, 443]), ("DNS", [80])])
def test_a_younger_service_entry_of_the_same_kind_adds_its_ports(resolution: str, ports: list[int]) -> None:
    younger = ENTRY.replace("name: web, ", "name: younger, ").replace("2024-03-01", "2024-03-02")
    younger = younger.replace("number: 80, name: http, protocol: HTTP", "number: 443, name: tls, protocol: TLS")
    world = world_of(younger.replace("STATIC", resolution) + "---" + ENTRY)
    service = world.services.peek(WEB)
    assert service is not None
    assert [p.number for p in service.ports] == ports


@pytest.mark.parametrize(
    ("export", "lists"),
    [
        ("['*']", {"*"}),
        ("['.']", {"shop"}),
        ("['.', other]", {"shop", "other"}),
        ("['~']", set()),
    ],
)
def test_a_service_is_listed_where_it_is_exported_to(export: str, lists: set[str]) -> None:
    world = world_of(ENTRY + f"  exportTo: {export}\n")
    assert {n for (n, _), _ in world.services_exported.items()} == lists


def test_the_default_export_comes_from_the_mesh_and_follows_it() -> None:
    world = world_of(ENTRY + "---" + virtual_service("v", "web"), mesh="defaultServiceExportTo: ['.']")
    assert {n for (n, _), _ in world.services_exported.items()} == {"shop"}
    mesh = type(world.mesh.peek(())).parse(bytes(world.mesh.peek(())))
    mesh.default_service_export_to = ["*"]
    mesh.default_virtual_service_export_to = ["."]
    world.apply([Upsert(SOURCE, MeshConfigValue(mesh))])
    assert {n for (n, _), _ in world.services_exported.items()} == {"*"}
    assert world.virtual_services.peek("mesh")[0].export_to == {"shop"}


def test_virtual_services_stand_under_their_gateways_oldest_first() -> None:
    world = world_of(
        virtual_service("young", "a", created="2024-03-02")
        + "---"
        + virtual_service("old", "b", gateways="[mesh, edge, other/edge]", created="2024-03-01")
    )
    assert [h.key.name for h in world.virtual_services.peek("mesh")] == ["old", "young"]
    assert [h.hosts for h in world.virtual_services.peek("shop/edge")] == [("b.shop.svc.cluster.local",)]
    assert [h.key.name for h in world.virtual_services.peek("other/edge")] == ["old"]
    world.apply([Delete(SOURCE, ("config", "VirtualService", "shop", "old"))])
    assert world.virtual_services.peek("shop/edge") == ()
    assert [h.key.name for h in world.virtual_services.peek("mesh")] == ["young"]


def test_an_edit_of_routes_does_not_touch_the_lists_of_virtual_services() -> None:
    world = world_of(virtual_service("v", "a"))
    before = world.virtual_services.peek("mesh")
    update(world, virtual_service("v", "a", prefix="/other"))
    assert world.virtual_services.peek("mesh") is before
    config = world.config.peek(ConfigKey("VirtualService", "shop", "v"))
    assert config is not None and config.spec.http[0].match[0].uri.prefix == "/other"


def rule(name: str, host: str) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: {name}, namespace: shop}}
spec: {{host: "{host}"}}
"""


def test_destination_rules_stand_under_their_full_host() -> None:
    world = world_of("---".join([rule("a", "web"), rule("b", "*.example.com"), rule("c", "*.shop.example.com")]))
    assert [r.name for r in world.destination_rules.peek("web.shop.svc.cluster.local")] == ["a"]
    assert world.wildcard_rule_hosts.peek(()) == ("*.shop.example.com", "*.example.com")
    update(world, rule("b", "other"))
    assert world.wildcard_rule_hosts.peek(()) == ("*.shop.example.com",)
    assert [r.name for r in world.destination_rules.peek("other.shop.svc.cluster.local")] == ["b"]


def test_the_labels_that_configs_select_by_are_known() -> None:
    text = virtual_service("v", "a").replace("match: [{", "match: [{sourceLabels: {tier: front}, ")
    world = world_of(text)
    assert world.selected_labels.peek(()) == {"tier"}
    update(world, virtual_service("v", "a"))
    assert world.selected_labels.peek(()) == frozenset()
    target = "{group: gateway.networking.k8s.io, kind: Gateway, name: front}"
    kind, metadata = "apiVersion: telemetry.istio.io/v1\nkind: Telemetry", "metadata: {name: t, namespace: shop}"
    update(world, f"{kind}\n{metadata}\nspec: {{targetRefs: [{target}]}}")
    assert world.selected_labels.peek(()) == {"gateway.networking.k8s.io/gateway-name"}


def test_the_source_named_first_wins_and_the_other_takes_over() -> None:
    world = World()
    world.expect("first")
    world.expect("second")
    (ours,) = configs(virtual_service("v", "ours"))
    (theirs,) = configs(virtual_service("v", "theirs"))
    world.apply([Upsert("second", theirs), Upsert("first", ours)])
    assert world.config.peek(ours.key) == ours
    world.apply([Delete("first", item_key(ours))])
    assert world.config.peek(ours.key) == theirs


def test_replacing_a_collection_touches_only_what_differs() -> None:
    world = world_of(virtual_service("a", "a") + "---" + virtual_service("b", "b") + "---" + rule("r", "a"))
    (a,) = configs(virtual_service("a", "a"))
    (c,) = configs(virtual_service("c", "c"))
    revision = world.apply([Replace(SOURCE, ("config", "VirtualService"), (a, c))])
    assert revision.changed == {("config", "VirtualService", "shop", n) for n in "bc"}
    assert world.statistics().configs == {"DestinationRule": 1, "VirtualService": 2}


def test_a_rejection_stands_until_the_object_is_good_gone_or_its_place_is() -> None:
    world = World()
    world.expect(SOURCE)
    (good,) = configs(virtual_service("v", "a"))
    bad = Rejected(SOURCE, Origin(SOURCE, "v.yaml", 3), (Problem("spec.hosts", "is empty"),), item_key(good))
    for over in (Upsert(SOURCE, good), Delete(SOURCE, item_key(good)), Accepted(SOURCE, "v.yaml")):
        world.apply([bad])
        assert [str(r.origin) for r in world.rejections()] == ["v.yaml:3"]
        world.apply([over])
        assert world.rejections() == ()


def test_replacing_a_collection_ends_the_rejections_in_it_and_no_others() -> None:
    world = World()
    (good,) = configs(virtual_service("v", "a"))
    problem = (Problem("spec.hosts", "is empty"),)
    of_object = Rejected(SOURCE, Origin(SOURCE, "v.yaml", 3), problem, item_key(good))
    of_file = Rejected(SOURCE, Origin(SOURCE, "v.yaml"), problem)
    of_other = Rejected("consul", Origin("consul", "v.yaml"), problem)
    world.apply([of_object, of_file, of_other])
    world.apply([Replace(SOURCE, ("config", "VirtualService"), ())])
    assert world.rejections() == (of_other, of_file)
    world.apply([Replace(SOURCE, (), ())])
    assert world.rejections() == (of_other,)


def test_it_knows_which_sources_have_not_synced() -> None:
    world = World()
    world.expect("files")
    world.expect("consul")
    world.apply([Synced("consul")])
    assert world.unsynced() == ("files",)


def test_an_object_that_we_fail_at_costs_only_itself() -> None:
    world = world_of(ENTRY)
    (broken,) = configs(virtual_service("broken", "a"))
    broken.spec.hosts = None  # what no source sends
    (good,) = configs(virtual_service("good", "a"))
    world.apply([Upsert(SOURCE, broken), Upsert(SOURCE, good)])
    assert [h.key.name for h in world.virtual_services.peek("mesh")] == ["good"]
    assert world.statistics().failures == 1
    ((_, failure),) = world.failed.standing()
    assert (failure.kind, failure.name) == ("object", "VirtualService/shop/broken")
    assert failure.place.startswith("configs.py, line ")
    world.apply([Upsert(SOURCE, broken)])
    assert len(list(world.failed.standing())) == 1, "the same object, read again, is still not in force"
    world.apply([Delete(SOURCE, item_key(broken))])
    assert list(world.failed.standing()) == []


def test_a_late_source_ranks_where_it_says_and_takes_all_it_had_with_it() -> None:
    def service(port: int) -> Service:
        return Service("web", "shop", (Port(80, f"p{port}", Protocol.HTTP),))

    world = World()
    for name in ("first", "last"):
        world.expect(name)
    world.apply([Upsert("last", service(3)), Synced("first"), Synced("last")])
    world.apply([SourceAdded("b", ("first",)), Upsert("b", service(2))])
    assert not world.unsynced()
    world.apply([SourceAdded("a", ("first",)), Rejected("a", Origin("a", "x"), (Problem("spec", "is bad"),))])
    assert world.sources() == ("first", "a", "b", "last")

    def name() -> str:
        found = world.services.peek(ServiceKey("web", "shop"))
        return found.ports[0].name if found is not None else ""

    assert name() == "p2"
    world.apply([SourceRemoved("b"), SourceRemoved("a")])
    assert (name(), world.sources(), world.rejections()) == ("p3", ("first", "last"), ())


def test_endpoints_that_we_fail_at_do_not_hold_up_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_at_web(entry: Config, *more: Any) -> Mapping[ServiceKey, tuple[Endpoint, ...]]:
        if entry.name == "web":
            raise KeyError("web")
        return endpoints_of(entry, *more)

    monkeypatch.setattr("mesh_pilot.world.entries.endpoints_of", fail_at_web)
    world = world_of(ENTRY + "---" + ENTRY.replace("web", "other"))
    assert addresses(world, ServiceKey("other.example.com", "shop")) == ["10.0.0.1"]
    ((_, failure),) = world.failed.standing()
    assert failure.name == "ServiceEntry/shop/web"
    world.apply([Delete(SOURCE, item_key(configs(ENTRY)[0]))])
    assert list(world.failed.standing()) == []


def test_an_event_that_changes_nothing_makes_no_revision() -> None:
    world = world_of(ENTRY)
    revision = world.revision
    update(world, ENTRY)
    assert world.revision == revision


def test_names_are_made_whole_by_namespace() -> None:
    assert full_host("web", "shop", "cluster.local") == "web.shop.svc.cluster.local"
    assert full_host("web.example.com", "shop", "cluster.local") == "web.example.com"
    assert full_host("*", "shop", "cluster.local") == "*"
    for written, meant in {
        "mesh": "mesh",
        "edge": "shop/edge",
        "other/edge": "other/edge",
        "./edge": "shop/edge",
    }.items():
        assert full_gateway(written, "shop", "cluster.local") == meant


@pytest.mark.parametrize(
    ("pattern", "host", "matches", "covers"),
    [
        ("a.com", "a.com", True, True),
        ("*.com", "a.com", True, True),
        ("a.com", "*.com", True, False),
        ("*", "a.com", True, True),
        ("*.a.com", "*.com", True, False),
        ("*.com", "*.a.com", True, True),
        ("*.a.com", "b.com", False, False),
        ("a.com", "b.com", False, False),
        ("*.a.com", "*.b.com", False, False),
    ],
)
def test_hosts_match_and_cover_as_in_istio(pattern: str, host: str, matches: bool, covers: bool) -> None:
    assert host_matches(pattern, host) is matches
    assert host_matches(host, pattern) is matches
    assert host_covers(pattern, host) is covers


@pytest.mark.parametrize(
    ("host", "whole"),
    [
        ("web", "web.service.consul"),
        ("web.service", "web.service.consul"),
        ("web.service.consul", "web.service.consul"),
        ("web.service.dc2.consul", "web.service.dc2.consul"),
        ("*.service", "*.service.consul"),
        ("*.service.consul", "*.service.consul"),
        ("example.com", "example.com"),
        ("*", "*"),
        ("", ""),
    ],
)
def test_short_names_may_be_of_one_registry(host: str, whole: str) -> None:
    assert World(short_names_in="service.consul").full_host(host, "shop") == whole


def test_without_a_registry_short_names_are_of_their_namespace() -> None:
    assert World().full_host("web", "shop") == "web.shop.svc.cluster.local"
    assert World().full_host("web.service", "shop") == "web.service"
    assert World().registry_host("web") == "web"


def test_accounts_of_a_registry_follow_the_trust_domain_of_the_mesh() -> None:
    world = World()
    bare, whole = Endpoint("10.0.0.1", 80, "http", service_account="ns/shop/sa/web"), "spiffe://other/ns/x/sa/y"
    endpoints = Endpoints(WEB, (bare, Endpoint("10.0.0.2", 80, "http", service_account=whole)))
    world.apply([Upsert("consul", endpoints)])
    assert [e.service_account for e in world.view.endpoints(WEB)] == ["spiffe://cluster.local/ns/shop/sa/web", whole]
    mesh = default_mesh("istio-system")
    mesh.trust_domain = "example.com"
    world.apply([Upsert("mesh", MeshConfigValue(mesh))])
    assert [e.service_account for e in world.view.endpoints(WEB)] == ["spiffe://example.com/ns/shop/sa/web", whole]


@pytest.mark.parametrize("kind", ["VirtualService", "DestinationRule", "ServiceEntry", "WorkloadEntry"])
def test_kinds_with_indexes_of_their_own_are_not_listed_as_if_there_were_none(kind: str) -> None:
    view = World().view
    for read in (lambda: view.all_configs(kind), lambda: view.configs(kind, "shop")):
        with pytest.raises(ValueError, match=kind):
            read()


def test_services_at_an_address_are_in_the_order_of_their_age_also_after_that_has_changed() -> None:
    world, old, new = World(), ServiceKey("z", "shop"), ServiceKey("a", "shop")
    shared = (Endpoint("10.0.0.1", 80, "http"),)
    world.apply([Upsert(SOURCE, Endpoints(old, shared)), Upsert(SOURCE, Endpoints(new, shared))])
    assert [key for key, _ in world.endpoints_at.peek("10.0.0.1")] == [new, old]
    world.apply([Upsert(SOURCE, Service("z", "shop"))])
    assert [key for key, _ in world.endpoints_at.peek("10.0.0.1")] == [old, new]
    world.apply([Upsert(SOURCE, Service("a", "shop"))])
    assert [key for key, _ in world.endpoints_at.peek("10.0.0.1")] == [new, old]
    world.apply([Delete(SOURCE, item_key(Service("a", "shop")))])
    assert [key for key, _ in world.endpoints_at.peek("10.0.0.1")] == [old, new]
