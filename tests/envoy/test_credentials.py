"""Who is given a credential: the gateways of its namespace, by their identity, and whom its grants name."""

from __future__ import annotations

import attrs
import pytest
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret as SecretMessage

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Delete, Grant, Secret, Upsert
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.model.resource import SECRET
from mesh_pilot.ops.observers.problem_log import ProblemLog
from mesh_pilot.ops.values.problems import at_proxies
from mesh_pilot.world import World
from tests.support.rows import rows
from tests.support.worlds import SOURCE, configs, sidecar, world_of

EDGE = "kubernetes://edge"
KEY = b"the private key"


def world(namespace: str = "shop", *grants: Grant, ca: bytes = b"") -> World:
    """A World with the credential ``edge`` of a namespace; empty: the root namespace, istio-system."""
    found = world_of("")
    put(found, Secret("edge", namespace, b"chain", KEY, ca, grants=grants))
    return found


def put(found: World, secret: Secret) -> None:
    found.apply([Upsert(SOURCE, secret)])


def is_given(found: World, proxy: Proxy, name: str = EDGE) -> bool:
    """True if the proxy gets the private key."""
    secret = given(found, proxy, name)
    return secret is not None and secret.tls_certificate.private_key.inline_bytes == KEY


def given(found: World, proxy: Proxy, name: str) -> SecretMessage | None:
    resources = WorldCatalog(found).open(proxy).set(SECRET)
    assert resources is not None
    resource = resources.get(name)
    return SecretMessage.FromString(resource.body) if resource is not None else None


def router(namespace: str = "shop", *, name: str = "edge", certified: bool = True, account: str = "default") -> Proxy:
    proxy = sidecar(name=name, namespace=namespace, node_type="router", certified=certified)
    return attrs.evolve(proxy, identity=f"spiffe://cluster.local/ns/{namespace}/sa/{account}" if certified else "")


def workload(namespace: str = "shop", account: str = "default") -> Proxy:
    return attrs.evolve(router(namespace, account=account), type=NodeType.SIDECAR)


def test_a_credential_is_for_the_gateways_of_its_namespace() -> None:
    found = world()
    assert is_given(found, router())
    assert not is_given(found, router("other"))
    assert not is_given(found, workload())
    assert not is_given(found, workload("other"))


def test_a_credential_of_the_root_namespace_is_for_the_gateways_there() -> None:
    for found in (world(""), world("istio-system")):
        assert is_given(found, router("istio-system"))
        assert not is_given(found, router())


def test_nobody_gets_a_credential_without_an_identity() -> None:
    found = world("shop", Grant("shop"), Grant("shop", "default"), ca=b"ca")
    assert not is_given(found, router(certified=False))
    assert given(found, router(certified=False), f"{EDGE}-cacert") is None
    assert not is_given(found, sidecar(namespace="shop", certified=False))


def test_a_grant_to_a_namespace_is_for_its_gateways() -> None:
    found = world("", Grant("shop"))
    assert is_given(found, router())
    assert not is_given(found, workload())
    assert not is_given(found, router("other"))


def test_a_grant_to_a_service_account_is_for_its_sidecars_too_and_for_no_other() -> None:
    found = world("shop", Grant("shop", "web"), Grant("bank", "web"))
    assert is_given(found, workload(account="web"))
    assert not is_given(found, workload(account="cart"))
    named = "kubernetes://shop/edge"
    assert is_given(found, workload("bank", "web"), named)
    assert is_given(found, router("bank", account="web"), named)
    assert not is_given(found, router("bank", account="other"), named)


def test_the_service_account_is_the_proven_one_not_that_of_the_node() -> None:
    found = world("shop", Grant("shop", "web"))
    claims = sidecar(namespace="shop", SERVICE_ACCOUNT="web")
    assert not is_given(found, attrs.evolve(claims, identity="spiffe://cluster.local/ns/shop/sa/cart"))


def test_a_credential_of_another_namespace_is_named_with_it_and_needs_a_grant() -> None:
    found = world("bank", Grant("shop"))
    assert is_given(found, router(), "kubernetes://bank/edge")
    assert not is_given(found, router()), "another namespace cannot put its own in the place of ours"
    assert not is_given(found, router("other"), "kubernetes://bank/edge")
    assert is_given(found, router("bank"), "kubernetes://bank/edge")


def test_the_own_namespace_goes_before_the_root_namespace() -> None:
    found = world("", Grant("shop"))
    put(found, Secret("edge", "shop", b"own chain", b"own key"))
    secret = given(found, router(), EDGE)
    assert secret is not None and secret.tls_certificate.private_key.inline_bytes == b"own key"
    assert is_given(found, router(), "kubernetes://istio-system/edge")


def test_ca_certificates_are_no_secret_within_the_namespaces_that_may_use_the_credential() -> None:
    found = world("shop", Grant("bank"), ca=b"ca")
    for proxy, name in ((workload(), EDGE), (router(), EDGE), (workload("bank"), "kubernetes://shop/edge")):
        secret = given(found, proxy, f"{name}-cacert")
        assert secret is not None and secret.validation_context.trusted_ca.inline_bytes == b"ca"
        assert not secret.HasField("tls_certificate")
    assert given(found, workload("other"), "kubernetes://shop/edge-cacert") is None


