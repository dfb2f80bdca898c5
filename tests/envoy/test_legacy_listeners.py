"""Where the security kinds of Istio 1.1 stand among filters: at which ports, gateways and proxyless gRPC servers."""

from __future__ import annotations

from typing import Any

from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.jwt_authn.v3.config_pb2 import JwtAuthentication
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.filters.jwt_authn import UNUSABLE_JWKS
from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.envoy.grpc.listeners import INBOUND_PREFIX, server_listener
from mesh_pilot.model.events import KeySet, Upsert
from mesh_pilot.world import World
from tests.support.legacy import access, binding, mesh_policy, policy, role
from tests.support.listeners import is_http, listeners, manager, resources
from tests.support.routing import target
from tests.support.upstreams import addresses, endpoints
from tests.support.worlds import sidecar, update, world_of

JWT, HTTP_RBAC, TCP_RBAC = (f"envoy.filters.{name}" for name in ("http.jwt_authn", "http.rbac", "network.rbac"))
GUARDS = (JWT, HTTP_RBAC, TCP_RBAC)
RELAXED = "peers: [{mtls: {mode: PERMISSIVE}}]"
TOKENS = f"{RELAXED}, origins: [{{jwt: {{issuer: me, jwksUri: 'https://me.example.com/keys'}}}}]"
ALL = role("all", "[{services: ['*']}]") + binding("all", "[{user: cluster.local/ns/shop/sa/web}]")

