"""Outbound listeners: which there are, what meets on one, and where TCP connections go."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from google.protobuf.duration_pb2 import Duration

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.listeners.outbound import outbound_conflicts
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, planned_hosts
from mesh_pilot.model.events import Endpoints, MeshConfigValue, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.world import World
from tests.support.listeners import inspector_names, is_http, listeners, manager, resources, target, tcp
from tests.support.worlds import SOURCE, sidecar, update, world_of


def service(
    name: str, ports: str, *, address: str = "", month: int = 1, extra: str = "", host: str = "", kind: str = "STATIC"
) -> str:
    """A ServiceEntry of namespace shop as YAML; ``month`` orders by age."""
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop, creationTimestamp: "2024-{month:02}-01T00:00:00Z"}}
spec:
  hosts: [{host or name + ".example"}]
  addresses: [{address}]
  location: MESH_INTERNAL
  resolution: {kind}
  ports: [{ports}]
  {extra or "endpoints: [{address: 10.0.0.9}]" if kind == "STATIC" else extra}
"""


def port(number: int, protocol: str = "TCP", name: str = "") -> str:
    return f"{{number: {number}, name: {name or protocol.lower()}-{number}, protocol: {protocol}}}"


def client(**metadata: object) -> Proxy:
    return sidecar("10.1.1.1", namespace="shop", labels={"app": "client"}, **metadata)


def dropped(world: World, proxy: Proxy) -> list[tuple[str, str, str]]:
    """(listener, kept host, dropped host) of every conflict."""
    conflicts = outbound_conflicts(world.view, target(world, proxy).scope)
    return [(c.listener, c.kept, c.dropped) for c in conflicts]


def names(world: World, proxy: Proxy) -> set[str]:
    return set(listeners(world, proxy))


# -- which listeners there are


def test_http_services_of_a_port_share_one_wildcard_listener() -> None:
    world = world_of(
        service("a", port(80, "HTTP"), address="10.9.0.1") + service("b", port(80, "HTTP"), address="10.9.0.2")
    )
    found = listeners(world, client())
    assert set(found) == {"0.0.0.0_80", "virtualOutbound", "virtualInbound"}
    listener = found["0.0.0.0_80"]
    assert manager(listener.filter_chains[0]).rds.route_config_name == "80"
    assert listener.bind_to_port.value is False and listener.HasField("bind_to_port")
    assert tcp(listener.default_filter_chain).cluster == "PassthroughCluster"


def test_tcp_services_have_a_listener_at_each_address() -> None:
    world = world_of(service("db", port(5432), address="10.9.0.1, 10.9.0.2"))
    assert {"10.9.0.1_5432", "10.9.0.2_5432"} <= names(world, client())


def test_udp_ports_have_no_listener() -> None:
    world = world_of(service("dns", port(53, "UDP"), address="10.9.0.1"))
    assert names(world, client()) == {"virtualOutbound", "virtualInbound"}


def test_an_undeclared_protocol_is_sniffed_at_the_services_address() -> None:
    world = world_of(service("any", "{number: 7000, name: what}", address="10.9.0.1"))
    listener = listeners(world, client())["10.9.0.1_7000"]
    assert manager(listener.filter_chains[0]).rds.route_config_name == "any.example:7000"
    assert list(listener.filter_chains[0].filter_chain_match.application_protocols) == ["http/1.1", "h2c"]
    assert tcp(listener.default_filter_chain).cluster == "outbound|7000||any.example"
    assert inspector_names(listener) == ["http_inspector"]
    assert listener.continue_on_listener_filters_timeout


def test_the_time_for_detection_ends_no_wait_for_a_server_name() -> None:
    services = service("any", "{number: 7000, name: what}", address="10.9.0.1") + service("s", port(443, "TLS"))
    found = listeners(world_of(services, mesh="protocolDetectionTimeout: 1s"), client())
    assert found["10.9.0.1_7000"].listener_filters_timeout.seconds == 1
    assert inspector_names(found["0.0.0.0_443"]) == ["tls_inspector"]
    assert found["0.0.0.0_443"].listener_filters_timeout == Duration()


