"""A real step-ca signs: its certificates pass all checks, and its roots, its keys and its refusals are followed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mesh_pilot.app.signers import named_ca
from mesh_pilot.identity.signers.remote import CaError, RemoteSigner
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningRequest
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.spiffe import Identity
from tests.support.step_ca import StepCaServer, step_ca

WEB = Identity("cluster.local", "shop", "web")
DAY = timedelta(days=1)

pytestmark = pytest.mark.process


@attrs.define(eq=False)
class Story:
    signer: RemoteSigner
    trust: TrustStore

    async def sign(
        self, identity: Identity | None = WEB, names: tuple[str, ...] = (), lifetime: timedelta = DAY
    ) -> SignedCertificate:
        csr = new_request(ec.generate_private_key(ec.SECP256R1()), identity, names)
        return await self.signer.sign(SigningRequest(csr, lifetime, identity, names))


@asynccontextmanager
async def story(file: Path) -> AsyncIterator[Story]:
    named, trust = named_ca(file), TrustStore()
    try:
        yield Story(RemoteSigner(named.ca, trust, lambda: datetime.now(UTC), roots_file=named.roots), trust)
    finally:
        await named.ca.aclose()


async def test_step_ca_signs_identities_and_servers(tmp_path: Path) -> None:
    async with step_ca(tmp_path) as ca, story(ca.signer_file()) as it:
        signed = await it.sign()
        leaf, middle, root = x509.load_pem_x509_certificates(signed.chain)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.UniformResourceIdentifier(str(WEB))]
        assert middle.issuer == root.subject
        assert it.trust.own().roots == ca.root_pems
        server = await it.sign(None, ("pilot.example.com", "10.0.0.7"), timedelta(hours=1))
        assert server.not_after - datetime.now(UTC) <= timedelta(hours=1)
        again = await it.sign()  # each token is good once, so each certificate has one of its own
        assert again.leaf.serial_number != leaf.serial_number


async def test_what_step_ca_refuses_is_an_error_that_says_what_to_change(tmp_path: Path) -> None:
    async with (
        step_ca(tmp_path, claims={"maxTLSCertDuration": "1h", "defaultTLSCertDuration": "30m"}) as ca,
        story(ca.signer_file()) as it,
    ):
        with pytest.raises(CaError, match=r"403 .*claims\.maxTLSCertDuration") as raised:
            await it.sign()
        assert raised.value.reason == "forbidden"
        await it.sign(lifetime=timedelta(hours=1))
        other = StepCaServer(tmp_path, ca.port, ca.roots, {}).key
        (ca.folder / "other.jwk").write_text(json.dumps(other.as_dict(private=True)))
        async with story(ca.signer_file(keyFile="other.jwk")) as other_key:
            with pytest.raises(CaError, match=r"401 .*the key must be that of provisioner mesh") as raised:
                await other_key.sign(lifetime=timedelta(hours=1))
        assert raised.value.reason == "forbidden"


async def test_a_template_decides_about_uri_names(tmp_path: Path) -> None:
    """The one of docs/signers.md keeps them; one for DNS names alone is found out."""
    drops = '{"subject": {"commonName": "x"}, "dnsNames": ["x"], "extKeyUsage": ["serverAuth", "clientAuth"]}'
    async with step_ca(tmp_path, options={"x509": {"template": drops}}) as ca, story(ca.signer_file()) as it:
        with pytest.raises(Exception, match=r"is for DNS x and not, as asked, for exactly URI spiffe"):
            await it.sign()
        keeps = '{"subject": {}, "sans": {{ toJson .SANs }}, "keyUsage": ["digitalSignature"], '
        keeps += '"extKeyUsage": ["serverAuth", "clientAuth"]}'
        await ca.stop()
        ca.options = {"options": {"x509": {"template": keeps}}}
        await ca.start()
        leaf = (await it.sign()).leaf
        assert leaf.subject == x509.Name([])


async def test_roots_and_keys_that_change_at_step_ca_are_taken_up(tmp_path: Path) -> None:
    async with step_ca(tmp_path) as ca, story(ca.signer_file()) as it:
        await it.sign()
        assert it.trust.own().roots == ca.root_pems
        await ca.stop()
        with pytest.raises(CaError, match=r"https://127\.0\.0\.1") as raised:
            await it.sign()
        assert raised.value.reason == "unreachable"
        ca.add_root("next root")
        ca.replace_key()
        ca.signer_file()  # whose CA of the server has both roots
        await ca.start()
        it.signer._read_at = float("-inf")
        await it.sign()
        assert it.trust.own().roots == ca.root_pems
        assert len(ca.root_pems) == 2
        assert it.signer.statistics().trouble == ""
