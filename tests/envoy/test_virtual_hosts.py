"""Virtual hosts by themselves are those of the whole table; an edit costs its own, however many there are."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.model.proxy import VIRTUAL_HOSTS, Proxy
from mesh_pilot.model.resource import LISTENER, ROUTE, VIRTUAL_HOST, Resource, host_name
from mesh_pilot.world import World
from tests.support import golden
from tests.support.patching import API, EDGE, SHOP, envoy_filter, patch
from tests.support.routing import service, virtual_service
from tests.support.worlds import sidecar, update, world_of


def hosts_apart(proxy: Proxy) -> Proxy:
    return attrs.evolve(proxy, incremental=True, metadata={**proxy.metadata, VIRTUAL_HOSTS: "split"})


def opened(catalog: WorldCatalog, proxy: Proxy, *tables: str) -> WorldResources:
    """The resources of a client that asks for these tables."""
    names = frozenset(tables)
    return catalog.open(proxy, requested=lambda type_url: names)


def hosts(resources: WorldResources) -> dict[str, Resource]:
    held = resources.set(VIRTUAL_HOST)
    assert held is not None
    return dict(held.snapshot().entries)


def table(resources: WorldResources, name: str) -> RouteConfiguration | None:
    held = resources.set(ROUTE)
    found = held.get(name) if held is not None else None
    return RouteConfiguration.FromString(found.body) if found is not None else None


def whole_again(resources: WorldResources, name: str) -> RouteConfiguration | None:
    """A table with the virtual hosts that come by themselves put into it, as Envoy does."""
    found = table(resources, name)
    if found is None or not found.HasField("vhds"):
        return found
    found.ClearField("vhds")
    for key, resource in hosts(resources).items():
        if key.rpartition("/")[0] == name:
            host = VirtualHost.FromString(resource.body)
            assert host.name == resource.name == key
            host.name = host.name.removeprefix(host_name(name, ""))
            if host.domains[0].endswith(".invalid"):
                continue  # removed by a patch
            found.virtual_hosts.append(host)
    return found


def by_name(found: RouteConfiguration | None) -> dict[str, Any]:
    """A table without the order of its virtual hosts, which Envoy does not heed."""
    if found is None:
        return {}
    each = {host.name: host.SerializeToString(deterministic=True) for host in found.virtual_hosts}
    assert len(each) == len(found.virtual_hosts)
    found.ClearField("virtual_hosts")
    return {"": found.SerializeToString(deterministic=True), **each}


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_tables_put_together_again_are_the_whole_tables(scenario: str) -> None:
    catalog = WorldCatalog(golden.load(scenario))
    for entry in golden.proxies(scenario)[:4]:
        if entry.get("grpc"):
            continue
        proxy = golden.proxy_of(entry)
        names = set(entry.get("routes", ())) | {"80", "8080", "http_proxy", "http.80", "9080"}
        whole, apart = opened(catalog, proxy), opened(catalog, hosts_apart(proxy), *names)
        for name in sorted(names):
            assert by_name(whole_again(apart, name)) == by_name(table(whole, name)), name
        listeners = [resources.set(LISTENER) for resources in (whole, apart)]
        assert listeners[0] is not None and listeners[1] is not None
        assert listeners[0].snapshot() is listeners[1].snapshot()


ON_80 = {"routeConfiguration": {"name": "80"}}
PATCHES = {
    "hosts merged": patch("VIRTUAL_HOST", "MERGE", "{request_headers_to_remove: [x-a]}", **ON_80),
    "a host by name": patch(
        "VIRTUAL_HOST", "MERGE", "{request_headers_to_remove: [x-a]}",
        routeConfiguration={"vhost": {"name": "api.shop.svc.cluster.local:80"}},
    ),
    "the rest": patch(
        "VIRTUAL_HOST", "MERGE", "{request_headers_to_remove: [x-a]}",
        routeConfiguration={"vhost": {"name": "allow_any"}},
    ),
    "a route": patch(
        "HTTP_ROUTE", "MERGE", "{response_headers_to_remove: [x-b]}",
        routeConfiguration={"vhost": {"route": {"name": "slow"}}},
    ),
    "a route added": patch(
        "HTTP_ROUTE", "INSERT_FIRST", "{name: new, match: {prefix: /new}, direct_response: {status: 204}}",
        routeConfiguration={"vhost": {"name": "api.shop.svc.cluster.local:80"}},
    ),
    "a route removed": patch("HTTP_ROUTE", "REMOVE", routeConfiguration={"vhost": {"route": {"name": "gone"}}}),
    "a host added": patch(
        "VIRTUAL_HOST", "ADD",
        "{name: new, domains: [new.test], routes: [{match: {prefix: /}, direct_response: {status: 204}}]}", **ON_80,
    ),
    "the table": patch("ROUTE_CONFIGURATION", "MERGE", "{response_headers_to_remove: [x-c]}", **ON_80),
    "another table": patch(
        "VIRTUAL_HOST", "MERGE", "{request_headers_to_remove: [x-a]}", routeConfiguration={"name": "81"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("proxy", [API, EDGE], ids=["sidecar", "router"])
@pytest.mark.parametrize("what", PATCHES)
def test_patches_do_to_a_virtual_host_by_itself_what_they_do_to_it_in_its_table(what: str, proxy: Proxy) -> None:
    name = "http.80" if proxy is EDGE else "80"
    catalog = WorldCatalog(world_of(SHOP + envoy_filter(PATCHES[what], namespace="istio-system")))
    whole, apart = opened(catalog, proxy), opened(catalog, hosts_apart(proxy), name)
    assert by_name(whole_again(apart, name)) == by_name(table(whole, name))
    assert apart.patch_problems() == whole.patch_problems()


def test_a_removed_virtual_host_leaves_one_that_no_request_is_for() -> None:
    """Envoy's listener waits until its table has a virtual host, and this might be the only one."""
    removed = patch("VIRTUAL_HOST", "REMOVE", **ON_80)
    catalog = WorldCatalog(world_of(SHOP + envoy_filter(removed)))
    left = [VirtualHost.FromString(r.body) for r in hosts(opened(catalog, hosts_apart(API), "80")).values()]
    domains = [domain for host in left for domain in host.domains]
    assert len(left) == len(set(domains)) > 1
    assert all(domain.endswith(".invalid") for domain in domains)
    assert not any(host.routes for host in left)


