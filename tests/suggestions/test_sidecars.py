"""Sidecars made of calls: whatever a workload requested, it can still request, and what it gets is a fraction."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.explain.plan.client import PlannedClient
from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.explain.suggestions.observed import Observed, Suggestions
from mesh_pilot.explain.suggestions.sidecars import suggest_sidecars
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.events import Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, Resource
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Response
from mesh_pilot.xds.ads.references import references_of
from tests.support.routing import config, service, virtual_service
from tests.support.worlds import SOURCE, sidecar, update, world_of

DOMAIN = "shop.svc.cluster.local"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def workload(proxy: Proxy) -> CallingWorkload:
    labels = tuple(sorted(proxy.labels.items()))
    return CallingWorkload(proxy.namespace, proxy.labels.get("app", ""), proxy.identity, labels)


def seen(calls: Mapping[Proxy, Iterable[str]], *others: Proxy, silent: Iterable[Proxy] = ()) -> Observed:
    """The clusters that proxies used in a week; all of them report, but for those that are silent."""
    edges = tuple(
        WorkloadEdge(workload(proxy), RowKind.CLUSTER, cluster, Counts({Counter.REQUESTS: 5}, has_requests=True))
        for proxy, clusters in calls.items()
        for cluster in clusters
    )
    reporters = {proxy.id: workload(proxy) for proxy in (*calls, *others) if proxy not in silent}
    return Observed(NOW - timedelta(days=7), NOW, timedelta(days=7), edges, reporters)


def suggested(world: World, observed: Observed, *proxies: Proxy, namespace: str = "") -> Suggestions:
    return suggest_sidecars(world.view, [ConnectedProxy(proxy) for proxy in proxies], observed, namespace)


def imports(found: Suggestions) -> dict[str, list[str]]:
    """The hosts that each Sidecar imports."""
    return {f"{e.config.namespace}/{e.config.name}": e.config.spec.egress[0].hosts for e in found.objects}


def apply(world: World, found: Suggestions) -> None:
    world.apply([Upsert(SOURCE, each.config) for each in found.objects])


WEB = sidecar("10.1.0.1", name="web-1", namespace="shop", labels={"app": "web"})


def web(name: str = "web-1", ip: str = "10.1.0.1", **more: object) -> Proxy:
    return sidecar(ip, name=name, namespace="shop", **{"labels": {"app": "web"}, **more})  # type: ignore[arg-type]


MESH = service("reviews") + service("ratings") + service("books", namespace="store") + service("idle")
REVIEWS, RATINGS, BOOKS = (
    "outbound|80||reviews.shop.svc.cluster.local",
    "outbound|80||ratings.shop.svc.cluster.local",
    "outbound|80||books.store.svc.cluster.local",
)


def test_a_sidecar_imports_what_its_workload_called_and_says_the_own_namespace_in_short() -> None:
    world = world_of(MESH)
    found = suggested(world, seen({WEB: [REVIEWS, BOOKS]}), WEB)
    (one,) = found.objects
    assert str(one.config.key) == "Sidecar/shop/web"
    assert to_json(one.config.spec) == {
        "workloadSelector": {"labels": {"app": "web"}},
        "egress": [{"hosts": ["./reviews.shop.svc.cluster.local", "store/books.store.svc.cluster.local"]}],
    }
    assert one.proxies == ("web-1.shop",)
    assert not found.skipped


def test_a_workload_that_called_nothing_imports_nothing() -> None:
    found = suggested(world_of(MESH), seen({}, WEB), WEB)
    assert imports(found) == {"shop/web": ["~/*"]}
    assert "It called nothing." in found.objects[0].notes


ROUTING = {
    "another host": "{hosts: [front], http: [{route: [{destination: {host: reviews}}]}]}",
    "a mirror": "{hosts: [front], http: [{route: [{destination: {host: idle}}], mirror: {host: reviews}}]}",
    "TCP": "{hosts: [front], tcp: [{route: [{destination: {host: reviews, port: {number: 80}}}]}]}",
    "TLS": "{hosts: [front.example], tls: [{match: [{sniHosts: [front.example]}],"
    " route: [{destination: {host: reviews, port: {number: 80}}}]}]}",
    "a host of no service": "{hosts: [front.example], http: [{route: [{destination: {host: reviews}}]}]}",
    "a wildcard": "{hosts: ['*.example'], http: [{route: [{destination: {host: reviews}}]}]}",
}


@pytest.mark.parametrize("how", ROUTING)
def test_a_host_that_routes_to_what_was_called_is_imported_too(how: str) -> None:
    world = world_of(MESH + service("front") + virtual_service("front", ROUTING[how]))
    found = suggested(world, seen({WEB: [REVIEWS]}), WEB)
    hosts = imports(found)["shop/web"]
    host = next((each for each in ("*.example", "front.example") if each in ROUTING[how]), f"front.{DOMAIN}")
    assert hosts == sorted([f"./{host}", "./reviews.shop.svc.cluster.local"])
    assert found.objects[0].why == {f"./{host}": "VirtualService/shop/front routes to reviews.shop.svc.cluster.local"}


def test_delegates_lead_back_to_the_host_that_was_requested() -> None:
    root = virtual_service("front", "{hosts: [front], http: [{delegate: {name: inner, namespace: shop}}]}")
    inner = virtual_service("inner", "{http: [{route: [{destination: {host: reviews}}]}]}")
    world = world_of(MESH + service("front") + root + inner)
    hosts = imports(suggested(world, seen({WEB: [REVIEWS]}), WEB))["shop/web"]
    assert "./front.shop.svc.cluster.local" in hosts


def test_what_answers_by_itself_is_counted_by_nobody_and_stays() -> None:
    old = virtual_service("old", "{hosts: [old.example], http: [{redirect: {authority: new.example}}]}")
    world = world_of(MESH + old)
    found = suggested(world, seen({WEB: ["outbound|9000||gone.example"]}), WEB)
    (one,) = found.objects
    assert "./old.example" in one.why
    keeps = [why for why in one.why.values() if "port 80" in why]
    assert len(keeps) == 1
    apply(world, found)
    assert "old.example" in domains(held(world, WEB), "80")
    assert any("gone.example" in note for note in one.notes)


def test_two_workloads_that_one_selector_finds_share_a_sidecar() -> None:
    second = web("web-2", "10.1.0.2", labels={"app": "web", "version": "v2"})
    found = suggested(world_of(MESH), seen({WEB: [REVIEWS], second: [RATINGS]}), WEB, second)
    assert imports(found) == {"shop/web": ["./ratings.shop.svc.cluster.local", "./reviews.shop.svc.cluster.local"]}
    assert found.objects[0].proxies == ("web-1.shop", "web-2.shop")


def test_nothing_is_suggested_for_what_a_silent_proxy_would_get() -> None:
    silent = web("web-2", "10.1.0.2")
    found = suggested(world_of(MESH), seen({WEB: [REVIEWS], silent: []}, silent=[silent]), WEB, silent)
    assert not found.objects
    assert [(each.workload, each.reason) for each in found.skipped] == [
        ("shop/web", "web-2.shop does not report its calls")
    ]


def test_a_gateway_has_no_sidecar_and_a_workload_that_is_not_here_is_told() -> None:
    edge = sidecar("10.9.9.9", name="edge-1", namespace="shop", labels={"istio": "edge"}, node_type="router")
    found = suggested(world_of(MESH), seen({WEB: [REVIEWS], edge: [REVIEWS]}), edge)
    assert not found.objects
    assert [each.reason for each in found.skipped] == ["no proxy of it is connected"]


def test_sidecars_of_users_stay_and_what_a_general_one_says_is_kept() -> None:
    own = config("Sidecar", "mine", "{workloadSelector: {labels: {app: web}}, egress: [{hosts: ['./*']}]}")
    found = suggested(world_of(MESH + own), seen({WEB: [REVIEWS]}), WEB)
    assert not found.objects
    assert found.skipped[0].reason == "Sidecar/shop/mine selects it already"
    general = "{egress: [{hosts: ['*/*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"
    found = suggested(world_of(MESH + config("Sidecar", "web", general)), seen({WEB: [REVIEWS]}), WEB)
    (one,) = found.objects
    assert one.config.name == "web-2"
    assert to_json(one.config.spec)["outboundTrafficPolicy"] == {}
    assert any("Sidecar/shop/web" in note for note in one.notes)
    by_port = "{egress: [{port: {number: 80, protocol: HTTP, name: http}, hosts: ['./*']}]}"
    found = suggested(world_of(MESH + config("Sidecar", "ports", by_port)), seen({WEB: [REVIEWS]}), WEB)
    assert not found.objects
    assert "port" in found.skipped[0].reason


def test_workloads_without_labels_share_the_namespaces_default_if_all_report() -> None:
    bare, other = (sidecar(f"10.2.0.{n}", name=f"job-{n}", namespace="shop") for n in (1, 2))
    world = world_of(MESH)
    found = suggested(world, seen({WEB: [REVIEWS], bare: [RATINGS], other: [BOOKS]}), WEB, bare, other)
    default = imports(found)["shop/default"]
    assert [each.rpartition("/")[2].split(".")[0] for each in default] == ["ratings", "reviews", "books"]
    found = suggested(world, seen({WEB: [REVIEWS], bare: [RATINGS]}, silent=[other]), WEB, bare, other)
    assert "shop/default" not in imports(found)
    assert "job-2.shop" in found.skipped[0].reason


def test_calls_of_hosts_that_the_mesh_does_not_know_are_said() -> None:
    found = suggested(world_of(MESH), seen({WEB: [REVIEWS, "PassthroughCluster"]}), WEB)
    assert any("outboundTrafficPolicy must stay" in note for note in found.objects[0].notes)


# -- a mesh of 300 services


def held(world: World, proxy: Proxy) -> Mapping[str, Mapping[str, Resource]]:
    """All that a proxy is sent."""
    return held_by(world, [proxy])[proxy]


def held_by(world: World, proxies: Iterable[Proxy]) -> dict[Proxy, Mapping[str, Mapping[str, Resource]]]:
    """All that each proxy is sent."""
    catalog, found = WorldCatalog(world), {}
    for proxy in proxies:
        client = PlannedClient(catalog, ConnectedProxy(proxy), references_of, lambda _: 0)
        client.connect()
        client.settle()
        found[proxy] = client.held()
        client.close()
    return found


def hosts_of(resources: Mapping[str, Mapping[str, Resource]], table: str) -> dict[str, rc.VirtualHost]:
    """The virtual hosts of a route table by each of their domains."""
    routes = resources.get(ROUTE, {}).get(table)
    if routes is None:
        return {}
    message = route_pb2.RouteConfiguration.FromString(routes.body)
    return {domain: each for each in message.virtual_hosts for domain in each.domains}


def domains(resources: Mapping[str, Mapping[str, Resource]], table: str) -> set[str]:
    return {*hosts_of(resources, table)}


SERVICES, NAMESPACES, CALLS = 300, 10, 4
LOOKED_AT = 20
"""Proxies that are looked at: what one of 300 services gets takes a while to make."""


class Mesh:
    """300 services in ten namespaces, each with a workload that calls four hosts: services, hosts of VirtualServices
    with other destinations, and databases at addresses of their own. Mutable state: the World."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.proxies = [self._proxy(number) for number in range(SERVICES)]
        self.world = world_of("".join(map(self._service, range(SERVICES))) + "".join(self._routing(chance)))
        names = [*map(self._host, range(SERVICES)), *(f"front{number}.example" for number in range(20))]
        self.requested = {proxy: chance.sample(names, CALLS) for proxy in self.proxies}
        self.databases = {proxy: self._host(chance.randrange(0, SERVICES, 3)) for proxy in self.proxies}

    def _host(self, number: int) -> str:
        return f"s{number}.n{number % NAMESPACES}.svc.cluster.local"

    def _proxy(self, number: int) -> Proxy:
        ip, namespace = f"10.{number // 200}.{number % 200}.1", f"n{number % NAMESPACES}"
        return sidecar(ip, name=f"s{number}-1", namespace=namespace, labels={"app": f"s{number}"})

    def _service(self, number: int) -> str:
        """A third has a port of TCP next to, at an address."""
        has_tcp = number % 3 == 0
        ports = "80 http HTTP, 5432 tcp TCP" if has_tcp else "80 http HTTP"
        address = f"10.200.{number // 200}.{number % 200 + 1}" if has_tcp else ""
        return service(f"s{number}", namespace=f"n{number % NAMESPACES}", ports=ports, addresses=address)

    def _routing(self, chance: random.Random) -> Iterable[str]:
        for number in range(20):
            one, other, mirror = (self._host(each) for each in chance.sample(range(SERVICES), 3))
            split = (
                f"route: [{{destination: {{host: {one}}}, weight: 99}}, {{destination: {{host: {other}}}, weight: 1}}]"
            )
            yield virtual_service(
                f"front{number}",
                f"{{hosts: [front{number}.example], http: [{{{split}, mirror: {{host: {mirror}}}}}]}}",
                namespace=f"n{number % NAMESPACES}",
            )
        for number in range(20, 40):
            host, other = self._host(number), self._host(chance.randrange(SERVICES))
            rules = f"{{hosts: [{host}], http: [{{route: [{{destination: {{host: {other}}}}}]}}]}}"
            yield virtual_service(f"v{number}", rules, namespace=f"n{number % NAMESPACES}")

    def calls(self, chance: random.Random) -> dict[Proxy, set[str]]:
        """The clusters that count the requests of each proxy: of each request one, as a route says."""
        hosts = hosts_of(held(self.world, self.proxies[0]), "80")
        return {
            proxy: {
                f"outbound|5432||{self.databases[proxy]}",
                *(chance.choice([*_clusters(hosts[host].routes)]) for host in self.requested[proxy]),
            }
            for proxy in self.proxies
        }