def test_a_headless_tcp_service_has_a_listener_at_each_endpoint() -> None:
    workloads = "".join(
        "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n"
        f"metadata: {{name: w{i}, namespace: shop}}\nspec: {{address: 10.2.0.{i}, labels: {{app: ring}}}}\n"
        for i in (1, 2)
    )
    ring = service("ring", port(7946), kind="NONE", extra="workloadSelector: {labels: {app: ring}}")
    found = names(world_of(ring + workloads), client())
    assert {"10.2.0.1_7946", "10.2.0.2_7946"} <= found
    assert not {"10.2.0.1_7946", "0.0.0.0_7946"} & names(world_of(ring), client())


def test_a_service_without_addresses_or_endpoints_is_on_the_wildcard_address() -> None:
    world = world_of(service("out", port(9000), kind="NONE"))
    assert "0.0.0.0_9000" in names(world, client())


def test_subnets_are_told_apart_on_the_wildcard_listener() -> None:
    world = world_of(
        service("one", port(5432), address="172.30.0.0/24", kind="NONE")
        + service("two", port(5432), address="172.30.1.0/24", kind="NONE")
    )
    listener = listeners(world, client())["0.0.0.0_5432"]
    ranges = [c.filter_chain_match.prefix_ranges[0].address_prefix for c in listener.filter_chains]
    assert ranges == ["172.30.0.0", "172.30.1.0"]
    assert listener.default_filter_chain.name == "PassthroughFilterChain"


def test_tls_services_without_addresses_are_told_apart_by_server_name() -> None:
    world = world_of(service("one", port(443, "TLS")) + service("two", port(443, "HTTPS")))
    listener = listeners(world, client())["0.0.0.0_443"]
    assert [list(c.filter_chain_match.server_names) for c in listener.filter_chains] == [
        ["one.example"],
        ["two.example"],
    ]
    assert inspector_names(listener) == ["tls_inspector"]


def test_mongo_ports_have_the_mongo_filter_before_the_tcp_proxy() -> None:
    world = world_of(service("docs", port(27017, "Mongo"), address="10.9.0.1"))
    chain = listeners(world, client())["10.9.0.1_27017"].filter_chains[0]
    assert [f.name for f in chain.filters] == ["envoy.filters.network.mongo_proxy", "envoy.filters.network.tcp_proxy"]


def test_an_ipv6_proxy_listens_on_ipv6() -> None:
    world = world_of(service("a", port(80, "HTTP")) + service("db", port(5432)))
    assert names(world, sidecar("2001:db8::1", namespace="shop")) == {
        "::_80",
        "::_5432",
        "virtualOutbound",
        "virtualInbound",
    }


def test_a_proxy_of_both_ip_versions_listens_at_addresses_of_both() -> None:
    world = world_of(service("a", port(80, "HTTP")) + service("db", port(5432)), mesh="proxyHttpPort: 3128")
    captured = {"0.0.0.0_80": ["::"], "0.0.0.0_5432": ["::"], "virtualOutbound": ["::"], "virtualInbound": ["::"]}
    bound = {"127.0.0.1_80": ["::1"], "127.0.0.1_5432": ["::1"]}
    for ip, other in (("10.1.1.1", "2001:db8::1"), ("2001:db8::1", "10.1.1.1")):
        both = {"namespace": "shop", "INSTANCE_IPS": f"{ip},{other}"}
        assert further(world, sidecar(ip, **both)) == captured | {"127.0.0.1_3128": ["::1"]}
        assert further(world, sidecar(ip, INTERCEPTION_MODE="NONE", **both)) == bound | {"127.0.0.1_3128": ["::1"]}


def test_an_address_that_a_sidecar_names_is_alone_and_is_no_other_listeners() -> None:
    sidecar_object = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  egress:
  - {port: {number: 80, name: a, protocol: HTTP}, bind: "::1", captureMode: NONE, hosts: ["./*"]}
  - {port: {number: 80, name: b, protocol: HTTP}, captureMode: NONE, hosts: ["./*"]}
  - {port: {number: 81, name: c, protocol: HTTP}, bind: 127.0.0.1, captureMode: NONE, hosts: ["./*"]}
