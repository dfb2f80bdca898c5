"""A Vault of a few endpoints: a PKI engine with a role, tokens, AppRole. What it answers has the form of real answers.

vault = FakeVault()
ca = VaultCa(settings, VaultClient(settings, vault.transport()))
"""

from __future__ import annotations

import json
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import httpx
from cryptography import x509

from tests.identity.signers.fake_authority import NOW, PEM, FakeAuthority


class FakeVault(FakeAuthority):
    """Mutable state: which tokens count."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {"root-token"}
        self.secret_ids = {"secret"}
        self.lease_seconds = 3600
        self.crl_ends = NOW + timedelta(days=3)

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
            case "POST", ["pki", "sign", "mesh"] if self.busy:
                self.busy -= 1
                return httpx.Response(503, json={"errors": ["Vault is sealed"]})
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
        leaf = self.issue(csr, names_of(body), timedelta(seconds=int(body["ttl"].removesuffix("s"))))
        chain = [above.public_bytes(PEM).decode() for above in self.chain_above]
        return {"certificate": leaf.public_bytes(PEM).decode(), "issuing_ca": chain[0], "ca_chain": chain}


def names_of(body: dict[str, Any]) -> list[x509.GeneralName]:
    """Those of the request, as a good role takes them."""
    hosts = filter(None, body.get("alt_names", "").split(","))
    uris = filter(None, body.get("uri_sans", "").split(","))
    addresses = map(ip_address, filter(None, body.get("ip_sans", "").split(",")))
    return [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]


def _json(**answer: Any) -> httpx.Response:
    return httpx.Response(200, json=answer)
