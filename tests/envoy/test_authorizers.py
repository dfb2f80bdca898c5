"""Filters of ExternalAuth at sidecars: which listeners have them, what their tables are called, what a change costs."""

from __future__ import annotations

from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.ext_authz.v3.ext_authz_pb2 import ExtAuthz

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.catalog.on_demand import pinned_hosts
from mesh_pilot.envoy.grpc.listeners import grpc_route_table
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world import World
from tests.support.listeners import listeners, manager, resources
from tests.support.routing import config, resource, service, table, target
from tests.support.worlds import sidecar, update, world_of

ORDERS, AUTH = "orders.shop.svc.cluster.local", "auth.shop.svc.cluster.local"
SERVICES = (
    service("orders", ports="80 http HTTP, 8080 other HTTP")
    + service("auth", ports="9000 grpc GRPC")
    + service("free", ports="80 http HTTP, 8080 other HTTP")
)


def asks(path: str = "", protocol: str = "HTTP", host: str = AUTH) -> str:
    http = f"http: {{path: '{path}'}}" if protocol == "HTTP" else "grpc: {}"
    backend = f"{{group: networking.istio.io, kind: Hostname, name: {host}, port: 9000}}"
    return f"{{type: ExternalAuth, externalAuth: {{protocol: {protocol}, backendRef: {backend}, {http}}}}}"


def route(*filters: str, of: str = ORDERS, port: int = 0, namespace: str = "shop", name: str = "") -> str:
    """An HTTPRoute of a service, with a rule for ``/asked`` that has these filters and one without."""
    at = f", port: {port}" if port else ""
    parent = f"{{group: networking.istio.io, kind: ServiceEntry, name: {of}, namespace: shop{at}}}"
    to = f"backendRefs: [{{group: networking.istio.io, kind: Hostname, name: {of}, port: 80}}]"
    asked = f"{{matches: [{{path: {{value: /asked}}}}], filters: [{', '.join(filters)}], {to}}}"
    return (
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n"
        f"metadata: {{name: {name or of}, namespace: {namespace}}}\n"
        f"spec: {{parentRefs: [{parent}], rules: [{asked}, {{{to}}}]}}\n"
    )


def client(namespace: str = "shop", **metadata: object) -> Proxy:
    return sidecar("10.1.1.1", namespace=namespace, **metadata)


def tables(world: World, proxy: Proxy | None = None) -> dict[str, str]:
    """The tables of HTTP listeners, by listener."""
    found = {}
    for name, listener in listeners(world, proxy or client()).items():
        chains = [*listener.filter_chains, listener.default_filter_chain]
        managers = [manager(chain) for chain in chains if "http_connection_manager" in str(chain.filters)]
        for each in managers:
            found[name] = each.rds.route_config_name
    return found


def filters(world: World, listener: str, proxy: Proxy | None = None) -> dict[str, ExtAuthz]:
    """The filters of a listener that ask, which must be off."""
    (chain,) = (c for c in listeners(world, proxy or client())[listener].filter_chains if c.filters)
    asking = [each for each in manager(chain).http_filters if each.name.startswith("envoy.filters.http.ext_authz/")]
    assert all(each.disabled for each in asking)
    return {each.name: ExtAuthz.FromString(each.typed_config.value) for each in asking}


def named(world: World, table_name: str, proxy: Proxy | None = None) -> dict[str, set[str]]:
    """The filters that the routes of a table turn on, by virtual host."""
    hosts = table(world, table_name, proxy)
    return {
        name: {key for route in host.routes for key in route.typed_per_filter_config if "ext_authz" in key}
        for name, host in hosts.items()
    }