WEB = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}, {number: 82, name: any}]
  endpoints: [{address: 10.1.1.1, labels: {app: web}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec:
  selector: {istio: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
"""
PROXY = sidecar("10.1.1.1", namespace="shop", labels={"app": "web"})


def guards(world: World) -> dict[tuple[int, bool], set[str]]:
    """The filters of policies at each port (0: any other), for requests (True) and for connections."""
    found: dict[tuple[int, bool], set[str]] = {}
    for chain in listeners(world, PROXY)["virtualInbound"].filter_chains:
        port, http = chain.filter_chain_match.destination_port.value, is_http(chain)
        filters = manager(chain).http_filters if http else chain.filters
        names = {f.name for f in filters if f.name in GUARDS}
        assert names == found.setdefault((port, http), names)
    return {key: names for key, names in found.items() if names}


def edge(world: World) -> list[str]:
    """The filters of policies for requests at the gateway."""
    seen = target(world, sidecar("10.1.1.1", namespace="shop", labels={"istio": "edge"}, node_type="router"))
    (query,) = gateway_listeners(world.view, seen.workload).values()
    resource = query.get(world.view)
    assert resource is not None
    return [
        f.name for f in manager(Listener.FromString(resource.body).filter_chains[0]).http_filters if f.name in GUARDS
    ]


def grpc(world: World) -> list[Any]:
    """The rules that a proxyless gRPC server at port 80 enforces."""
    resource = server_listener(world.view, target(world, PROXY).workload, f"{INBOUND_PREFIX}10.1.1.1:80")
    assert resource is not None
    filters = manager(Listener.FromString(resource.body).filter_chains[0]).http_filters
    return [RBAC.FromString(f.typed_config.value).rules for f in filters if f.name == HTTP_RBAC]


def test_without_these_kinds_there_is_nothing() -> None:
    world = world_of(WEB + ALL)
    assert (guards(world), edge(world), grpc(world)) == ({}, [], [])


def test_roles_are_at_the_ports_of_controlled_services() -> None:
    included = access("ON_WITH_INCLUSION", "inclusion: {services: [web.shop.svc.cluster.local]}")
    world = world_of(WEB + ALL + included)
    assert guards(world) == {
        (80, True): {HTTP_RBAC},
        (81, False): {TCP_RBAC},
        (82, True): {HTTP_RBAC},
        (82, False): {TCP_RBAC},
    }
    update(world, access("ON"))
    assert guards(world).keys() >= {(0, True), (0, False)}, "and at those of no service"
    assert edge(world) == [], "not at gateways, as in Istio"
    (rules,) = grpc(world)
    assert list(rules.policies) == ["ns[shop]-role[all]-binding[all]-rule[0]"]


def test_a_policy_asks_for_tokens_at_the_ports_that_it_names() -> None:
    world = world_of(WEB + policy("web", f"targets: [{{name: web, ports: [{{number: 80}}, {{name: tcp}}]}}], {TOKENS}"))
    assert guards(world) == {(80, True): {JWT}}
    assert edge(world) == [JWT]
    (rules,) = grpc(world)
    assert not rules.policies, "nobody can check a token there: nothing passes"
    update(world, policy("web", f"targets: [{{name: web}}], {TOKENS}, originIsOptional: true"))
    assert guards(world) == {(80, True): {JWT}, (82, True): {JWT}}
    assert grpc(world) == []


def test_a_port_without_a_protocol_does_not_let_a_token_be_evaded() -> None:
    world = world_of(WEB + policy("web", f"targets: [{{name: web}}], {TOKENS}"))
    assert guards(world) == {(80, True): {JWT}, (82, True): {JWT}, (82, False): {TCP_RBAC}}


def test_keys_of_issuers_come_from_their_source() -> None:
    world = world_of(WEB + mesh_policy(TOKENS))

    def keys() -> str:
        chains = [c for c in listeners(world, PROXY)["virtualInbound"].filter_chains if is_http(c)]
        (found,) = (f for f in manager(chains[0]).http_filters if f.name == JWT)
        (provider,) = JwtAuthentication.FromString(found.typed_config.value).providers.values()
        assert provider.forward
        return provider.local_jwks.inline_string

    assert keys() == UNUSABLE_JWKS
    world.apply([Upsert("jwks", KeySet("", "https://me.example.com/keys", '{"keys": []}'))])
    assert keys() == '{"keys": []}'


def test_an_edit_of_a_role_makes_the_listeners_of_its_services_again_and_no_other() -> None:
    other = WEB.replace("web", "data").replace("10.1.1.1", "10.1.1.2")
    text = WEB + other + access("ON") + role("web", "[{services: [web]}]") + role("data", "[{services: [data]}]")
    world = world_of(text + binding("web", "[{user: a}]") + binding("data", "[{user: a}]"))
    watch = Watch(world.memo, lambda: None)
    proxies = (PROXY, sidecar("10.1.1.2", name="data", namespace="shop", labels={"app": "data"}))
    before = [resources(world, proxy, watch) for proxy in proxies]
    calls = dict(world.memo.statistics().calls)
    update(world, role("web", "[{services: [web], ports: [80]}]"))
    after = [resources(world, proxy, watch) for proxy in proxies]
    assert [now != was for now, was in zip(after, before, strict=True)] == [True, False]
    assert world.memo.statistics().calls["virtual_inbound"] - calls["virtual_inbound"] == 1


def test_a_listener_names_the_objects_that_it_is_made_from() -> None:
    world = world_of(WEB + ALL + access("ON") + policy("web", f"targets: [{{name: web}}], {TOKENS}"))
    named = {str(key) for key in resources(world, PROXY)["virtualInbound"].configs}
    assert named >= {"Policy/shop/web", "ServiceRole/shop/all", "ServiceRoleBinding/shop/all"}


def test_a_gateway_that_passes_connections_on_unseen_uses_endpoints_that_a_policy_gives_mutual_tls() -> None:
    text = WEB.replace("labels: {app: web}", "labels: {app: web, security.istio.io/tlsMode: istio}")
    host = "web.shop.svc.cluster.local"

    def reached(world: World, port: int) -> list[str]:
        return addresses(endpoints(world, sidecar(node_type="router"), f"outbound_.{port}_._.{host}"))

    world = world_of(text + policy("tcp", "targets: [{name: web, ports: [{name: tcp}]}]"))
    assert (reached(world, 80), reached(world, 81)) == (["10.1.1.1:80"], [])
    update(world, policy("tcp", f"targets: [{{name: web, ports: [{{name: tcp}}]}}], {RELAXED}"))
    assert (reached(world, 80), reached(world, 81)) == (["10.1.1.1:80"], ["10.1.1.1:81"])
