"""What an edit of a policy costs: the listeners of the workloads that it selects, whatever else is in the mesh."""

from __future__ import annotations

import pytest

from mesh_pilot.engine import Watch
from mesh_pilot.model.events import Delete, KeySet, Upsert
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support.listeners import resources
from tests.support.worlds import SOURCE, sidecar, update, world_of

INBOUND = "virtualInbound"


def workload(number: int) -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: s{number}, namespace: shop}}
spec:
  hosts: [s{number}.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}, {{number: 81, name: tcp, protocol: TCP}}]
  endpoints: [{{address: 10.1.1.{number}, labels: {{app: s{number}}}}}]
"""


def policy(number: int, kind: str = "AuthorizationPolicy", spec: str = "") -> str:
    default = {
        "AuthorizationPolicy": "action: DENY, rules: [{to: [{operation: {paths: [/no]}}]}]",
        "RequestAuthentication": "jwtRules: [{issuer: i, jwksUri: 'https://i.example.com/keys'}]",
    }[kind]
    return f"""
---
apiVersion: security.istio.io/v1
kind: {kind}
metadata: {{name: p{number}, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: s{number}}}}}, {spec or default}}}
"""


class Mesh:
    """Sidecars of a namespace, kept up to date."""

    def __init__(self, size: int, policies: int) -> None:
        kinds = ("AuthorizationPolicy", "RequestAuthentication")
        text = "".join(workload(n) for n in range(size))
        text += "".join(policy(n, kind) for n in range(policies) for kind in kinds)
        self.world: World = world_of(text)
        self.watch = Watch(self.world.memo, lambda: None)
        self.proxies = [
            sidecar(f"10.1.1.{n}", name=f"s{n}", namespace="shop", labels={"app": f"s{n}"}) for n in range(size)
        ]
        self.get()

    def get(self) -> list[dict[str, Resource]]:
        return [resources(self.world, proxy, self.watch) for proxy in self.proxies]

    def calls(self) -> dict[str, int]:
        return dict(self.world.memo.statistics().calls)

    def changed(self, before: list[dict[str, Resource]]) -> list[tuple[int, str]]:
        """Which listeners of which proxies are new since ``before``."""
        after = self.get()
        return [(n, name) for n, held in enumerate(after) for name in held if held[name] != before[n].get(name)]


@pytest.mark.parametrize("size", [4, 40])
def test_an_edit_of_a_policy_makes_the_listener_of_its_workload_again_and_no_other(size: int) -> None:
    mesh = Mesh(size, size)
    before, calls = mesh.get(), mesh.calls()
    update(mesh.world, policy(3, spec="action: DENY, rules: [{to: [{operation: {paths: [/never]}}]}]"))
    assert mesh.changed(before) == [(3, INBOUND)]
    after = mesh.calls()
    assert after["virtual_inbound"] - calls["virtual_inbound"] == 1
    assert after["_encoded_common"] - calls["_encoded_common"] == 1, "one HTTP connection manager"
    assert after["_policy_rules"] - calls["_policy_rules"] == 2, "for requests and for connections"
    assert after["rules_of"] - calls["rules_of"] == 1, "to connections another path says nothing new"
    assert after["_jwt_config"] == calls["_jwt_config"], "tokens are left alone"
    assert after["outbound_listener"] == calls["outbound_listener"]


def test_a_policy_for_one_comes_and_goes_without_the_others() -> None:
    mesh = Mesh(5, 3)
    before = mesh.get()
    update(mesh.world, policy(4))
    assert mesh.changed(before) == [(4, INBOUND)]
    mesh.world.apply([Delete(SOURCE, ("config", "AuthorizationPolicy", "shop", "p4"))])
    assert mesh.changed(before) == []


def test_keys_that_change_are_sent_to_those_who_check_tokens_by_them() -> None:
    mesh = Mesh(3, 2)
    before = mesh.get()
    assert b"nobody" in before[0][INBOUND].body
    mesh.world.apply([Upsert("jwks", KeySet("", "https://i.example.com/keys", '{"keys":[{"kty":"RSA"}]}'))])
    assert mesh.changed(before) == [(0, INBOUND), (1, INBOUND)]
    assert b"nobody" not in mesh.get()[0][INBOUND].body
    mesh.world.apply([Delete("jwks", ("keys", "", "https://i.example.com/keys"))])
    assert mesh.changed(before) == []


def test_a_listener_names_the_policies_that_it_is_made_from() -> None:
    """So that whoever sees Envoy refuse it knows where to look."""
    proxies = Mesh(3, 2).get()
    kinds = ("AuthorizationPolicy", "RequestAuthentication")
    named = [{key.name for key in proxy[INBOUND].configs if key.kind in kinds} for proxy in proxies]
    assert named == [{"p0"}, {"p1"}, set()]
