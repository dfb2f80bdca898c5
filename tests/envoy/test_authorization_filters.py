"""Where policies stand among filters: in which order, on which listeners, and for whom."""

from __future__ import annotations

import pytest
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.http.jwt_authn.v3.config_pb2 import JwtAuthentication
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac

from mesh_pilot.envoy.filters.jwt_authn import UNUSABLE_JWKS
from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.world.names import GATEWAY_NAME
from tests.support.listeners import is_http, manager
from tests.support.listeners import listeners as sidecar_listeners
from tests.support.routing import router, target
from tests.support.worlds import sidecar, world_of

RBAC, ASK, JWT = "envoy.filters.http.rbac", "envoy.filters.http.ext_authz", "envoy.filters.http.jwt_authn"
TCP_RBAC, TCP_ASK = "envoy.filters.network.rbac", "envoy.filters.network.ext_authz"
GUARDS = (RBAC, ASK, JWT, TCP_RBAC, TCP_ASK)
MESH = "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: web.example.com, port: 80}}]"

WEB = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: edge}
spec:
  hosts: [web.example.com]
  addresses: [10.9.9.9]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: mongo, protocol: MONGO}]
  endpoints: [{address: 10.1.1.1, labels: {app: web}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 81, name: tcp, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 443, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: AUTO_PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: edge}
spec:
  hosts: ["*"]
  gateways: [gw]
  http: [{route: [{destination: {host: web.example.com, port: {number: 80}}}]}]
  tcp: [{match: [{port: 81}], route: [{destination: {host: web.example.com, port: {number: 81}}}]}]
"""


def security(kind: str, name: str, spec: str) -> str:
    return f"""
---
apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: edge}}
spec: {{{spec}}}
"""


ALL = "".join(
    security("AuthorizationPolicy", action.split(",")[0].lower(), f"action: {action}, rules: [{{}}]")
    for action in ("ALLOW", "AUDIT", "CUSTOM, provider: {name: opa}", "DENY")
) + security("RequestAuthentication", "tokens", "jwtRules: [{issuer: i}]")


def guards(listener: Listener, *, http: bool) -> list[list[str]]:
    """The filters of policies on each chain for requests, or of each other one."""
    found = []
    for chain in listener.filter_chains:
        if is_http(chain) is http:
            filters = manager(chain).http_filters if http else chain.filters
            found.append([f.name for f in filters if f.name in GUARDS])
    return found


def router_listeners(text: str, proxy: Proxy | None = None) -> dict[str, Listener]:
    world = world_of(text, mesh=MESH)
    plan = gateway_listeners(world.view, target(world, proxy or router()).workload)
    made = {name: call.get(world.view) for name, call in plan.items()}
    return {name: Listener.FromString(resource.body) for name, resource in made.items() if resource is not None}


def test_a_sidecar_guards_what_comes_in_and_nothing_else() -> None:
    proxy = sidecar("10.1.1.1", namespace="edge", labels={"app": "web"})
    listeners = sidecar_listeners(world_of(WEB + ALL, mesh=MESH), proxy)
    inbound = listeners.pop("virtualInbound")
    assert set(map(tuple, guards(inbound, http=True))) == {(RBAC, ASK, JWT, RBAC, RBAC, RBAC)}
    # The first chain is a black hole.
    bytes_chains = guards(inbound, http=False)[1:]
    assert set(map(tuple, bytes_chains)) == {(TCP_RBAC, TCP_ASK, TCP_RBAC, TCP_RBAC, TCP_RBAC)}
    for listener in listeners.values():
        assert not any(guards(listener, http=True) + guards(listener, http=False))
    mongo = next(c for c in inbound.filter_chains if any("mongo" in f.name for f in c.filters))
    assert [f.name for f in mongo.filters][-2:] == [
        "envoy.filters.network.mongo_proxy",
        "envoy.filters.network.tcp_proxy",
    ]


def test_a_gateway_guards_requests_and_connections() -> None:
    listeners = router_listeners(WEB + ALL)
    assert guards(listeners["0.0.0.0_80"], http=True) == [[RBAC, ASK, JWT, RBAC, RBAC, RBAC]]
    for port in (81, 443):
        chains = guards(listeners[f"0.0.0.0_{port}"], http=False)
        assert chains and set(map(tuple, chains)) == {(TCP_RBAC, TCP_ASK, TCP_RBAC, TCP_RBAC, TCP_RBAC)}


@pytest.mark.parametrize(
    ("where", "selected"),
    [
        ("", True),
        ("selector: {matchLabels: {istio: edge}}, ", True),
        ("selector: {matchLabels: {istio: other}}, ", False),
        ("targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: front}, ", True),
        ("targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: other}], ", False),
        ("targetRef: {kind: Service, name: front}, ", False),
    ],
)
def test_a_policy_is_for_whom_it_selects(where: str, selected: bool) -> None:
    proxy = sidecar("10.3.3.3", node_type="router", namespace="edge", labels={"istio": "edge", GATEWAY_NAME: "front"})
    text = WEB + security("AuthorizationPolicy", "a", f"{where}action: DENY, rules: [{{}}]")
    assert guards(router_listeners(text, proxy)["0.0.0.0_80"], http=True) == [[RBAC] if selected else []]


def test_of_rules_for_one_issuer_those_of_the_workloads_namespace_come_first() -> None:
    text = security("RequestAuthentication", "a", "jwtRules: [{issuer: i, audiences: [edge]}]")
    of_mesh = security("RequestAuthentication", "b", "jwtRules: [{issuer: i, audiences: [mesh]}]")
    found = router_listeners(WEB + text + of_mesh.replace("namespace: edge", "namespace: istio-system"))
    (chain,) = found["0.0.0.0_80"].filter_chains
    (tokens,) = (f for f in manager(chain).http_filters if f.name == JWT)
    providers = JwtAuthentication.FromString(tokens.typed_config.value).providers
    assert [list(providers[f"origins-{index}"].audiences) for index in range(2)] == [["edge"], ["mesh"]]


def test_nobodys_key_is_the_same_in_every_process() -> None:
    assert '"x":"IHCcAhoVmkVuoTLpV7BuUzMPUoAaND8QiNtJmlS4KyI"' in UNUSABLE_JWKS


@pytest.mark.parametrize("more", ["", "gateway"], ids=["sidecar", "gateway"])
def test_a_custom_policy_without_a_provider_denies_its_rules_alone(more: str) -> None:
    """On listeners of both kinds, for requests and for connections; nobody is asked."""
    lost = security(
        "AuthorizationPolicy",
        "lost",
        "action: CUSTOM, provider: {name: nobody}, rules: [{to: [{operation: {ports: ['80'], paths: [/c]}}]}]",
    )
    world = world_of(WEB + lost, mesh=MESH)
    if more:
        seen = target(world, router(namespace="edge", labels={"istio": "edge"}))
        plan = gateway_listeners(world.view, seen.workload)
        bodies = [resource.body for call in plan.values() if (resource := call.get(world.view)) is not None]
    else:
        found = sidecar_listeners(world, sidecar("10.1.1.1", namespace="edge"))
        bodies = [found["virtualInbound"].SerializeToString()]
    joined = b"".join(bodies)
    assert b"istio-ext-authz-ns[edge]-policy[lost]-rule[0]-deny-due-to-bad-CUSTOM-action" in joined
    assert b"default-deny-all" not in joined and ASK.encode() not in joined and TCP_ASK.encode() not in joined


@pytest.mark.parametrize(("asks", "expected"), [("true", {True}), ("", {False})])
def test_rules_are_counted_each_where_the_proxy_asks_for_it(asks: str, expected: set[bool]) -> None:
    metadata = {"RBAC_RULE_STATS": asks} if asks else {}
    text = WEB + security("AuthorizationPolicy", "a", "action: ALLOW, rules: [{}]")
    proxy = sidecar("10.1.1.1", namespace="edge", labels={"app": "web"}, **metadata)
    inbound = sidecar_listeners(world_of(text, mesh=MESH), proxy)["virtualInbound"]
    found = set()
    for chain in filter(is_http, inbound.filter_chains):
        for each in manager(chain).http_filters:
            rbac = HttpRbac()
            if each.typed_config.Unpack(rbac):
                found.add(rbac.track_per_rule_stats)
    assert found == expected