def _clusters(routes: Iterable[rc.Route]) -> Iterable[str]:
    for route in routes:
        yield from [each.name for each in route.route.weighted_clusters.clusters] or [route.route.cluster]


def test_no_request_of_the_window_loses_its_way_in_a_mesh_of_300_services() -> None:
    chance = random.Random(7)
    mesh = Mesh(7)
    calls = mesh.calls(chance)
    looked_at = mesh.proxies[:LOOKED_AT]
    before = held_by(mesh.world, looked_at)
    found = suggested(mesh.world, seen(calls), *mesh.proxies)
    assert len(found.objects) == SERVICES
    assert not found.skipped
    apply(mesh.world, found)
    for proxy, after in held_by(mesh.world, looked_at).items():
        assert calls[proxy] <= after[CLUSTER].keys()
        routes, were = hosts_of(after, "80"), hosts_of(before[proxy], "80")
        for host in mesh.requested[proxy]:
            assert routes[host].routes == were[host].routes
            assert {*_clusters(routes[host].routes)} <= after[CLUSTER].keys()
        of_tcp = {name for name in after[LISTENER] if name.endswith("_5432")}
        assert len(of_tcp) >= 1
        assert len(after[CLUSTER]) * 5 < len(before[proxy][CLUSTER])
        assert len(after[LISTENER]) * 2 < len(before[proxy][LISTENER])


