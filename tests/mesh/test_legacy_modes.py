"""Policies of Istio 1.1: which mTLS mode the ports of a service have, on the server's side and on the client's."""

from __future__ import annotations

import pytest

from mesh_pilot.api.istio.security.v1beta1 import PeerAuthenticationMutualTlsMode as Mode
from mesh_pilot.istio.meaning.legacy_policies import peer_mode as mode_of
from mesh_pilot.mesh.legacy.authentication import ServedPort
from mesh_pilot.mesh.listeners.inbound import inbound_settings, served_ports
from mesh_pilot.mesh.policies.peer_authentication import PeerMode, client_mtls, namespace_mode, peer_modes
from mesh_pilot.model.events import Delete
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import World
from tests.support.legacy import mesh_policy, policy
from tests.support.listeners import target
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

STRICT, PERMISSIVE, DISABLE = PeerMode.STRICT, PeerMode.PERMISSIVE, PeerMode.DISABLE
MTLS = "peers: [{mtls: {}}]"
RELAXED = "peers: [{mtls: {mode: PERMISSIVE}}]"

WEB = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 81, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.1.1.1, labels: {app: web}}]
"""
KEY = ServiceKey("web.shop.svc.cluster.local", "shop")
OTHER = ServiceKey("other.shop.svc.cluster.local", "shop")


def peers(spec: str, namespace: str = "shop") -> str:
    return (
        "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"
        f"metadata: {{name: new, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )


def modes(world: World) -> tuple[PeerMode, PeerMode, PeerMode]:
    """Of the workload's ports 8080 and 81, and of any other."""
    workload = target(world, sidecar(namespace="shop", labels={"app": "web"})).workload
    found = inbound_settings(world.view, workload).modes
    return found.at(8080), found.at(81), found.default


def clients(world: World) -> tuple[PeerMode | None, PeerMode | None]:
    """The modes that clients expect of the ports http and tcp."""
    http, tcp = (client_mtls(world.view, KEY, port, False) for port in ("http", "tcp"))
    return http, tcp


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        ("", Mode.DISABLE),
        ("origins: [{jwt: {issuer: me}}]", Mode.DISABLE),
        ("peerIsOptional: true", Mode.DISABLE),
        ("peers: [{mtls: {}}]", Mode.STRICT),
        ("peers: [{mtls: null}]", Mode.STRICT),
        ("peers: [{}]", Mode.STRICT),
        ("peers: [{mtls: {mode: STRICT}}]", Mode.STRICT),
        (RELAXED, Mode.PERMISSIVE),
        (f"{MTLS}, peerIsOptional: true", Mode.PERMISSIVE),
        ("peers: [{mtls: {mode: PERMISSIVE, allowTls: true}}], peerIsOptional: true", Mode.STRICT),
        ("peers: [{mtls: {mode: PERMISSIVE}}, {jwt: {issuer: me}}]", Mode.STRICT),
        ("peers: [{jwt: {issuer: me}}], peerIsOptional: true", Mode.STRICT),
    ],
)
def test_peers_say_the_mode(spec: str, mode: Mode) -> None:
    (config,) = configs(policy("default", spec))
    assert mode_of(config.spec) is mode


def test_the_narrowest_policy_counts_alone() -> None:
    world = world_of(WEB)
    assert modes(world) == (PERMISSIVE, PERMISSIVE, PERMISSIVE)
    update(world, mesh_policy(MTLS))
    assert (modes(world), clients(world)) == ((STRICT, STRICT, STRICT), (STRICT, STRICT))
    update(world, policy("default", RELAXED))
    assert (modes(world), clients(world)) == ((PERMISSIVE, PERMISSIVE, PERMISSIVE), (PERMISSIVE, PERMISSIVE))
    update(world, policy("web", f"targets: [{{name: web}}], {MTLS}"))
    assert (modes(world), clients(world)) == ((STRICT, STRICT, PERMISSIVE), (STRICT, STRICT))
    update(world, policy("http", "targets: [{name: web, ports: [{number: 80}]}]"))
    assert (modes(world), clients(world)) == ((DISABLE, STRICT, PERMISSIVE), (DISABLE, STRICT))
    update(world, policy("http", "targets: [{name: web, ports: [{name: tcp}]}]"))
    assert (modes(world), clients(world)) == ((STRICT, DISABLE, PERMISSIVE), (STRICT, DISABLE))
    world.apply([Delete(SOURCE, ("config", "Policy", "shop", name)) for name in ("web", "http", "default")])
    assert modes(world) == (STRICT, STRICT, STRICT)