"""
    world = world_of(service("a", port(80, "HTTP")) + service("c", port(81, "HTTP")) + sidecar_object)
    both = sidecar("10.1.1.1", namespace="shop", INSTANCE_IPS="10.1.1.1,2001:db8::1", INTERCEPTION_MODE="NONE")
    assert further(world, both) == {"::1_80": [], "127.0.0.1_80": [], "127.0.0.1_81": []}


def further(world: World, proxy: Proxy) -> dict[str, list[str]]:
    """The further addresses of each listener."""
    found = listeners(world, proxy)
    return {
        name: [each.address.socket_address.address for each in listener.additional_addresses]
        for name, listener in found.items()
    }


# -- without interception


def test_without_interception_listeners_bind_to_the_loopback_address() -> None:
    world = world_of(service("a", port(80, "HTTP"), address="10.9.0.1") + service("db", port(5432), address="10.9.0.2"))
    found = listeners(world, client(INTERCEPTION_MODE="NONE"))
    assert set(found) == {"127.0.0.1_80", "127.0.0.1_5432"}
    assert not found["127.0.0.1_80"].HasField("bind_to_port")
    assert not found["127.0.0.1_80"].filter_chains[0].HasField("filter_chain_match")
    assert not found["127.0.0.1_80"].HasField("default_filter_chain")


def test_without_interception_tls_services_that_share_a_port_are_told_apart_by_server_name() -> None:
    world = world_of(service("one", port(443, "TLS")) + service("two", port(443, "TLS")))
    listener = listeners(world, client(INTERCEPTION_MODE="NONE"))["127.0.0.1_443"]
    assert [list(c.filter_chain_match.server_names) for c in listener.filter_chains] == [
        ["one.example"],
        ["two.example"],
    ]
    # What passes through would come back to the same listener.
    assert not listener.HasField("default_filter_chain")


def test_an_unprivileged_proxy_does_not_bind_to_low_ports() -> None:
    world = world_of(service("a", f"{port(80, 'HTTP')}, {port(8080, 'HTTP')}"))
    proxy = client(INTERCEPTION_MODE="NONE", UNPRIVILEGED_POD="true")
    assert names(world, proxy) == {"127.0.0.1_8080"}


def test_tproxy_listeners_are_transparent() -> None:
    found = listeners(world_of(), client(INTERCEPTION_MODE="TPROXY"))
    assert found["virtualOutbound"].transparent.value and found["virtualInbound"].transparent.value
    assert "original_src" in inspector_names(found["virtualInbound"])


@pytest.mark.parametrize("mode", ["REDIRECT", "NONE"])
def test_a_proxy_may_ask_for_connections_spread_evenly_over_envoys_workers(mode: str) -> None:
    text = service("a", port(8080, "HTTP"))

    def balanced(**metadata: str) -> set[str]:
        proxy = client(INTERCEPTION_MODE=mode, HTTP_PROXY_PORT="9999", **metadata)
        return {
            n for n, found in listeners(world_of(text), proxy).items() if found.HasField("connection_balance_config")
        }

    assert balanced() == balanced(OUTBOUND_LISTENER_EXACT_BALANCE="false") == set()
    # As in Istio: the listeners of services, not those that hand on or forward.
    assert balanced(OUTBOUND_LISTENER_EXACT_BALANCE="true") == {
        "0.0.0.0_8080" if mode == "REDIRECT" else "127.0.0.1_8080"
    }
    assert balanced(INBOUND_LISTENER_EXACT_BALANCE="true") == ({"virtualInbound"} if mode == "REDIRECT" else set())


# -- the outbound traffic policy


@pytest.mark.parametrize(
    ("mode", "cluster"), [("ALLOW_ANY", "PassthroughCluster"), ("REGISTRY_ONLY", "BlackHoleCluster")]
)
def test_what_is_not_known_follows_the_mesh_policy(mode: str, cluster: str) -> None:
    world = world_of(mesh=f"outboundTrafficPolicy: {{mode: {mode}}}")
    rest = listeners(world, client())["virtualOutbound"].filter_chains[1]
    assert tcp(rest).cluster == cluster


SIDECAR = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
"""


def test_a_sidecar_may_send_what_is_not_known_to_an_egress_proxy() -> None:
    world = world_of(
        SIDECAR + "  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: out, port: {number: 443}}}\n"
    )
    rest = listeners(world, client())["virtualOutbound"].filter_chains[1]
    assert tcp(rest).cluster == "outbound|443||out.shop.svc.cluster.local"


