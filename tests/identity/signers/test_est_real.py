"""A real EST server signs: its certificates pass all checks, and another root is taken up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.app.signers import named_ca
from mesh_pilot.identity.signers.remote import RETRY_SECONDS, RemoteSigner
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.spiffe import Identity
from tests.support.authorities import make_ca
from tests.support.est import est_server, root_pem

WEB = Identity("cluster.local", "shop", "web")

pytestmark = pytest.mark.process


@asynccontextmanager
async def story(file: Path) -> AsyncIterator[tuple[RemoteSigner, TrustStore]]:
    named, trust = named_ca(file), TrustStore()
    try:
        yield RemoteSigner(named.ca, trust, lambda: datetime.now(UTC), roots_file=named.roots), trust
    finally:
        await named.ca.aclose()


async def signed(signer: RemoteSigner, lifetime: timedelta = timedelta(days=1)) -> SignedCertificate:
    csr = new_request(ec.generate_private_key(ec.SECP256R1()), WEB)
    return await signer.sign(SigningRequest(csr, lifetime, WEB))


async def test_an_est_server_signs_for_a_client_certificate(tmp_path: Path) -> None:
    async with est_server(tmp_path) as server, story(server.signer_file()) as (signer, trust):
        found = await signed(signer)
        leaf, middle, root = x509.load_pem_x509_certificates(found.chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert list(names.value) == [x509.UniformResourceIdentifier(str(WEB))]
        assert names.critical, "a certificate without subject has to have it so"
        assert (leaf.issuer, middle.issuer) == (middle.subject, root.subject)
        assert trust.own().roots == (root_pem(server),)
        with pytest.raises(SigningError, match="longer than the 1:00:00 that were asked for"):
            await signed(signer, timedelta(hours=1))


async def test_another_root_of_an_est_server_is_taken_up(tmp_path: Path) -> None:
    async with est_server(tmp_path) as server, story(server.signer_file()) as (signer, trust):
        await signed(signer)
        before = trust.own().roots
        server.root = make_ca("next root")
        await server.stop()
        await server.start()
        signer._read_at -= RETRY_SECONDS
        await signed(signer)
        assert trust.own().roots == (root_pem(server),) != before
