"""A Vault of a few endpoints: a PKI engine with a role, tokens, AppRole. What it answers has the form of real answers.

vault = FakeVault()
signer = VaultSigner(settings, trust, now, client=VaultClient(settings, vault.transport()))
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PEM = serialization.Encoding.PEM


class Root:
    """A CA: a key and its certificate, self-signed or under another one."""

    def __init__(self, name: str, parent: Root | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = parent or self
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(signer.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=1))
            .not_valid_after(NOW + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
            .sign(signer.key, hashes.SHA256())
        )
        self.revoked: list[int] = []

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def crl(self, next_update: datetime) -> bytes:
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(NOW).next_update(next_update)
        for serial in self.revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(PEM)


class FakeVault:
    """Mutable state: what the role does, which tokens count, whether anybody is there, and what was asked."""

    def __init__(self) -> None:
        self.issuers = [Root("mesh root")]
        self.chain: list[Root] = []
        """The roots above the last issuer, as far as the engine knows them."""
        self.tokens = {"root-token"}
        self.secret_ids = {"secret"}
        self.lease_seconds = 3600
        self.is_away = False
        self.begins_early = timedelta(seconds=30)
        self.is_forbidden = False
        """True if the policy of tokens does not allow to sign."""
        self.crl_ends = NOW + timedelta(days=3)
        self.asked: list[str] = []
        self.names: Callable[[dict[str, Any]], list[x509.GeneralName]] = names_of
        """What the role makes of a request's names."""
        self.key: ec.EllipticCurvePublicKey | None = None
        """The key that it signs; None: that of the CSR."""
        self.is_ca = False
        self.usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        self.lifetime: timedelta | None = None
        """The lifetime that it gives; None: the one that is asked for."""
        self.signer: Root | None = None
        """The CA that signs; None: the last issuer."""

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        self.asked.append(f"{request.method} {path}")
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        token = request.headers.get("x-vault-token", "")
        match request.method, path.split("/"):
            case "LIST", ["pki", "issuers"]:
                return _json(data={"keys": [str(at) for at in range(len(self.issuers))]})
            case "GET", ["pki", "issuer", at, "json"]:
                above = [root.pem.decode() for root in (self.issuers[int(at)], *self.chain)]
                return _json(data={"certificate": above[0], "ca_chain": above})
            case "GET", ["pki", "issuer", at, "crl"]:
                return _json(data={"crl": self.issuers[int(at)].crl(self.crl_ends).decode()})
            case "POST", ["auth", "approle", "login"]:
                return self._log_in(json.loads(request.content))
            case "POST", ["auth", "token", "renew-self"] if token in self.tokens:
                return _json(auth=self._lease(token))
            case "POST", ["pki", "sign", "mesh"] if token in self.tokens and not self.is_forbidden:
                return _json(data=self._sign(json.loads(request.content)))
        return httpx.Response(403, json={"errors": ["permission denied"]})

    def _log_in(self, body: dict[str, Any]) -> httpx.Response:
        if body["role_id"] != "pilot" or body["secret_id"] not in self.secret_ids:
            return httpx.Response(400, json={"errors": ["invalid role or secret ID"]})
        token = f"hvs.{len(self.asked)}"
        self.tokens.add(token)
        return _json(auth=self._lease(token))

    def _lease(self, token: str) -> dict[str, Any]:
        return {"client_token": token, "lease_duration": self.lease_seconds, "renewable": True}

    def _sign(self, body: dict[str, Any]) -> dict[str, Any]:
        csr = x509.load_pem_x509_csr(body["csr"].encode())
        signer = self.signer or self.issuers[-1]
        lifetime = self.lifetime or timedelta(seconds=int(body["ttl"].removesuffix("s")))
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(signer.name)
            .public_key(self.key or csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - self.begins_early)
            .not_valid_after(NOW + lifetime)
            .add_extension(x509.BasicConstraints(ca=self.is_ca, path_length=None), critical=True)
            .add_extension(_usage(signs=self.is_ca), critical=True)
            .add_extension(x509.ExtendedKeyUsage(self.usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        if names := self.names(body):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        leaf = builder.sign(signer.key, hashes.SHA256())
        chain = [root.pem.decode() for root in (signer, *self.chain)]
        return {"certificate": leaf.public_bytes(PEM).decode(), "issuing_ca": chain[0], "ca_chain": chain}


def names_of(body: dict[str, Any]) -> list[x509.GeneralName]:
    """Those of the request, as a good role takes them."""
    hosts = filter(None, body.get("alt_names", "").split(","))
    uris = filter(None, body.get("uri_sans", "").split(","))
    return [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, hosts)]


def _json(**answer: Any) -> httpx.Response:
    return httpx.Response(200, json=answer)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