# -- Sidecar egress listeners


def test_a_port_of_an_egress_listener_is_closed_to_the_listeners_below() -> None:
    world = world_of(
        service("a", port(80, "HTTP"), address="10.9.0.1")
        + service("b", port(80, "TCP"), month=2)
        + SIDECAR
        + '  egress: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["./a.example"]}, {hosts: ["./*"]}]\n'
    )
    listener = listeners(world, client())["0.0.0.0_80"]
    assert tcp(listener.default_filter_chain).cluster == "PassthroughCluster"


def test_an_egress_listener_may_be_a_unix_socket() -> None:
    world = world_of(
        service("a", port(80, "HTTP"))
        + SIDECAR
        + "  egress: [{port: {number: 0, name: http, protocol: HTTP}, bind: 'unix:///tmp/a.sock', "
        + 'captureMode: NONE, hosts: ["./a.example"]}]\n'
    )
    listener = listeners(world, client())["unix:///tmp/a.sock_0"]
    assert listener.address.pipe.path == "/tmp/a.sock"
    assert manager(listener.filter_chains[0]).rds.route_config_name == "unix:///tmp/a.sock"


def test_a_tcp_unix_socket_is_for_a_service_of_one_port() -> None:
    egress = (
        "  egress: [{port: {number: 0, name: tcp, protocol: TCP}, bind: 'unix:///tmp/a.sock', "
        + 'captureMode: NONE, hosts: ["./a.example"]}]\n'
    )
    one = world_of(service("a", port(80)) + SIDECAR + egress)
    chain = listeners(one, client())["unix:///tmp/a.sock_0"].filter_chains[0]
    assert tcp(chain).cluster == "outbound|80||a.example"
    two = world_of(service("a", f"{port(80)}, {port(81)}") + SIDECAR + egress)
    assert "unix:///tmp/a.sock_0" not in names(two, client())
    assert dropped(two, client()) == [("unix:///tmp/a.sock_0", "", "a.example")]


# -- the HTTP proxy


def test_the_http_proxy_listens_on_the_loopback_address() -> None:
    world = world_of(mesh="proxyHttpPort: 15080")
    chain = listeners(world, client())["127.0.0.1_15080"].filter_chains[0]
    assert manager(chain).rds.route_config_name == "http_proxy"
    assert manager(chain).http_protocol_options.allow_absolute_url.value
    assert "127.0.0.1_16080" in names(world, client(HTTP_PROXY_PORT="16080"))


# -- who shares a listener


def test_a_tcp_service_takes_what_is_not_http_on_a_shared_port() -> None:
    world = world_of(service("db", port(9000), month=1) + service("web", port(9000, "HTTP"), month=2))
    listener = listeners(world, client())["0.0.0.0_9000"]
    assert [is_http(c) for c in listener.filter_chains] == [True]
    assert tcp(listener.default_filter_chain).cluster == "outbound|9000||db.example"
    assert dropped(world, client()) == []


def test_of_two_tcp_services_on_the_wildcard_address_the_older_wins_and_the_conflict_is_told() -> None:
    world = world_of(service("young", port(9000), month=2) + service("old", port(9000), month=1))
    assert tcp(listeners(world, client())["0.0.0.0_9000"].filter_chains[0]).cluster == "outbound|9000||old.example"
    assert dropped(world, client()) == [("0.0.0.0_9000", "old.example", "young.example")]


def test_of_two_services_with_one_address_the_older_wins_and_the_conflict_is_told() -> None:
    world = world_of(
        service("old", port(9000), address="10.9.0.1") + service("new", port(9000), address="10.9.0.1", month=2)
    )
    assert tcp(listeners(world, client())["10.9.0.1_9000"].filter_chains[0]).cluster == "outbound|9000||old.example"
    assert dropped(world, client()) == [("10.9.0.1_9000", "old.example", "new.example")]


@pytest.mark.parametrize(("first", "second"), [("MySQL", "HTTP"), ("HTTP", "MySQL")])
def test_a_protocol_in_which_the_server_speaks_first_does_not_share_with_http(first: str, second: str) -> None:
    world = world_of(service("one", port(9000, first), month=1) + service("two", port(9000, second), month=2))
    assert dropped(world, client()) == [("0.0.0.0_9000", "one.example", "two.example")]


