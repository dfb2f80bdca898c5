"""What a change costs in route tables: translator calls do not grow with the mesh."""

from __future__ import annotations

import pytest

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.gateway.listeners import gateway_route
from mesh_pilot.envoy.routes.tables import route_configuration
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support.routing import config, router, service, target, virtual_service
from tests.support.worlds import sidecar, update, world_of

GATEWAY = config(
    "Gateway",
    "gw",
    "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
    namespace="edge",
)


def rule(number: int, seconds: int = 1) -> str:
    """A VirtualService of one of many services, for sidecars and the gateway."""
    host = f"s{number}.shop.svc.cluster.local"
    first = f"{{match: [{{uri: {{prefix: /a}}}}], timeout: {seconds}s, route: [{{destination: {{host: {host}}}}}]}}"
    rest = f"{{route: [{{destination: {{host: {host}}}}}]}}"
    return virtual_service(f"s{number}", f"{{hosts: [{host}], gateways: [mesh, edge/gw], http: [{first}, {rest}]}}")


def mesh(services: int) -> str:
    return GATEWAY + "".join(service(f"s{n}") + rule(n) for n in range(services))


class Tables:
    """The tables of two sidecars and a router, kept up to date."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watch = Watch(world.memo, lambda: None)
        self.clients = [target(world, sidecar(namespace=ns, labels={"app": ns})).scope for ns in ("shop", "lab")]
        self.router = target(world, router()).workload

    def get(self) -> list[Resource | None]:
        tables = [self.watch.get(route_configuration.query(scope, "80")) for scope in self.clients]
        return [*tables, self.watch.get(gateway_route.query(self.router, "http.80"))]

    def cost(self, text: str) -> dict[str, int]:
        """Calls by translator to bring the tables up to date after a change."""
        before = self.world.memo.statistics().calls
        update(self.world, text)
        self.get()
        after = self.world.memo.statistics().calls
        return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}


@pytest.mark.slow
def test_an_edit_of_a_virtual_service_costs_the_same_in_a_mesh_of_100_and_of_1000_services() -> None:
    costs = []
    for size in (100, 1000):
        tables = Tables(world_of(mesh(size)))
        before = tables.get()
        costs.append(tables.cost(rule(7, seconds=2)))
        assert all(new != old for new, old in zip(tables.get(), before, strict=True))
    assert costs[0] == costs[1]
    assert "_lone_shard" not in costs[0], "an edit of routes leaves the plan alone"


def test_sidecars_of_all_namespaces_share_the_routes_of_a_virtual_service() -> None:
    cost = Tables(world_of(mesh(10)))
    cost.get()
    assert cost.cost(rule(7, seconds=2))["virtual_service_routes"] == 2, "once for sidecars, once for the gateway"


@pytest.mark.parametrize(
    "text",
    [
        service("new", ports="81 http HTTP"),
        service("new", ports="81 tcp TCP"),
        config("DestinationRule", "new", "{host: new.example.com}"),
        virtual_service("new", "{hosts: [new.example.com], gateways: [edge/other], http: [{redirect: {uri: /}}]}"),
    ],
)
def test_what_is_not_of_a_table_leaves_its_virtual_hosts_alone(text: str) -> None:
    tables = Tables(world_of(mesh(20)))
    before = tables.get()
    cost = tables.cost(text)
    assert not {"encoded_virtual_host", "virtual_service_routes", "route_configuration"} & cost.keys()
    assert tables.get() == before


def test_a_new_service_costs_its_own_virtual_host() -> None:
    tables = Tables(world_of(mesh(50)))
    tables.get()
    cost = tables.cost(service("new"))
    assert cost["encoded_virtual_host"] == 2


def test_a_label_counts_only_where_a_virtual_service_asks_for_it() -> None:
    gold = "{hosts: [s1], http: [{match: [{sourceLabels: {app: shop}}], redirect: {uri: /}}, {redirect: {uri: /x}}]}"
    tables = Tables(world_of(mesh(10) + virtual_service("s1", gold)))
    tables.get()
    calls = tables.world.memo.statistics().calls
    assert calls["virtual_service_routes"] == 9 * 2 + 2, "only the one that asks for it differs between the clients"
