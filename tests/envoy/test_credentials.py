"""Who is given a credential: proxies with an identity, of its namespace or of one whose config names it."""

from __future__ import annotations

import pytest
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret as SecretMessage

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Delete, Secret, Upsert, item_key
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import SECRET
from mesh_pilot.ops.reports import ProblemLog, credential_entries
from mesh_pilot.world import World
from tests.support.worlds import SOURCE, configs, sidecar, update, world_of

EDGE = "kubernetes://edge"
KEY = b"the private key"

GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.test], tls: {mode: SIMPLE, credentialName: edge}}
"""
RULE = """
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: partner, namespace: shop}
spec:
  host: partner.test
  subsets:
  - name: v1
    trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: MUTUAL, credentialName: edge}}]}
"""


def world(text: str = "", *, namespace: str = "") -> World:
    """A World with the credential ``edge`` of a namespace, or of none, as a folder has them."""
    found = world_of(text)
    found.apply([Upsert(SOURCE, Secret("edge", namespace, certificate_chain=b"chain", private_key=KEY))])
    return found


def is_given(found: World, proxy: Proxy, name: str = EDGE) -> bool:
    resources = WorldCatalog(found).open(proxy).set(SECRET)
    assert resources is not None
    resource = resources.get(name)
    if resource is None:
        return False
    return SecretMessage.FromString(resource.body).tls_certificate.private_key.inline_bytes == KEY


def router(namespace: str = "shop", *, name: str = "edge", certified: bool = True) -> Proxy:
    labels = {"istio": "edge"}
    return sidecar(name=name, namespace=namespace, node_type="router", labels=labels, certified=certified)


def test_a_credential_of_a_namespace_is_for_the_proxies_of_that_namespace() -> None:
    found = world(namespace="shop")
    assert is_given(found, router())
    assert is_given(found, sidecar(namespace="shop"))
    assert not is_given(found, router("other"))
    assert not is_given(found, sidecar(namespace="other"))


@pytest.mark.parametrize("namespace", ["shop", ""])
def test_nobody_gets_a_credential_without_an_identity(namespace: str) -> None:
    found = world(GATEWAY, namespace=namespace)
    assert is_given(found, router())
    assert not is_given(found, router(certified=False))
    assert not is_given(found, sidecar(namespace="shop", certified=False))


@pytest.mark.parametrize("text", [GATEWAY, RULE])
def test_a_credential_of_no_namespace_is_for_those_whose_own_namespace_names_it(text: str) -> None:
    found = world(text)
    assert is_given(found, router())
    assert not is_given(found, router("other")), "its labels are its own word"
    assert not is_given(found, sidecar(namespace="other"))
    assert not is_given(world(), router())


def test_who_is_given_a_credential_follows_the_config_that_names_it() -> None:
    found = world()
    opened = WorldCatalog(found).open(router())
    resources = opened.set(SECRET)
    assert resources is not None
    assert resources.get(EDGE) is None
    update(found, GATEWAY)
    update(found, RULE)
    assert resources.get(EDGE) is not None
    for text in (GATEWAY, RULE):
        assert resources.get(EDGE) is not None
        found.apply([Delete(SOURCE, item_key(configs(text)[0]))])
    resources.snapshot()
    assert resources.get(EDGE) is None


def test_a_change_elsewhere_does_not_make_a_credential_anew() -> None:
    found = world(GATEWAY)
    resources = WorldCatalog(found).open(router()).set(SECRET)
    assert resources is not None and resources.get(EDGE) is not None
    calls = found.memo.statistics().calls["workload_secret"]
    update(found, RULE.replace("credentialName: edge", "credentialName: other"))
    update(found, GATEWAY.replace("a.test", "b.test"))
    resources.snapshot()
    assert found.memo.statistics().calls["workload_secret"] == calls


def test_what_is_not_given_is_told_with_the_reason_and_the_proxies(capsys: pytest.CaptureFixture[str]) -> None:
    gateway_world = world(GATEWAY)
    catalog = WorldCatalog(gateway_world)
    asked = {SECRET: frozenset((EDGE, "kubernetes://lost", "default", "file-root:/ca.pem"))}
    for proxy in (router("other"), router(name="nobody", certified=False), router()):
        catalog.open(proxy, requested=lambda type_url: asked.get(type_url, frozenset()))
    found = {
        (entry["credential"], entry["reason"]): entry["proxies"] for entry in credential_entries(catalog.diagnostics())
    }
    nobody = "nothing vouches for who the proxy is; let it connect with a client certificate of its own"
    unnamed = "it is of no namespace, and no Gateway or DestinationRule in namespace other names it"
    assert found == {
        (EDGE, unnamed): ["edge.other"],
        ("kubernetes://lost", "there is none in namespace other"): ["edge.other"],
        (EDGE, nobody): ["nobody.shop"],
        ("kubernetes://lost", nobody): ["nobody.shop"],
        ("kubernetes://lost", "there is none in namespace shop"): ["edge.shop"],
    }
    problems = ProblemLog(catalog, gateway_world)
    problems.log_new()
    problems.log_new()
    assert capsys.readouterr().out.count("credential withheld") == len(found)