AUTO = "{number: 9080, name: web}"

BIND = '  egress: [{port: {number: 9080, name: web}, bind: 10.1.1.9, captureMode: NONE, hosts: ["./*"]}]\n'


@pytest.mark.parametrize("first", [AUTO, port(9080, "HTTP")], ids=["auto", "http"])
@pytest.mark.parametrize("second", [AUTO, port(9080, "HTTP"), port(9080, "GRPC")], ids=["auto", "http", "grpc"])
@pytest.mark.parametrize(
    ("address", "extra", "mode", "listener"),
    [
        ("", "", "REDIRECT", "0.0.0.0_9080"),
        ("", "", "NONE", "127.0.0.1_9080"),
        ("10.9.0.1", "", "NONE", "127.0.0.1_9080"),
        ("", SIDECAR + BIND, "REDIRECT", "10.1.1.9_9080"),
        ("10.9.0.0/24", "", "REDIRECT", "0.0.0.0_9080"),
    ],
    ids=["redirect", "none", "none-addresses", "sidecar-bind", "subnet"],
)
def test_the_host_header_decides_where_services_share_a_port(
    first: str, second: str, address: str, extra: str, mode: str, listener: str
) -> None:
    text = service("one", first, address=address) + service("two", second, address=address, month=2) + extra
    world, proxy = world_of(text), client(INTERCEPTION_MODE=mode)
    found = listeners(world, proxy)[listener]
    assert [manager(c).rds.route_config_name for c in found.filter_chains if is_http(c)] == ["9080"]
    hosts = planned_hosts(world.view, target(world, proxy).scope, TableName(9080))
    assert {h.name for h in hosts} == {"one.example:9080", "two.example:9080"}


def test_two_services_of_undeclared_protocol_at_one_address_are_told_apart_by_host() -> None:
    one, two = (service(name, AUTO, address="10.9.0.1", month=n) for n, name in ((1, "one"), (2, "two")))
    world = world_of(one)
    assert _table_at(world, "10.9.0.1_9080") == "one.example:9080"
    update(world, two)
    assert _table_at(world, "10.9.0.1_9080") == "9080"
    assert dropped(world, client()) == [("10.9.0.1_9080", "one.example", "two.example")]


def _table_at(world: World, listener: str) -> str:
    return str(manager(listeners(world, client())[listener].filter_chains[0]).rds.route_config_name)


@pytest.mark.parametrize("mode", ["REDIRECT", "NONE"])
def test_what_is_not_http_goes_to_the_older_service_and_the_conflict_is_told(mode: str) -> None:
    world, proxy = world_of(service("one", AUTO) + service("two", AUTO, month=2)), client(INTERCEPTION_MODE=mode)
    name = "0.0.0.0_9080" if mode == "REDIRECT" else "127.0.0.1_9080"
    listener = listeners(world, proxy)[name]
    rest = listener.default_filter_chain if listener.HasField("default_filter_chain") else listener.filter_chains[-1]
    assert tcp(rest).cluster == "outbound|9080||one.example"
    assert dropped(world, proxy) == [(name, "one.example", "two.example")]


@pytest.mark.parametrize("first", ["db", "web"])
def test_requests_never_reach_a_tcp_service_that_shares_a_port_with_one_of_undeclared_protocol(first: str) -> None:
    db, web = service("db", port(9080), month=1 + (first != "db")), service("web", AUTO, month=1 + (first != "web"))
    world, proxy = world_of(db + web), client(INTERCEPTION_MODE="NONE")
    listener = listeners(world, proxy)["127.0.0.1_9080"]
    assert [manager(c).rds.route_config_name for c in listener.filter_chains if is_http(c)] == ["9080"]
    other = "web" if first == "db" else "db"
    assert dropped(world, proxy) == [("127.0.0.1_9080", f"{first}.example", f"{other}.example")]


# -- routes of connections


def virtual_service(name: str, routes: str, *, host: str = "db.example", month: int = 1) -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop, creationTimestamp: "2024-{month:02}-01T00:00:00Z"}}
spec:
  hosts: ["{host}"]
  {routes}
