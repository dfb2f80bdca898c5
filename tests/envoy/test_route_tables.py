"""Route tables of sidecars: which virtual hosts they have, under which names, and who routes them."""

from __future__ import annotations

import attrs
import pytest
from envoy.config.route.v3 import route_pb2

from mesh_pilot.mesh.names.hosts import service_names
from mesh_pilot.mesh.virtual_hosts.sidecar_tables import TableName, parse_table
from mesh_pilot.model.events import Upsert
from mesh_pilot.model.service import Port, Protocol, Resolution, Service
from tests.support.listeners import listeners, tcp
from tests.support.plans import outbound_clusters
from tests.support.routing import (
    clusters,
    config,
    gateway_table,
    plain,
    resource,
    router,
    service,
    table,
    target,
    virtual_service,
)
from tests.support.worlds import SOURCE, sidecar, world_of

WEB = "web.shop.svc.cluster.local"


def rule(name: str, host: str, *, namespace: str = "shop", age: int = 0, more: str = "") -> str:
    """A VirtualService that can be told by its route's name."""
    http = f"http: [{{name: {name}, route: [{{destination: {{host: {WEB}}}}}]}}]"
    return virtual_service(name, f"{{hosts: ['{host}'], {more} {http}}}", namespace=namespace, age=age)


def names(text: str, port: str = "80", **proxy: str) -> dict[str, list[str]]:
    """Virtual hosts with the names of their routes."""
    found = table(world_of(text), port, sidecar(**{"namespace": "shop", **proxy}))
    return {name: [route.name for route in host.routes] for name, host in found.items()}


def test_a_table_holds_every_http_service_of_its_port_and_then_everything_else() -> None:
    text = service("web") + service("api", ports="80 grpc GRPC, 81 http HTTP") + service("db", ports="80 tcp TCP")
    assert names(text) == {
        "api.shop.svc.cluster.local:80": ["default"],
        f"{WEB}:80": ["default"],
        "allow_any": ["allow_any"],
    }


def test_a_service_is_known_by_the_names_that_resolve_for_the_client() -> None:
    world = world_of(service("web", addresses="10.0.0.1, '2001:db8::1', 10.1.0.0/16"))
    own = table(world, "80")[f"{WEB}:80"].domains
    assert list(own) == [
        *(WEB, f"{WEB}.", "web", "web.shop.svc", "web.shop", "10.0.0.1", "[2001:db8::1]"),
    ]
    other = table(world, "80", sidecar(namespace="lab"))[f"{WEB}:80"].domains
    assert "web" not in other and "web.shop" in other and "web.shop.svc" in other


@pytest.mark.parametrize("host", [f"{WEB}.example.com", "web.shop.svc.other.local", "web.shop.svc.evil.example"])
def test_a_host_of_another_domain_has_no_short_names(host: str) -> None:
    found = table(world_of(service(host) + service("web", age=1)), "80", sidecar(namespace="shop"))
    assert list(found[f"{host}:80"].domains) == [host, f"{host}."]
    assert {"web", "web.shop", "web.shop.svc"} <= set(found[f"{WEB}:80"].domains)


def test_outside_of_a_cluster_short_names_are_what_a_host_does_not_share_with_the_clients_domain() -> None:
    text = service("web.service.consul") + service("a.b.service.consul") + service("example.com")
    world = world_of(text)
    client = attrs.evolve(sidecar(namespace="shop"), dns_domain="service.consul")
    found = {name: list(host.domains) for name, host in table(world, "80", client).items()}
    assert found["web.service.consul:80"] == ["web.service.consul", "web.service.consul.", "web"]
    assert found["a.b.service.consul:80"][2:] == ["a.b", "a.b.service"]
    assert found["example.com:80"] == ["example.com", "example.com."]


def test_a_domain_belongs_to_the_first_that_claims_it_whatever_its_case() -> None:
    text = service("old.example.com", addresses="10.0.0.1") + service("New.example.com", addresses="10.0.0.1", age=1)
    text += service("NEW.example.com", namespace="lab", age=2)
    found = table(world_of(text))
    assert "10.0.0.1" in found["old.example.com:80"].domains
    assert list(found["new.example.com:80"].domains) == ["new.example.com", "new.example.com."]
    assert len(found) == 3


