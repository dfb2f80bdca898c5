"""PeerAuthentication: what workloads accept and what clients expect."""

from mesh_pilot.mesh.policies.peer_authentication import PeerMode, client_mtls, namespace_mode, peer_mode, peer_modes
from mesh_pilot.model.service import ServiceKey
from tests.support.worlds import update, world_of

APP = frozenset({("app", "web")})


def policy(
    name: str, namespace: str, mode: str | None, selector: str = "", ports: str = "", created: str = "2024-01-01"
) -> str:
    """A PeerAuthentication as YAML."""
    return (
        "---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"
        f"metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: '{created}T00:00:00Z'}}\n"
        "spec:\n"
        + (f"  mtls: {{mode: {mode}}}\n" if mode else "  mtls: {}\n")
        + (f"  selector: {{matchLabels: {selector}}}\n" if selector else "")
        + (f"  portLevelMtls: {ports}\n" if ports else "")
    )


def test_without_any_policy_ports_are_permissive() -> None:
    view = world_of().view
    assert peer_mode(view, "shop", APP, 80) is PeerMode.PERMISSIVE


def test_the_narrower_policy_wins_and_unset_inherits() -> None:
    world = world_of(policy("mesh", "istio-system", "STRICT"))
    assert peer_mode(world.view, "shop", APP, 80) is PeerMode.STRICT
    update(world, policy("default", "shop", "DISABLE"))
    assert peer_mode(world.view, "shop", APP, 80) is PeerMode.DISABLE
    update(world, policy("web", "shop", None, "{app: web}", "{8080: {mode: PERMISSIVE}, 9090: {}}"))
    modes = peer_modes(world.view, "shop", APP)
    assert modes.default is PeerMode.DISABLE
    assert modes.ports == ((8080, PeerMode.PERMISSIVE), (9090, PeerMode.DISABLE))
    assert peer_mode(world.view, "shop", frozenset({("app", "other")}), 8080) is PeerMode.DISABLE


def test_of_several_policies_of_a_namespace_the_oldest_counts() -> None:
    world = world_of(
        policy("young", "shop", "DISABLE", created="2024-02-01") + policy("old", "shop", "STRICT", created="2024-01-02")
    )
    assert namespace_mode(world.view, "shop") is PeerMode.STRICT


def test_a_policy_with_a_selector_in_the_root_namespace_is_for_nobody_else() -> None:
    world = world_of(policy("web", "istio-system", "STRICT", "{app: web}"))
    assert peer_mode(world.view, "shop", APP, 80) is PeerMode.PERMISSIVE


SERVICE = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
"""


def test_clients_expect_what_the_namespace_says() -> None:
    key = ServiceKey("web.example", "shop")
    world = world_of(SERVICE)
    assert client_mtls(world.view, key, "http", False) is PeerMode.PERMISSIVE
    assert client_mtls(world.view, key, "http", True) is PeerMode.DISABLE
    update(world, policy("default", "shop", "STRICT") + policy("web", "shop", "DISABLE", "{app: web}"))
    assert client_mtls(world.view, key, "http", False) is PeerMode.STRICT


def test_services_outside_the_mesh_have_no_mesh_mtls() -> None:
    world = world_of(SERVICE.replace("MESH_INTERNAL", "MESH_EXTERNAL"))
    assert client_mtls(world.view, ServiceKey("web.example", "shop"), "http", False) is None
    assert client_mtls(world.view, ServiceKey("gone.example", "shop"), "http", False) is None