"""


DB = service("db", port(5432), address="10.9.0.1") + service("new", port(5432), address="10.9.0.2")


def clusters(chains: Iterable[object]) -> list[str]:
    return [tcp(c).cluster for c in chains]  # type: ignore[arg-type]


def test_tcp_routes_split_by_weight_and_leave_out_weight_zero() -> None:
    routes = (
        "tcp: [{route: [{destination: {host: db.example}, weight: 80}, {destination: {host: new.example}, weight: 20},"
        " {destination: {host: gone.example}, weight: 0}]}]"
    )
    world = world_of(DB + virtual_service("split", routes))
    proxy = tcp(listeners(world, client())["10.9.0.1_5432"].filter_chains[0])
    assert proxy.stat_prefix == "split.shop"
    assert [(c.name, c.weight) for c in proxy.weighted_clusters.clusters] == [
        ("outbound|5432||db.example", 80),
        ("outbound|5432||new.example", 20),
    ]


def test_a_match_by_subnet_leaves_the_rest_to_the_service() -> None:
    routes = "tcp: [{match: [{destinationSubnets: [10.9.0.0/28]}], route: [{destination: {host: new.example}}]}]"
    listener = listeners(world_of(DB + virtual_service("part", routes)), client())["10.9.0.1_5432"]
    assert clusters(listener.filter_chains) == ["outbound|5432||new.example"]
    assert tcp(listener.default_filter_chain).cluster == "outbound|5432||db.example"


@pytest.mark.parametrize(
    "match",
    [
        "{port: 1}",
        "{sourceLabels: {app: other}}",
        "{sourceNamespace: elsewhere}",
        "{gateways: [shop/edge]}",
    ],
)
def test_a_match_that_is_for_others_leaves_no_trace(match: str) -> None:
    routes = (
        f"gateways: [mesh, shop/edge]\n  tcp: [{{match: [{match}], route: [{{destination: {{host: new.example}}}}]}}]"
    )
    listener = listeners(world_of(DB + virtual_service("other", routes)), client())["10.9.0.1_5432"]
    assert clusters(listener.filter_chains) == ["outbound|5432||db.example"]


def test_matches_on_the_proxys_own_labels_namespace_and_port_apply() -> None:
    match = "{port: 5432, sourceLabels: {app: client}, sourceNamespace: shop, gateways: [mesh]}"
    routes = f"tcp: [{{match: [{match}], route: [{{destination: {{host: new.example}}}}]}}]"
    listener = listeners(world_of(DB + virtual_service("mine", routes)), client())["10.9.0.1_5432"]
    assert clusters(listener.filter_chains) == ["outbound|5432||new.example"]


def test_tls_routes_match_by_server_name_and_the_first_of_equals_counts() -> None:
    routes = (
        "tls: [{match: [{sniHosts: [s.example]}], route: [{destination: {host: one.example}}]},"
        " {match: [{sniHosts: [s.example]}], route: [{destination: {host: two.example}}]}]"
    )
    world = world_of(
        service("s", port(443, "TLS"))
        + service("one", port(443, "TLS"), address="10.9.0.1")
        + service("two", port(443, "TLS"), address="10.9.0.2")
        + virtual_service("s", routes, host="s.example")
    )
    listener = listeners(world, client())["0.0.0.0_443"]
    assert clusters(listener.filter_chains) == ["outbound|443||one.example"]
    assert list(listener.filter_chains[0].filter_chain_match.server_names) == ["s.example"]


def test_source_ip_hashing_timeouts_and_tunnel_of_a_rule_reach_the_tcp_proxy() -> None:
    rule = """
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: db, namespace: shop}
spec:
  host: db.example
  trafficPolicy:
    loadBalancer: {consistentHash: {useSourceIp: true}}
    connectionPool: {tcp: {idleTimeout: 20s, maxConnectionDuration: 1h}}
    tunnel: {targetHost: far.example, targetPort: 99, protocol: POST}