def test_a_host_that_ends_with_a_dot_competes_with_the_service_of_that_name() -> None:
    found = table(world_of(service("web") + rule("dotted", f"{WEB}.")), "80", sidecar(namespace="shop"))
    domains = [domain for host in found.values() for domain in host.domains]
    assert len(domains) == len(set(domains))
    assert f"{WEB}." in found[f"{WEB}.:80"].domains, "whoever spells it has it"


def test_a_short_name_does_not_take_what_another_service_is_called() -> None:
    found = table(world_of(service("web") + service("web.shop", age=1)))
    assert "web.shop" not in found[f"{WEB}:80"].domains
    assert "web.shop" in found["web.shop:80"].domains


def test_headless_services_of_kubernetes_are_also_known_by_their_pods() -> None:
    headless = Service(WEB, "shop", resolution=Resolution.PASSTHROUGH, headless=True)
    found, short = service_names(headless, "lab.svc.cluster.local")
    assert found == (WEB, "web.shop", "web.shop.svc", f"*.{WEB}", "*.web.shop", "*.web.shop.svc")
    assert short == ("web.shop", "web.shop.svc")
    world = world_of("")
    world.apply([Upsert(SOURCE, attrs.evolve(headless, ports=(Port(80, "http", Protocol.HTTP),)))])
    domains = table(world)[f"{WEB}:80"].domains
    assert {WEB, f"{WEB}.", f"*.{WEB}", f"*.{WEB}."} < set(domains)


def test_of_two_virtual_services_for_a_host_the_older_counts_alone() -> None:
    text = service("web") + rule("young", "web", age=2) + rule("old", WEB, age=1)
    assert names(text)[f"{WEB}:80"] == ["old"]


def test_an_exact_host_beats_an_older_wildcard() -> None:
    text = service("a.example.com") + service("b.example.com")
    text += rule("wild", "*.example.com", age=1) + rule("exact", "b.example.com", age=2)
    assert names(text) == {"a.example.com:80": ["wild"], "b.example.com:80": ["exact"], "allow_any": ["allow_any"]}


def test_what_is_exported_to_the_clients_namespace_alone_comes_first() -> None:
    text = service("web") + rule("public", "web", age=1) + rule("private", "web", age=2, more="exportTo: ['.'],")
    assert names(text)[f"{WEB}:80"] == ["private"]
    assert names(text, namespace="lab")[f"{WEB}:80"] == ["public"]


def test_a_virtual_service_for_a_host_with_no_service_is_in_table_80_only() -> None:
    text = service("web", ports="80 http HTTP, 8080 http2 HTTP") + rule("virtual", "virtual.example.com")
    assert names(text)["virtual.example.com:80"] == ["virtual"]
    assert "virtual.example.com:8080" not in names(text, "8080")


def test_its_hosts_without_service_follow_the_ports_of_those_with_one() -> None:
    both = virtual_service("both", f"{{hosts: [web, virtual.example.com], http: [{{name: both, {_to('web')}}}]}}")
    assert names(service("web", ports="8080 http HTTP") + both, "8080") == {
        "virtual.example.com:8080": ["both"],
        f"{WEB}:8080": ["both"],
        "allow_any": ["allow_any"],
    }


def _to(host: str, more: str = "") -> str:
    return f"route: [{{destination: {{host: {host}{more}}}}}]"


def test_a_tcp_service_is_no_unknown_host() -> None:
    assert names(service("web", ports="80 tcp TCP") + rule("vs", "web")) == {"allow_any": ["allow_any"]}


def test_a_virtual_service_with_nothing_for_a_client_is_as_if_it_were_not_there() -> None:
    gold = virtual_service(
        "gold",
        f"{{hosts: [web], http: [{{name: gold, match: [{{sourceLabels: {{tier: gold}}}}], {_to('web')}}}]}}",
    )
    world = world_of(service("web") + gold + rule("other", "web", age=1))
    assert [r.name for r in table(world)[f"{WEB}:80"].routes] == ["other"]
    golden = sidecar(namespace="shop", labels={"tier": "gold"})
    assert [r.name for r in table(world, "80", golden)[f"{WEB}:80"].routes] == ["gold"]