def test_a_port_has_a_filter_for_each_way_of_asking_and_only_the_rules_turn_them_on() -> None:
    text = route(asks("a"), asks(protocol="GRPC")) + route(asks("a"), of="free.shop.svc.cluster.local", port=80)
    world = world_of(SERVICES + text)
    found = tables(world)
    name, other = found["0.0.0.0_80"], found["0.0.0.0_8080"]
    assert name.startswith("80|auth-") and other.startswith("8080|auth-")
    by_http, by_grpc = sorted(filters(world, "0.0.0.0_80").items(), key=lambda item: item[1].HasField("grpc_service"))
    assert by_http[1].http_service.server_uri.cluster == f"outbound|9000||{AUTH}"
    assert by_grpc[1].grpc_service.envoy_grpc.cluster_name == f"outbound|9000||{AUTH}"
    both = {by_http[0], by_grpc[0]}
    asked = named(world, name)
    assert {host: on for host, on in asked.items() if on} == {
        f"{ORDERS}:80": both,
        "free.shop.svc.cluster.local:80": {by_http[0]},
    }
    assert [host for host, on in named(world, other).items() if on] == [f"{ORDERS}:8080"]
    assert set(filters(world, "0.0.0.0_8080")) == both
    assert found["0.0.0.0_9000"] == "9000"


def test_a_table_has_one_name_at_a_time() -> None:
    """A client that still has a listener of before keeps the table that it has: nothing new may pass through it."""
    world = world_of(SERVICES + route())
    assert tables(world)["0.0.0.0_80"] == "80"
    assert resource(world, "80") is not None
    update(world, route(asks("a")))
    first = tables(world)["0.0.0.0_80"]
    assert resource(world, first) is not None and resource(world, "80") is None
    update(world, route(asks("b")))
    assert resource(world, first) is None and resource(world, "80") is None
    update(world, route())
    assert tables(world)["0.0.0.0_80"] == "80"
    assert resource(world, "80") is not None and resource(world, first) is None
    for made_up in ("80|auth-", "80|auth-00", "|auth-", "x|auth-00", "99999999|auth-00"):
        assert resource(world, made_up) is None


def test_a_rule_for_one_port_leaves_the_other_ports_alone() -> None:
    found = tables(world_of(SERVICES + route(asks(), port=8080)))
    assert (found["0.0.0.0_80"], found["0.0.0.0_8080"][:10]) == ("80", "8080|auth-")


def test_who_does_not_see_a_route_has_no_filter() -> None:
    """A route of another namespace is for clients there; a Sidecar may leave out the service."""
    consumer = route(asks(), namespace="web", name="consumer")
    world = world_of(SERVICES + consumer)
    assert tables(world)["0.0.0.0_80"] == "80"
    assert tables(world, client("web"))["0.0.0.0_80"].startswith("80|auth-")
    narrow = config("Sidecar", "default", "{egress: [{hosts: ['./free.shop.svc.cluster.local']}]}")
    world = world_of(SERVICES + route(asks()) + narrow)
    assert tables(world)["0.0.0.0_80"] == "80"
    assert tables(world, client("web"))["0.0.0.0_80"].startswith("80|auth-")


def test_a_sidecar_that_imports_the_service_alone_reaches_the_server() -> None:
    """Envoy refuses a filter for gRPC whose cluster is unknown."""
    narrow = config("Sidecar", "default", f"{{egress: [{{hosts: ['./{ORDERS}']}}]}}")
    world = world_of(SERVICES + route(asks(protocol="GRPC")) + narrow)
    (found,) = filters(world, "0.0.0.0_80").values()
    assert found.grpc_service.envoy_grpc.cluster_name == f"outbound|9000||{AUTH}"
    assert AUTH in pinned_hosts(world.view, target(world).scope)


def test_a_server_that_a_client_may_not_see_lets_nothing_pass() -> None:
    hidden = service(AUTH, ports="9000 grpc GRPC").replace("spec: {", "spec: {exportTo: ['.'], ")
    world = world_of(SERVICES + hidden + route(asks(protocol="GRPC")))
    (own,), (other,) = (filters(world, "0.0.0.0_80", client(ns)).values() for ns in ("shop", "web"))
    assert own.HasField("grpc_service")
    assert (other.http_service.server_uri.cluster, other.failure_mode_allow) == ("BlackHoleCluster", False)


