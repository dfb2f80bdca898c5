from __future__ import annotations

import pytest

from mesh_pilot.security.authentication import Authentication, AuthenticationError, Shown, Verdict
from tests.support.worlds import sidecar

RECO = "spiffe://cluster.local/ns/shop/sa/reco"
OTHER = "spiffe://cluster.local/ns/other/sa/reco"


def verdict(
    address: str = "192.0.2.7:4000",
    spiffe_ids: tuple[str, ...] | None = None,
    *,
    trust: bool = True,
    aliases: tuple[str, ...] = (),
    **node: str,
) -> Verdict:
    """``spiffe_ids``: those of a client certificate; None for a peer without one."""
    proxy = sidecar(namespace="shop", **node)
    shown = Shown(address, spiffe_ids is not None, spiffe_ids or ())
    return Authentication(trust).verdict(proxy, shown, trust_domain="cluster.local", aliases=aliases)


def test_a_certificate_proves_who_a_proxy_is() -> None:
    assert verdict(spiffe_ids=(RECO,)) == Verdict(RECO)
    assert verdict(spiffe_ids=(RECO,), SERVICE_ACCOUNT="reco") == Verdict(RECO)


@pytest.mark.parametrize("spiffe_id", [OTHER, "spiffe://cluster.local/ns/shop/sa/cart", "spiffe://odd"])
def test_a_certificate_of_another_workload_is_refused(spiffe_id: str) -> None:
    with pytest.raises(AuthenticationError, match="claims namespace shop, service account reco, but its certificate"):
        verdict(spiffe_ids=(spiffe_id,), SERVICE_ACCOUNT="reco")


@pytest.mark.parametrize("address", ["192.0.2.7:4000", "127.0.0.1:5"])
@pytest.mark.parametrize(
    ("spiffe_ids", "found"), [((), "no SPIFFE name"), ((RECO, OTHER), "2 SPIFFE names"), ((RECO, RECO), "2 SPIFFE")]
)
def test_a_certificate_without_exactly_one_spiffe_name_is_nobody_s_even_on_this_machine(
    address: str, spiffe_ids: tuple[str, ...], found: str
) -> None:
    nobody = verdict(address, spiffe_ids)
    assert (nobody.identity, found in nobody.reason) == ("", True)


def test_a_certificate_of_another_trust_domain_is_refused() -> None:
    with pytest.raises(AuthenticationError, match=r"evil\.example is not a trust domain of this mesh \(cluster\.local"):
        verdict(spiffe_ids=("spiffe://evil.example/ns/shop/sa/reco",))


def test_a_certificate_of_an_alias_of_the_trust_domain_is_of_the_mesh() -> None:
    old = "spiffe://old.example/ns/shop/sa/reco"
    assert verdict(spiffe_ids=(old,), aliases=("old.example",)) == Verdict(RECO)


def test_the_namespace_that_is_served_is_the_one_that_is_proven() -> None:
    """As in Istio, metadata NAMESPACE goes before the node id; so it is what the certificate must be for."""
    assert sidecar(namespace="other", NAMESPACE="shop").namespace == "shop"
    shown = Shown("192.0.2.7:4000", True, (OTHER,))
    rules = Authentication()
    with pytest.raises(AuthenticationError, match="claims namespace shop, but its certificate is for"):
        rules.verdict(sidecar(namespace="other", NAMESPACE="shop"), shown, trust_domain="cluster.local")


@pytest.mark.parametrize("address", ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "unix:///run/pilot.sock"])
def test_a_peer_without_a_certificate_on_this_machine_is_taken_at_its_word_if_allowed(address: str) -> None:
    assert verdict(address) == Verdict("spiffe://cluster.local/ns/shop/sa/default")
    assert verdict(address, SERVICE_ACCOUNT="reco") == Verdict(RECO)
    assert verdict(address, trust=False).identity == ""


@pytest.mark.parametrize("address", ["192.0.2.7:4000", "[2001:db8::1]:4000", "nonsense"])
def test_a_peer_without_a_certificate_elsewhere_has_no_identity(address: str) -> None:
    assert verdict(address).identity == ""
    assert "no certificate" in verdict(address).reason