def test_hosts_that_nobody_declared_are_let_through_refused_or_sent_to_the_egress_proxy() -> None:
    def policy(text: str) -> str:
        return service("web") + config("Sidecar", "default", f"{{egress: [{{hosts: ['*/*']}}] {text}}}")

    open_, closed = ", outboundTrafficPolicy: {mode: ALLOW_ANY", ", outboundTrafficPolicy: {mode: REGISTRY_ONLY}"
    proxy = "egressProxy: {host: out.example.com, port: {number: 443}}}"
    assert clusters(table(world_of(policy("")))["allow_any"]) == ["PassthroughCluster"]
    assert clusters(table(world_of(policy(f"{open_}, {proxy}")))["allow_any"]) == ["outbound|443||out.example.com"]
    blocked = table(world_of(policy(closed)))["block_all"]
    assert plain(blocked.routes[0])["direct_response"] == {"status": 502}
    mesh = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}"
    assert "block_all" in table(world_of(policy(""), mesh=mesh))


def test_a_detected_protocol_has_a_table_for_its_service_alone() -> None:
    world = world_of(service("web", ports="9000 main") + service("api", ports="9000 http HTTP"))
    found = table(world, f"{WEB}:9000")
    assert {name: list(host.domains) for name, host in found.items()} == {f"{WEB}:9000": ["*"]}


def test_the_http_proxys_table_has_all_ports_and_hosts_without_one_are_on_80() -> None:
    found = table(world_of(service("web", ports="80 http HTTP, 8080 alt HTTP", addresses="10.0.0.1")), "http_proxy")
    on_80, on_8080 = found[f"{WEB}:80"].domains, found[f"{WEB}:8080"].domains
    assert {"web", "web:80", "10.0.0.1"} <= set(on_80)
    assert {"web:8080", "10.0.0.1:8080"} <= set(on_8080)
    assert all(domain.endswith(":8080") for domain in on_8080)


def test_there_a_destination_without_a_port_means_the_only_one_of_its_service() -> None:
    text = service("web", ports="80 http HTTP, 81 alt HTTP") + service("api", ports="8080 http HTTP")
    text += virtual_service(
        "web", f"{{hosts: [web], http: [{{match: [{{port: 81}}], {_to('api')}}}, {{{_to('web')}}}]}}"
    )
    found = table(world_of(text), "http_proxy")
    assert clusters(found[f"{WEB}:81"]) == ["outbound|8080||api.shop.svc.cluster.local"]
    assert clusters(found[f"{WEB}:80"]) == [f"outbound|80||{WEB}"]


def test_an_egress_listener_with_a_port_has_only_its_own_hosts() -> None:
    with_port = f"{{port: {{number: 81, name: a, protocol: HTTP}}, hosts: ['./{WEB}']}}"
    egress = f"{{egress: [{with_port}, {{hosts: ['./*']}}]}}"
    ports = "80 http HTTP, 81 alt HTTP"
    world = world_of(service("web", ports=ports) + service("api", ports=ports) + config("Sidecar", "default", egress))
    assert list(table(world, "81")) == [f"{WEB}:81", "allow_any"]
    assert sorted(table(world, "80")) == ["allow_any", "api.shop.svc.cluster.local:80", f"{WEB}:80"]


def test_an_egress_listener_on_a_unix_socket_has_a_table_by_its_address() -> None:
    socket = (
        "{port: {number: 0, name: a, protocol: HTTP}, bind: 'unix:///run/a', hosts: ['./web.shop.svc.cluster.local']}"
    )
    egress = f"{{egress: [{socket}, {{hosts: ['./*']}}]}}"
    world = world_of(service("web", ports="8080 http HTTP") + service("api") + config("Sidecar", "default", egress))
    found = table(world, "unix:///run/a")
    assert list(found) == [f"{WEB}:8080", "allow_any"]
    assert clusters(found[f"{WEB}:8080"]) == [f"outbound|8080||{WEB}"]
    assert list(table(world, "unix:///run/b")) == list(table(world, "http_proxy"))