def test_a_policy_is_for_services_of_its_namespace() -> None:
    text = policy("web", f"targets: [{{name: web}}], {MTLS}", namespace="other") + policy(
        "default", MTLS, namespace="other"
    )
    assert modes(world_of(WEB + text)) == (PERMISSIVE, PERMISSIVE, PERMISSIVE)


def test_a_target_may_be_named_in_full() -> None:
    text = policy("web", f"targets: [{{name: web.shop.svc.cluster.local}}], {MTLS}")
    assert modes(world_of(WEB + text)) == (STRICT, STRICT, PERMISSIVE)


def test_of_several_policies_with_the_same_target_the_oldest_counts() -> None:
    text = policy("a", f"targets: [{{name: web}}], {MTLS}", created="2024-02-02")
    text += policy("b", f"targets: [{{name: web}}], {RELAXED}", created="2024-02-01")
    assert modes(world_of(WEB + text + mesh_policy(MTLS))) == (PERMISSIVE, PERMISSIVE, STRICT)


def test_on_one_level_the_peer_authentication_counts() -> None:
    world = world_of(WEB + mesh_policy(MTLS) + peers("mtls: {mode: PERMISSIVE}", "istio-system"))
    assert namespace_mode(world.view, "shop") is PERMISSIVE
    update(world, policy("default", MTLS))
    assert namespace_mode(world.view, "shop") is STRICT
    update(world, peers("mtls: {mode: DISABLE}"))
    assert namespace_mode(world.view, "shop") is DISABLE
    update(world, policy("web", f"targets: [{{name: web}}], {MTLS}"))
    assert modes(world) == (STRICT, STRICT, DISABLE)
    update(world, peers("selector: {matchLabels: {app: web}}, mtls: {mode: PERMISSIVE}"))
    assert modes(world) == (PERMISSIVE, PERMISSIVE, PERMISSIVE)
    update(world, policy("web", f"targets: [{{name: web, ports: [{{number: 80}}]}}], {MTLS}"))
    assert modes(world) == (STRICT, PERMISSIVE, PERMISSIVE)
    update(world, peers("selector: {matchLabels: {app: web}}, portLevelMtls: {8080: {mode: DISABLE}, 81: {}}"))
    assert modes(world) == (DISABLE, STRICT, STRICT)


def test_of_several_services_at_a_port_the_strictest_mode_counts() -> None:
    text = policy("web", f"targets: [{{name: web}}], {RELAXED}") + policy(
        "other", f"targets: [{{name: other}}], {MTLS}"
    )
    view = world_of(text + policy("default", "")).view
    ports = (ServedPort(80, KEY, 80, "http"), ServedPort(80, OTHER, 80, "http"), ServedPort(81, KEY, 81, "tcp"))
    found = peer_modes(view, "shop", frozenset(), ports)
    assert (found.at(80), found.at(81), found.default) == (STRICT, PERMISSIVE, DISABLE)


def test_an_ingress_listener_of_a_sidecar_serves_what_has_its_port() -> None:
    scope = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: 127.0.0.1:9000}]
"""
    world = world_of(WEB + scope + policy("web", f"targets: [{{name: web}}], {MTLS}"))
    workload = target(world, sidecar(namespace="shop")).workload
    assert inbound_settings(world.view, workload).modes.at(80) is STRICT


def test_without_these_kinds_nobody_asks_which_services_a_workload_serves() -> None:
    world = world_of(WEB)
    assert served_ports(world.view, target(world, sidecar(namespace="shop")).workload) == ()


def test_where_no_policy_names_a_service_none_of_them_costs_anything() -> None:
    world = world_of(WEB + policy("web", f"targets: [{{name: web}}], {MTLS}", namespace="elsewhere"))
    for number in range(20):
        client_mtls(world.view, ServiceKey(f"a{number}.test", "shop"), "http", False)
    calls = world.memo.statistics().calls
    assert calls.get("targeting", 0) == 0
    update(world, policy("web", f"targets: [{{name: web}}], {MTLS}"))
    assert clients(world)[0] is STRICT
    assert world.memo.statistics().calls["targeting"] == 1
