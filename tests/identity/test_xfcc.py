from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.identity.authenticators.client_certificate import ClientCertificate
from mesh_pilot.identity.authenticators.settings import TrustedGateways
from mesh_pilot.identity.authenticators.xfcc import HEADER, ForwardedCertificate, elements
from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials, TrustDomains
from mesh_pilot.model.spiffe import Identity
from tests.support.certificates import write_certificates

WEB = "spiffe://cluster.local/ns/shop/sa/web"
OTHER = "spiffe://cluster.local/ns/shop/sa/other"
GATEWAY = "10.1.2.3:4000"


def authenticator(*identities: tuple[str, str]) -> ForwardedCertificate:
    trusted = TrustedGateways((ipaddress.ip_network("10.1.0.0/16"),), frozenset(identities))
    return ForwardedCertificate(trusted, mesh, ClientCertificate(mesh))


def mesh() -> TrustDomains:
    return TrustDomains("cluster.local")


async def judged(*headers: str, address: str = GATEWAY) -> Identity | None:
    return await authenticator().authenticate(Credentials(address, True, metadata={HEADER: headers}))


async def test_the_certificate_that_a_trusted_gateway_saw_names_its_client() -> None:
    assert await judged(f"By={OTHER};Hash=ab12;URI={WEB}") == Identity("cluster.local", "shop", "web")
    assert await judged(f'Hash=ab;Subject="CN=a, O=\\"b; URI={OTHER}\\"";uri={WEB};DNS=a.test') is not None


@pytest.mark.parametrize("headers", [(f"URI={OTHER},URI={WEB}",), (f"URI={OTHER}", f"URI={WEB}")])
async def test_of_several_elements_the_nearest_proxys_counts(headers: tuple[str, ...]) -> None:
    found = await judged(*headers)
    assert found is not None and found.service_account == "web"


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "xfcc_form"),
        ("nonsense", "xfcc_form"),
        (f'Subject="CN=a;URI={WEB}', "xfcc_form"),
        (f"URI={WEB},", "xfcc_form"),
        (f"URI={WEB}=x", "xfcc_form"),
        (f'URI="{WEB}"x', "xfcc_form"),
        ("Hash=ab", "spiffe_names"),
        (f"URI={WEB};URI={OTHER}", "spiffe_names"),
        (f'Subject="URI={WEB}"', "spiffe_names"),
        (f"URI={WEB},Hash=ab", "spiffe_names"),
        (f"URI={WEB.replace('web', 'w%65b')}", "spiffe_form"),
        ("URI=spiffe://evil.example/ns/shop/sa/web", "trust_domain"),
    ],
)
async def test_a_header_that_names_no_workload_of_the_mesh_is_refused(header: str, reason: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await judged(header)
    assert caught.value.reason == reason


@pytest.mark.parametrize("address", ["10.2.0.1:4000", "127.0.0.1:4000", "unix:///run/pilot.sock", "[::1]:1", ""])
async def test_the_header_of_a_stranger_is_refused(address: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        await judged(f"URI={WEB}", address=address)
    assert caught.value.reason == "xfcc_stranger"


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_a_gateway_whose_identity_is_revoked_speaks_for_nobody(tmp_path: Path, is_revoked: bool) -> None:
    files = write_certificates(tmp_path, "gateway", uris=(OTHER,))
    own = ssl.PEM_cert_to_DER_cert(files.certificate.read_text())
    revoked = datetime(2099, 1, 1, tzinfo=UTC) if is_revoked else None
    trusted = TrustedGateways((), frozenset({("shop", "other")}))
    judge = ForwardedCertificate(trusted, mesh, ClientCertificate(mesh), lambda identity: revoked)
    credentials = Credentials("192.0.2.1:4000", True, own, {HEADER: (f"URI={WEB}",)})
    if not is_revoked:
        assert await judge.authenticate(credentials) == Identity("cluster.local", "shop", "web")
        return
    with pytest.raises(AuthenticationError) as refused:
        await judge.authenticate(credentials)
    assert refused.value.reason == "xfcc_stranger"


async def test_who_sends_no_header_shows_nothing_here() -> None:
    assert await authenticator().authenticate(Credentials(GATEWAY, True)) is None


@given(st.text(alphabet='aUR I=";,\\\0é', max_size=60))
def test_any_header_is_read_or_refused(header: str) -> None:
    try:
        list(elements(header))
    except ValueError as error:
        assert "from character" in str(error)