def test_who_is_given_a_credential_follows_its_grants() -> None:
    found = world("")
    resources = WorldCatalog(found).open(router()).set(SECRET)
    assert resources is not None and resources.get(EDGE) is None
    for grants in ((Grant("shop"),), ()):
        put(found, Secret("edge", "", b"chain", KEY, grants=grants))
        resources.snapshot()
        assert (resources.get(EDGE) is not None) == bool(grants)


def test_a_change_elsewhere_does_not_make_a_credential_anew() -> None:
    found = world()
    resources = WorldCatalog(found).open(router()).set(SECRET)
    assert resources is not None and resources.get(EDGE) is not None
    calls = found.memo.statistics().calls["workload_secret"]
    put(found, Secret("other", "shop", b"chain", KEY))
    resources.snapshot()
    assert found.memo.statistics().calls["workload_secret"] == calls


def test_what_is_not_given_is_told_with_the_reason_and_the_proxies(capsys: pytest.CaptureFixture[str]) -> None:
    found = world("")
    put(found, Secret("keys", "shop", b"chain", KEY))
    put(found, Secret("roots", "shop", ca_certificates=b"ca"))
    catalog = WorldCatalog(found)
    names = [f"kubernetes://{name}" for name in ("edge", "keys", "keys-cacert", "roots", "bank/lost")]
    asked = {SECRET: frozenset((*names, "default", "file-root:/ca.pem"))}
    for proxy in (router(name="nobody", certified=False), workload(), router("other")):
        catalog.open(proxy, requested=lambda type_url: asked.get(type_url, frozenset()))
    entries = rows(at_proxies(catalog.diagnostics().credentials()))
    told = {
        (proxy, str(entry["credential"]).removeprefix("kubernetes://")): entry["reason"]
        for entry in entries
        for proxy in entry["proxies"]
    }
    nobody = "nothing vouches for who the proxy is; let it connect with its own client certificate"
    lacks = "it lacks what is asked for: a certificate with its key, or CA certificates"
    assert told == {
        **{("nobody.shop", name.removeprefix("kubernetes://")): nobody for name in names},
        ("edge.shop", "edge"): "it is of namespace istio-system and not granted to namespace shop",
        ("edge.shop", "keys"): "the key is for gateways and not granted to shop/default",
        ("edge.shop", "keys-cacert"): lacks,
        ("edge.shop", "roots"): lacks,
        ("edge.shop", "bank/lost"): "there is none in namespace bank",
        ("edge.other", "edge"): "it is of namespace istio-system and not granted to namespace other",
        ("edge.other", "keys"): "there is none in namespace other",
        ("edge.other", "keys-cacert"): "there is none in namespace other",
        ("edge.other", "roots"): "there is none in namespace other",
        ("edge.other", "bank/lost"): "there is none in namespace bank",
    }
    problems = ProblemLog(catalog, found)
    problems.log_new()
    problems.log_new()
    assert capsys.readouterr().out.count("credential withheld") == len(entries)


def test_a_guarded_credential_is_for_accounts_that_grants_name_and_for_gateways_that_refer_to_it() -> None:
    found = world(ca=b"ca")
    guarded = Secret("edge", "shop", b"chain", KEY, b"ca", is_guarded=True)
    put(found, guarded)
    assert not is_given(found, router())
    assert given(found, router(), f"{EDGE}-cacert") is not None, "CA certificates are not secret"
    put(found, attrs.evolve(guarded, grants=(Grant("shop", "edge"),)))
    assert is_given(found, router(account="edge"))
    assert is_given(found, workload(account="edge")), "as in istiod, whoever may read Secrets"
    assert not is_given(found, router(account="web"))
    put(found, guarded)
    found.credential_grants[("shop", "edge")] = frozenset(["shop"])
    assert is_given(found, router(), "kubernetes-gateway://shop/edge")
    assert not is_given(found, router("bank"), "kubernetes-gateway://shop/edge")


GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: infra}
spec:
  gatewayClassName: istio
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: edge, namespace: shop}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: gateways, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [{group: "", kind: Secret}]
"""


def test_a_reference_grant_is_for_the_gateways_of_a_namespace_as_long_as_one_of_them_refers_to_it() -> None:
    found = world()
    put(found, Secret("edge", "shop", b"-----BEGIN CERTIFICATE-----", KEY))
    name = "kubernetes-gateway://shop/edge"
    assert is_given(found, router(), name)
    assert not is_given(found, router("infra"), name)
    gateway, grant = configs(GATEWAY)
    found.apply([Upsert(SOURCE, grant)])
    assert not is_given(found, router("infra"), name), "nobody refers to it"
    found.apply([Upsert(SOURCE, gateway)])
    assert is_given(found, router("infra"), name)
    assert not is_given(found, workload("infra"), name)
    assert not is_given(found, router("other"), name)
    found.apply([Delete(SOURCE, ("config", *grant.key))])
    assert not is_given(found, router("infra"), name)


def test_ca_certificates_of_a_config_map_are_for_all_proxies_with_an_identity() -> None:
    found = world()
    put(found, Secret("configmap/roots", "shop", ca_certificates=b"roots"))
    name = "configmap://shop/roots-cacert"
    secret = given(found, sidecar(namespace="other"), name)
    assert secret is not None and secret.validation_context.trusted_ca.inline_bytes == b"roots"
    assert given(found, router(certified=False), name) is None
    assert given(found, router(), "configmap://shop/edge-cacert") is None
    assert given(found, router(), "invalid://-cacert") is None
