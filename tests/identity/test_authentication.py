from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mesh_pilot.identity.authenticators.authentication import Authentication, Verdict, admission, check_claim
from mesh_pilot.identity.authenticators.client_certificate import identity_in
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    AuthenticatorUnavailable,
    Caller,
    Credentials,
    TrustDomains,
)
from mesh_pilot.model.spiffe import Identity
from tests.support.worlds import sidecar

RECO = "spiffe://cluster.local/ns/shop/sa/reco"
OTHER = "spiffe://cluster.local/ns/other/sa/reco"
IDENTITY = Identity("cluster.local", "shop", "reco")
REMOTE = "192.0.2.7:4000"


def certified(*spiffe_ids: str, aliases: tuple[str, ...] = ()) -> Identity:
    """The identity of a client certificate with these URI names."""
    return identity_in(spiffe_ids, TrustDomains("cluster.local", frozenset(aliases)))


def test_a_certificate_proves_who_a_proxy_is() -> None:
    assert certified(RECO) == IDENTITY


@pytest.mark.parametrize(
    ("spiffe_ids", "found"), [((), "no SPIFFE name"), ((RECO, OTHER), "2 SPIFFE names"), ((RECO, RECO), "2 SPIFFE")]
)
def test_a_certificate_without_exactly_one_spiffe_name_proves_nothing(spiffe_ids: tuple[str, ...], found: str) -> None:
    with pytest.raises(AuthenticationError, match=found):
        certified(*spiffe_ids)


def test_a_certificate_of_another_trust_domain_is_refused() -> None:
    with pytest.raises(AuthenticationError, match=r"evil\.example is not a trust domain of this mesh \(cluster\.local"):
        certified("spiffe://evil.example/ns/shop/sa/reco")


def test_a_certificate_of_an_alias_of_the_trust_domain_is_of_the_mesh() -> None:
    assert certified("spiffe://old.example/ns/shop/sa/reco", aliases=("old.example",)) == IDENTITY


@pytest.mark.parametrize("node", [{"namespace": "other"}, {"SERVICE_ACCOUNT": "cart"}])
def test_a_node_that_claims_to_be_another_workload_is_refused(node: dict[str, str]) -> None:
    with pytest.raises(AuthenticationError, match=r"claims namespace .*, but it is proven to be spiffe://cluster"):
        check_claim(sidecar(**{"namespace": "shop", **node}), IDENTITY)


def test_the_namespace_that_is_served_is_the_one_that_is_proven() -> None:
    """As in Istio, metadata NAMESPACE goes before the node id; so it is what the certificate must be for."""
    assert sidecar(namespace="other", NAMESPACE="shop").namespace == "shop"
    check_claim(sidecar(namespace="other", NAMESPACE="shop"), IDENTITY)


def admitted(address: str, caller: Caller | None = None, *, trust: bool = True) -> Verdict:
    return admission(sidecar(namespace="shop"), caller, address, trust_local=trust, trust_domain="cluster.local")


def test_who_is_proven_has_that_identity_from_anywhere() -> None:
    assert admitted(REMOTE, Caller(IDENTITY, "test"), trust=False) == Verdict(RECO)


@pytest.mark.parametrize("address", ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5", "unix:///run/pilot.sock"])
def test_a_peer_on_this_machine_is_believed_its_node_only_where_that_is_allowed(address: str) -> None:
    assert admitted(address).identity == "spiffe://cluster.local/ns/shop/sa/default"
    assert "not trusted without" in admitted(address, trust=False).reason


@pytest.mark.parametrize("address", [REMOTE, "[2001:db8::1]:5", "127.example.test:5", ""])
def test_another_peer_without_evidence_has_no_identity(address: str) -> None:
    assert "not on this machine" in admitted(address).reason


def test_a_trusted_node_whose_names_are_not_those_of_an_identity_has_none() -> None:
    odd = sidecar(namespace="shop", SERVICE_ACCOUNT="../root")
    verdict = admission(odd, None, "127.0.0.1:5", trust_local=True, trust_domain="cluster.local")
    assert verdict.identity == "" and "'../root'" in verdict.reason


class Toy:
    """Knows the token of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        match (credentials.bearer_token or "").split("-"):
            case [self.name, "good"]:
                return IDENTITY
            case [self.name, "down"]:
                raise AuthenticatorUnavailable("nobody answers")
            case [self.name, _]:
                raise AuthenticationError("forged", f"{self.name} did not make it")
        return None


def showing(token: str, address: str = REMOTE, *, tls: bool = True) -> Credentials:
    metadata: Mapping[str, Sequence[str]] = {"authorization": [f"Bearer {token}"]}
    return Credentials(address, tls, metadata=metadata)


async def test_the_first_authenticator_that_knows_the_evidence_decides() -> None:
    chain = Authentication([Toy("a"), Toy("b")])
    assert await chain.caller(showing("b-good")) == Caller(IDENTITY, "b")
    assert await chain.caller(Credentials(REMOTE)) is None
    with pytest.raises(AuthenticationError, match="a did not make it"):
        await chain.caller(showing("a-bad"))
    with pytest.raises(AuthenticatorUnavailable):
        await chain.caller(showing("a-down"))
    assert (chain.accepted, chain.refused) == ({"b": 1}, {("a", "forged"): 1, ("a", "unavailable"): 1})


async def test_a_token_that_may_have_been_overheard_is_no_evidence() -> None:
    chain = Authentication([Toy("a")])
    assert await chain.caller(showing("a-good", tls=False)) is None
    assert await chain.caller(showing("a-good", "127.0.0.1:7", tls=False)) == Caller(IDENTITY, "a")