def test_route_edits_cost_a_tenth() -> None:
    chance = random.Random(7)
    mesh = Mesh(7)
    calls = mesh.calls(chance)
    found = suggested(mesh.world, seen(calls), *mesh.proxies)
    wide = _cost_of_edits(Mesh(7))
    narrow = Mesh(7)
    apply(narrow.world, found)
    few = _cost_of_edits(narrow)
    assert few.bytes * 10 < wide.bytes
    assert few.proxies * 10 < wide.proxies


@attrs.frozen
class Cost:
    """What some edits came to."""

    bytes: int
    proxies: int
    calls: int


def _bytes(response: Response) -> int:
    return sum(len(resource.body) for resource in response.resources)


def _cost_of_edits(mesh: Mesh) -> Cost:
    """What five edits of routes come to for all proxies."""
    catalog = WorldCatalog(mesh.world)
    clients = [
        PlannedClient(catalog, ConnectedProxy(proxy), references_of, _bytes) for proxy in mesh.proxies[:LOOKED_AT]
    ]
    for client in clients:
        client.connect()
        client.settle()
    before = sum(mesh.world.memo.statistics().calls.values())
    pushed, touched = 0, 0
    for number in range(20, 25):
        host = mesh._host(number)
        rules = f"{{hosts: [{host}], http: [{{timeout: 3s, route: [{{destination: {{host: {host}}}}}]}}]}}"
        update(mesh.world, virtual_service(f"v{number}", rules, namespace=f"n{number % NAMESPACES}"))
        received = [client.settle() for client in clients]
        pushed += sum(each.bytes for each in received)
        touched += sum(each.responses > 0 for each in received)
    calls = sum(mesh.world.memo.statistics().calls.values()) - before
    for client in clients:
        client.close()
    return Cost(pushed, touched, calls)
