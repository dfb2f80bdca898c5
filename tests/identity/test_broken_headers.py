"""A broken ``x-forwarded-client-cert`` through a trusted gateway does not give its sender the gateway's identity."""

from __future__ import annotations

import pytest

from mesh_pilot.identity.authenticators.authentication import Authentication
from mesh_pilot.identity.authenticators.xfcc import HEADER
from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials
from mesh_pilot.model.spiffe import Identity
from tests.identity.test_xfcc import GATEWAY, authenticator


class OwnCertificate:
    """Vouches for whoever holds the connection: the gateway."""

    name = "certificate"

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        return Identity("cluster.local", "edge", "gateway")


@pytest.mark.parametrize(
    "header", ["", "nonsense", 'Subject="CN=a;URI=x', "Hash=ab", "URI=spiffe://evil.test/ns/a/sa/b"]
)
async def test_the_gateways_own_certificate_does_not_count_for_its_client(header: str) -> None:
    chain = Authentication([authenticator(), OwnCertificate()])
    with pytest.raises(AuthenticationError):
        await chain.caller(Credentials(GATEWAY, True, metadata={HEADER: (header,)}))
    assert not chain.accepted