"""
    proxy = tcp(listeners(world_of(DB + rule), client())["10.9.0.1_5432"].filter_chains[0])
    assert proxy.hash_policy[0].HasField("source_ip")
    assert proxy.idle_timeout.seconds == 20
    assert proxy.max_downstream_connection_duration.seconds == 3600
    assert proxy.tunneling_config.hostname == "far.example:99" and proxy.tunneling_config.use_post


def test_the_idle_timeout_of_node_metadata_reaches_the_tcp_proxy() -> None:
    proxy = tcp(listeners(world_of(DB), client(IDLE_TIMEOUT="1m30s"))["10.9.0.1_5432"].filter_chains[0])
    assert proxy.idle_timeout.seconds == 90
    ignored = tcp(listeners(world_of(DB), client(IDLE_TIMEOUT="soon"))["10.9.0.1_5432"].filter_chains[0])
    assert not ignored.HasField("idle_timeout")


def test_the_meshs_pattern_names_the_statistics_of_tcp_proxies() -> None:
    world = world_of(DB, mesh="outboundClusterStatName: out_%SERVICE_FQDN%_%SERVICE_PORT%")
    proxy = tcp(listeners(world, client())["10.9.0.1_5432"].filter_chains[0])
    assert (proxy.stat_prefix, proxy.cluster) == ("out_db.example_5432", "outbound|5432||db.example")


# -- what a change costs


def calls(world: World, function: str) -> int:
    """Fails for a name of no function, so that a renamed one is noticed."""
    return world.memo.statistics().calls[function]


def test_an_edit_of_a_virtual_service_rebuilds_only_the_listeners_of_its_hosts() -> None:
    many = "".join(service(f"s{i}", port(5000), address=f"10.8.0.{i}") for i in range(50))
    routes = "tcp: [{route: [{destination: {host: new.example}}]}]"
    world = world_of(DB + many + virtual_service("v", routes))
    watch = Watch(world.memo, lambda: None)
    before = resources(world, client(), watch)
    counted = {name: calls(world, name) for name in ("service_listeners", "outbound_listener")}
    update(world, virtual_service("v", routes.replace("new", "db")))
    after = resources(world, client(), watch)
    assert {n for n in after if after[n] != before[n]} == {"10.9.0.1_5432"}
    assert calls(world, "service_listeners") == counted["service_listeners"]
    assert calls(world, "outbound_listener") == counted["outbound_listener"] + 1


def test_another_http_service_on_a_port_leaves_its_listener_alone() -> None:
    world = world_of(service("a", port(80, "HTTP")))
    watch = Watch(world.memo, lambda: None)
    resources(world, client(), watch)
    built = calls(world, "outbound_listener")
    update(world, service("b", port(80, "HTTP"), month=2))
    resources(world, client(), watch)
    assert calls(world, "outbound_listener") == built


def test_an_edit_of_unrelated_mesh_settings_leaves_listeners_alone() -> None:
    world = world_of(DB, mesh="connectTimeout: 5s")
    watch = Watch(world.memo, lambda: None)
    resources(world, client(), watch)
    built = calls(world, "outbound_listener") + calls(world, "virtual_inbound")
    world.apply([Upsert("test", MeshConfigValue(default_mesh()))])
    resources(world, client(), watch)
    assert calls(world, "outbound_listener") + calls(world, "virtual_inbound") == built


# -- addresses given to services that have none


DNS = {"DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true"}


def test_where_a_proxy_answers_dns_tcp_services_without_addresses_have_listeners_of_their_own() -> None:
    world = world_of(service("a", port(5432)) + service("b", port(5432)))
    assert "0.0.0.0_5432" in names(world, client())
    found = listeners(world, client(**DNS))
    own = {name: found[name] for name in found if name.startswith("241.")}
    assert len(own) == 2 and "0.0.0.0_5432" not in found
    assert {tcp(x.filter_chains[0]).cluster for x in own.values()} == {
        "outbound|5432||a.example",
        "outbound|5432||b.example",
    }


def test_services_of_a_registry_have_them_too_and_a_proxy_without_ipv4_has_those_of_ipv6() -> None:
    world = world_of()
    for name in "ab":
        host = f"db-{name}.service.consul"
        found = Service(host, "default", (Port(5432, "tcp", Protocol.TCP),), declared_by_users=False)
        endpoint = Endpoint("10.0.0.1", 5432, "tcp")
        world.apply([Upsert(SOURCE, found), Upsert(SOURCE, Endpoints(found.key, (endpoint,)))])
    assert "0.0.0.0_5432" in names(world, client())
    own = {name for name in names(world, client(**DNS)) if name.endswith("_5432")}
    assert len(own) == 2 and all(name.startswith("241.") for name in own)
    six = sidecar("fd00::1", namespace="shop", **DNS)
    own = {name for name in names(world, six) if name.endswith("_5432")}
    assert len(own) == 2 and all(name.startswith("2001:2::") for name in own)
    both = sidecar("10.1.1.1", namespace="shop", INSTANCE_IPS="10.1.1.1,fd00::1", **DNS)
    own = {name.partition(":")[0].partition(".")[0] for name in names(world, both) if name.endswith("_5432")}
    assert own == {"241", "2001"}


@pytest.mark.parametrize("switch", DNS)
def test_addresses_are_given_only_where_both_switches_are_on(switch: str) -> None:
    world = world_of(service("a", port(5432)))
    assert "0.0.0.0_5432" in names(world, client(**{switch: "true"}))


# -- what Envoy would refuse


def test_addresses_written_in_several_ways_are_one_listener() -> None:
    text = service("a", port(90), address='"2001:db8::1", "2001:0db8:0::1"')
    text += service("b", port(90), address='"2001:db8:0:0::1"', month=2)
    world = world_of(text)
    assert {name for name in names(world, client()) if "2001" in name} == {"2001:db8::1_90"}
    assert dropped(world, client()) == [("2001:db8::1_90", "a.example", "b.example")]


def test_hosts_that_differ_in_case_are_one_server_name() -> None:
    world = world_of(
        service("a", port(443, "TLS"), host="a.example") + service("b", port(443, "TLS"), host="A.example")
    )
    matches = [c.filter_chain_match.server_names for c in listeners(world, client())["0.0.0.0_443"].filter_chains]
    assert [list(found) for found in matches] == [["a.example"]]


def test_a_host_that_no_server_name_matches_is_a_conflict_and_keeps_its_neighbours() -> None:
    world = world_of(
        service("a", port(443, "TLS"), host="'*-x.example'", kind="NONE") + service("b", port(443, "TLS"), month=2)
    )
    (chain,) = listeners(world, client())["0.0.0.0_443"].filter_chains
    assert list(chain.filter_chain_match.server_names) == ["b.example"]
    assert dropped(world, client()) == [("0.0.0.0_443", "", "*-x.example")]


@pytest.mark.parametrize("protocol", ["HTTP", "TCP"])
@pytest.mark.parametrize("number", [15001, 15006])
def test_ports_at_which_the_sidecar_listens_for_captured_connections_are_its_own(number: int, protocol: str) -> None:
    world = world_of(service("a", port(number, protocol)))
    assert f"0.0.0.0_{number}" not in names(world, client())
    assert dropped(world, client()) == [(f"0.0.0.0_{number}", "", "a.example")]
    assert f"127.0.0.1_{number}" in names(world, client(INTERCEPTION_MODE="NONE"))


@pytest.mark.parametrize("number", [15021, 15090])
def test_ports_of_readiness_and_metrics_are_the_sidecars_own_at_the_wildcard_address(number: int) -> None:
    world = world_of(service("a", port(number, "HTTP")) + service("b", port(number, "TCP"), address="10.2.0.9"))
    assert f"0.0.0.0_{number}" not in names(world, client())
    assert f"10.2.0.9_{number}" in names(world, client())
    assert dropped(world, client()) == [(f"0.0.0.0_{number}", "", "a.example")]


def test_a_listener_that_binds_its_port_is_another_than_one_of_captured_connections() -> None:
    sidecar_config = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: shop}
spec:
  egress:
  - {port: {number: 443, name: tls, protocol: TLS}, bind: 0.0.0.0, captureMode: NONE, hosts: ["*/*"]}
  - {hosts: ["*/*"]}
"""
    text = service("a", port(443, "TLS"))
    assert "0.0.0.0_443" in names(world_of(text), client())
    world = world_of(text + sidecar_config)
    assert {name for name in names(world, client()) if "443" in name} == {"0.0.0.0_443_bound"}
    assert "0.0.0.0_443" in names(world, client(INTERCEPTION_MODE="NONE"))