def test_a_service_with_its_own_table_and_an_http_proxy_have_the_filter_too() -> None:
    alone = service("alone", ports="80 main TCP, 8080 any", addresses="10.9.0.1")
    alone += service("beside", ports="8080 any", addresses="10.9.0.2")
    text = SERVICES + alone + route(asks(), of="alone.shop.svc.cluster.local", port=8080)
    proxy = client(HTTP_PROXY_PORT="15080")
    world = world_of(text)
    found = tables(world, proxy)
    (own,) = (name for name in found.values() if name.startswith("alone.shop.svc.cluster.local:8080"))
    (via,) = (name for name in found.values() if name.startswith("http_proxy"))
    assert "|auth-" in own and "|auth-" in via
    for name in (own, via):
        assert any(named(world, name, proxy).values())
    assert "beside.shop.svc.cluster.local:8080" in found.values()


def test_grpc_clients_without_a_proxy_cannot_ask_so_their_calls_fail() -> None:
    world = world_of(SERVICES + route(asks()))
    scope = target(world, sidecar("10.1.1.1", namespace="shop", GENERATOR="grpc")).scope
    made = grpc_route_table(world.view, scope, f"outbound|80||{ORDERS}")
    assert made is not None
    hosts = {host.name: host for host in RouteConfiguration.FromString(made.body).virtual_hosts}
    asked, free = hosts[f"{ORDERS}:80"].routes
    assert (asked.WhichOneof("action"), free.WhichOneof("action")) == ("direct_response", "route")
    assert not asked.typed_per_filter_config


# -- what a change costs


def calls(world: World) -> dict[str, int]:
    """Values of tables that were computed: of authorizers none where nobody asks."""
    every = world.memo.statistics().calls
    return {name: every[name] for name in ("outbound_listener", "service_listeners", "_at_port") if name in every}


def test_where_nobody_asks_nothing_is_looked_for() -> None:
    world = world_of(SERVICES + route())
    watch = Watch(world.memo, lambda: None)
    resources(world, client(), watch)
    assert calls(world).keys() == {"outbound_listener", "service_listeners"}
    update(world, route(asks()))
    resources(world, client(), watch)
    assert calls(world)["_at_port"] == 3


def test_only_a_change_of_who_is_asked_makes_listeners_again() -> None:
    world = world_of(SERVICES + route(asks("a")))
    watch = Watch(world.memo, lambda: None)
    before = resources(world, client(), watch)
    made = calls(world)
    for text in (
        route(asks("a")).replace("/asked", "/elsewhere"),
        service("more", ports="80 http HTTP"),
        route(of="free.shop.svc.cluster.local"),
        route(asks("a"), of="free.shop.svc.cluster.local"),
    ):
        update(world, text)
        assert resources(world, client(), watch) == before
    assert calls(world)["outbound_listener"] == made["outbound_listener"]
    update(world, route(asks("b"), port=80))
    after = resources(world, client(), watch)
    assert {name for name in after if after[name] != before[name]} == {"0.0.0.0_80"}


def test_only_the_shards_of_the_hosts_are_looked_through() -> None:
    """Services of undeclared protocol have a table each."""
    many = "".join(service(f"s{i}", ports="8080 any", addresses=f"10.9.0.{i}") for i in range(1, 200))
    one, two = (f"s{i}.shop.svc.cluster.local" for i in (1, 2))
    world = world_of(SERVICES + many + route(asks("a"), of=one, port=8080))
    watch = Watch(world.memo, lambda: None)
    before = resources(world, client(), watch)
    for path in ("b", "c"):
        made = calls(world)
        update(world, route(asks(path), of=two, port=8080))
        after = resources(world, client(), watch)
        # 0.0.0.0_8080 is for the services without an address, and shares the table of the port.
        assert {name for name in after if after[name] != before[name]} == {"10.9.0.2_8080", "0.0.0.0_8080"}
        again = {name: count - made[name] for name, count in calls(world).items() if "listener" in name}
        assert again == {"outbound_listener": 2, "service_listeners": 2}
        before = after


def test_a_rule_elsewhere_makes_no_listener_of_a_client_that_does_not_see_it_again() -> None:
    world = world_of(SERVICES + route())
    watch = Watch(world.memo, lambda: None)
    before = resources(world, client("web"), watch)
    made = calls(world)["outbound_listener"]
    update(world, route(asks(), namespace="bank", name="consumer"))
    assert resources(world, client("web"), watch) == before
    assert calls(world)["outbound_listener"] == made
