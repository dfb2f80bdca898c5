from __future__ import annotations

import pytest
from support.worlds import sidecar

from mesh_pilot.security.authentication import Authentication, AuthenticationError

RECO = "spiffe://cluster.local/ns/shop/sa/reco"


def identity(
    address: str = "192.0.2.7:4000", spiffe_ids: tuple[str, ...] = (), *, trust: bool = True, **node: str
) -> str:
    proxy = sidecar(namespace="shop", **node)
    return Authentication(trust).identity(proxy, "cluster.local", address=address, spiffe_ids=spiffe_ids)


def test_a_certificate_proves_who_a_proxy_is() -> None:
    assert identity(spiffe_ids=(RECO,)) == RECO
    assert identity(spiffe_ids=("https://else", RECO), SERVICE_ACCOUNT="reco") == RECO


@pytest.mark.parametrize(
    "spiffe_ids",
    [("spiffe://cluster.local/ns/other/sa/reco",), ("spiffe://cluster.local/ns/shop/sa/cart",), ("spiffe://odd",)],
)
def test_a_certificate_of_another_workload_is_refused(spiffe_ids: tuple[str, ...]) -> None:
    with pytest.raises(AuthenticationError, match="claims namespace shop, service account reco, but its certificate"):
        identity(spiffe_ids=spiffe_ids, SERVICE_ACCOUNT="reco")


@pytest.mark.parametrize("address", ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "unix:///run/pilot.sock"])
def test_a_plaintext_peer_on_this_machine_is_taken_at_its_word_if_allowed(address: str) -> None:
    assert identity(address) == "spiffe://cluster.local/ns/shop/sa/default"
    assert identity(address, SERVICE_ACCOUNT="reco") == RECO
    assert identity(address, trust=False) == ""


@pytest.mark.parametrize("address", ["192.0.2.7:4000", "[2001:db8::1]:4000", "nonsense"])
def test_a_plaintext_peer_elsewhere_has_no_identity(address: str) -> None:
    assert identity(address) == ""