def test_a_patch_that_fails_at_a_virtual_host_is_told() -> None:
    wrong = [
        patch(
            "VIRTUAL_HOST", "MERGE", "{typed_per_filter_config: {x: {'@type': type.googleapis.com/no.such}}}", **ON_80
        ),
        patch("ROUTE_CONFIGURATION", "MERGE", "{name: other}", **ON_80),
    ]
    catalog = WorldCatalog(world_of(SHOP + envoy_filter(*wrong)))
    whole, apart = opened(catalog, API), opened(catalog, hosts_apart(API), "80")
    assert table(whole, "80") is not None and table(apart, "80") is not None
    assert hosts(apart)
    assert {p.reason for p in apart.patch_problems()} == {p.reason for p in whole.patch_problems()} != set()


def test_tables_that_come_and_go_are_told_as_touched() -> None:
    catalog = WorldCatalog(world_of(service("a") + service("b", ports="81 http HTTP")))
    wanted = [frozenset({"80"})]
    resources = catalog.open(hosts_apart(sidecar()), requested=lambda type_url: wanted[0])
    diff = catalog.snapshots.diff
    held = resources.set(VIRTUAL_HOST)
    assert held is not None
    first = held.snapshot()
    assert held.snapshot() is first
    wanted[0] = frozenset({"80", "81"})
    second = held.snapshot()
    assert diff(first, second) == second.names - first.names == {n for n in second.names if n.startswith("81/")}
    wanted[0] = frozenset({"81"})
    assert diff(second, held.snapshot()) == first.names
    assert catalog.statistics().sets == 2
    resources.close()
    assert catalog.statistics().idle_sets == catalog.statistics().sets


def rule(number: int, seconds: int = 1) -> str:
    host = f"s{number}.shop.svc.cluster.local"
    return virtual_service(
        f"s{number}",
        f"{{hosts: [{host}], http: [{{timeout: {seconds}s, route: [{{destination: {{host: {host}}}}}]}}]}}",
    )


def cost_of_an_edit(services: int) -> tuple[int, int]:
    """Translator calls and bytes."""
    world: World = world_of("".join(service(f"s{n}") + rule(n) for n in range(services)))
    catalog = WorldCatalog(world)
    resources = opened(catalog, hosts_apart(sidecar()), "80")
    held = resources.set(VIRTUAL_HOST)
    assert held is not None and len(held.snapshot()) == services + 1
    first = held.snapshot()
    before = world.memo.statistics().computed
    update(world, rule(7, seconds=2))
    changed = catalog.snapshots.diff(first, held.snapshot())
    calls = world.memo.statistics().computed - before
    return calls, sum(len(resource.body) for name in changed if (resource := held.get(name)) is not None)


def test_an_edit_costs_the_same_calls_and_bytes_in_a_mesh_of_10_and_of_1000_services() -> None:
    assert cost_of_an_edit(10) == cost_of_an_edit(1000)
