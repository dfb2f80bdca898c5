"""Vault's and OpenBao's PKI secrets engine as a CA.

What is asked for: our CSR with the identity next to it (``pki/sign/<role>`` with ``uri_sans``). The roots are those at
the ends of the chains of all issuers of the engine, so that a root is rotated in Vault itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from mesh_pilot.base.reading import as_list
from mesh_pilot.identity.signers.remote import CaError, CaRoots, pem_certificates
from mesh_pilot.identity.signers.requests import is_address
from mesh_pilot.identity.signers.signing import SigningError, SigningRequest
from mesh_pilot.identity.signers.vault.client import NOT_FOUND, VaultClient
from mesh_pilot.identity.signers.vault.settings import VaultSettings

MAX_ISSUERS = 50
"""Issuers of a PKI engine that are looked at."""

PEM = serialization.Encoding.PEM


class VaultCa:
    """A role of a PKI engine. See ``RemoteCa``."""

    names_from_csr = False

    def __init__(self, settings: VaultSettings, client: VaultClient | None = None) -> None:
        self._mount = settings.mount.strip("/")
        self._role = settings.role
        self._client = client or VaultClient(settings)
        self.place = f"Vault at {settings.address} ({self._mount}/roles/{self._role})"

    def __repr__(self) -> str:
        return f"<VaultCa {self.place}>"

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """See ``RemoteCa``."""
        answer = await self._client.post(f"{self._mount}/sign/{self._role}", _question(request))
        texts = [answer.get("certificate"), *as_list(answer, "ca_chain"), answer.get("issuing_ca")]
        return pem_certificates(texts, "Vault")

    async def roots(self) -> CaRoots:
        """See ``RemoteCa``."""
        issuers = [await self._issuer(name) for name in await self._issuer_names()]
        found = tuple(crl for _, crl in issuers if crl is not None)
        certificates = tuple(dict.fromkeys(certificate for chain, _ in issuers for certificate in chain))
        return CaRoots(certificates, found if len(found) == len(issuers) else ())

    async def aclose(self) -> None:
        """See ``RemoteCa``."""
        await self._client.aclose()

    async def _issuer_names(self) -> list[str]:
        try:
            keys = (await self._client.get(f"{self._mount}/issuers", method="LIST")).get("keys")
        except CaError as error:
            if error.status == NOT_FOUND:
                raise SigningError(f"{self.place}: the PKI engine does not exist or has no issuer: {error}") from None
            raise
        names = as_list(keys)
        if len(names) > MAX_ISSUERS:
            raise SigningError(f"{self.place}: the PKI engine has {len(names)} issuers, more than we look at")
        return [str(name) for name in names]

    async def _issuer(self, name: str) -> tuple[list[x509.Certificate], x509.CertificateRevocationList | None]:
        """The chain of an issuer, and its revocation list if it has one that can be read."""
        data = await self._client.get(f"{self._mount}/issuer/{name}/json")
        chain = pem_certificates([data.get("certificate"), *as_list(data, "ca_chain")], "Vault")
        try:
            text = (await self._client.get(f"{self._mount}/issuer/{name}/crl")).get("crl")
            return chain, x509.load_pem_x509_crl(str(text).encode())
        except (CaError, ValueError):
            return chain, None


def _question(request: SigningRequest) -> Mapping[str, Any]:
    addresses = [name for name in request.dns_names if is_address(name)]
    hosts = [name for name in request.dns_names if not is_address(name)]
    return {
        "csr": request.csr.public_bytes(PEM).decode(),
        "ttl": f"{int(request.lifetime.total_seconds())}s",
        "format": "pem",
        "exclude_cn_from_sans": True,
        **({"uri_sans": str(request.identity)} if request.identity is not None else {}),
        **({"alt_names": ",".join(hosts)} if hosts else {}),
        **({"ip_sans": ",".join(addresses)} if addresses else {}),
    }