def test_a_table_whose_listener_is_gone_is_empty_but_for_everything_else() -> None:
    world = world_of(
        config("Sidecar", "default", "{egress: [{port: {number: 81, name: a, protocol: HTTP}, hosts: ['./*']}]}")
    )
    assert list(table(world, "80")) == ["allow_any"]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("8080", TableName(8080)),
        ("a.example.com:80", TableName(80, "a.example.com:80")),
        ("http_proxy", TableName()),
        ("unix:///a", TableName(bind="unix:///a")),
        ("http.80", None),
        ("", None),
        (":80", None),
        ("0", None),
    ],
)
def test_names_of_tables(name: str, meaning: TableName | None) -> None:
    assert parse_table(name) == meaning


def test_a_name_that_no_table_has_is_not_served() -> None:
    assert resource(world_of(service("web")), "nonsense") is None


def test_a_joined_table_has_the_bytes_that_protobuf_writes() -> None:
    text = "".join(service(f"s{i}.example.com", addresses=f"10.0.0.{i}") for i in range(20))
    found = resource(world_of(text + rule("wild", "*.example.com")), "80")
    assert found is not None
    message = route_pb2.RouteConfiguration.FromString(found.body)
    assert message.SerializeToString(deterministic=True) == found.body
    assert len(message.virtual_hosts) == 21 and not message.validate_clusters.value


def test_a_table_ignores_the_port_of_a_host_unless_it_is_for_all_ports() -> None:
    world = world_of(service("web", ports="80 http HTTP"))
    found = {}
    for name in ("80", "http_proxy"):
        table = resource(world, name)
        assert table is not None
        message = route_pb2.RouteConfiguration.FromString(table.body)
        assert message.SerializeToString(deterministic=True) == table.body
        assert message.max_direct_response_body_size_bytes.value == 1024 * 1024
        domains = [domain for host in message.virtual_hosts for domain in host.domains if domain.startswith(WEB)]
        found[name] = (message.ignore_port_in_host_matching, domains)
    names = [WEB, f"{WEB}."]
    assert found["80"] == (True, names)
    assert found["http_proxy"] == (False, [form for name in names for form in (name, f"{name}:80")])


def test_a_table_says_which_configs_it_came_from() -> None:
    found = resource(world_of(service("web") + service("api") + rule("vs", "web")), "80")
    assert found is not None
    assert sorted(str(key) for key in found.configs) == [
        "ServiceEntry/shop/api.shop.svc.cluster.local",
        "VirtualService/shop/vs",
    ]


def _two_of_one_host() -> str:
    """A host in two namespaces: an old public service on 81, and a young one that ``shop`` alone may see on 82."""
    young = service("db.example", namespace="b", ports="82 http HTTP", age=9).replace(
        "spec: {", "spec: {exportTo: [shop], "
    )
    return service("db.example", namespace="a", ports="81 http HTTP") + young


def test_a_host_in_two_namespaces_means_to_routes_what_it_means_to_clusters() -> None:
    own = service("web", ports="80 http HTTP")
    vs = virtual_service("all", "{hosts: ['*'], gateways: [gw], http: [{route: [{destination: {host: db.example}}]}]}")
    servers = "[{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]"
    gateway = config("Gateway", "gw", f"{{selector: {{istio: edge}}, servers: {servers}}}")
    world = world_of(own + vs + gateway + _two_of_one_host())
    edge = router(namespace="shop")
    seen = target(world, edge)
    made = [c for c in outbound_clusters(world.view, seen.scope, seen.locality) if c.endswith("db.example")]
    routed = [r.route.cluster for host in gateway_table(world, proxy=edge).values() for r in host.routes]
    assert routed == made == ["outbound|82||db.example"]


def test_a_sidecar_that_imports_one_namespace_means_that_ones_service() -> None:
    scoped = config("Sidecar", "default", "{egress: [{hosts: ['a/*', './*']}]}")
    vs = virtual_service("tcp", "{hosts: [gate.example], tcp: [{route: [{destination: {host: db.example}}]}]}")
    gate = service("gate.example", ports="5432 tcp TCP", addresses="10.9.0.1")
    world = world_of(scoped + vs + gate + _two_of_one_host())
    found = listeners(world, sidecar(namespace="shop"))["10.9.0.1_5432"]
    assert tcp(found.filter_chains[0]).cluster == "outbound|81||db.example"
