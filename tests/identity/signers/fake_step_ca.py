"""A step-ca of a few endpoints, which checks tokens as the real one does.

step = FakeStepCa()
ca = StepCa(step.settings(tmp_path), step.transport(), lambda: NOW)
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from joserfc import jwe, jwt
from joserfc.jwk import ECKey, OctKey
from joserfc.util import urlsafe_b64encode

from mesh_pilot.identity.signers.requests import is_address
from mesh_pilot.identity.signers.step_ca.settings import StepCaSettings
from tests.identity.signers.fake_authority import NOW, PEM, FakeAuthority

ADDRESS = "https://ca.example.com:9000"


class FakeStepCa(FakeAuthority):
    """Mutable state: the key of its provisioner, and the tokens that were used."""

    def __init__(self) -> None:
        super().__init__()
        self.password = "of-the-provisioner"
        self.provisioner_key = ECKey.generate_key("P-256")
        self.has_key = True
        """True if it gives the key, encrypted."""
        self.kind = "JWK"
        self.used: set[str] = set()

    def settings(self, folder: Path, **more: Any) -> StepCaSettings:
        file = folder / "password"
        file.write_text(self.password)
        return StepCaSettings(**{"address": ADDRESS, "provisioner": "mesh", "password_file": file, **more})

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def encrypted(self, rounds: int = 1000) -> str:
        header = {"alg": "PBES2-HS256+A128KW", "enc": "A256GCM", "p2c": rounds}
        registry = jwe.JWERegistry(algorithms=["PBES2-HS256+A128KW", "A256GCM"])
        content = json.dumps(self.provisioner_key.as_dict(private=True)).encode()
        return jwe.encrypt_compact(header, content, OctKey.import_key(self.password), registry=registry)

    @property
    def kid(self) -> str:
        return self.provisioner_key.thumbprint()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/1.0/")
        self.asked.append(f"{request.method} {path}")
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        match request.method, path:
            case "GET", "roots":
                pems = [root.pem.decode() for root in (self.chain or self.issuers)]
                return httpx.Response(201, json={"crts": pems})
            case "GET", "provisioners" if "cursor" not in request.url.params:
                return httpx.Response(200, json={"provisioners": [{"type": "ACME", "name": "acme"}], "nextCursor": "1"})
            case "GET", "provisioners":
                about = {"type": self.kind, "name": "mesh", "key": {"kid": self.kid}}
                more = {"encryptedKey": self.encrypted()} if self.has_key else {}
                return httpx.Response(200, json={"provisioners": [{**about, **more}], "nextCursor": ""})
            case "POST", "sign" if self.busy:
                self.busy -= 1
                return httpx.Response(503, headers={"retry-after": "1"}, json={"status": 503, "message": "later"})
            case "POST", "sign" if self.is_forbidden:
                return httpx.Response(403, json={"status": 403, "message": "The request was forbidden."})
            case "POST", "sign":
                return self._sign(json.loads(request.content))
        return httpx.Response(404, json={"status": 404, "message": "not found"})

    def _sign(self, body: dict[str, Any]) -> httpx.Response:
        csr = x509.load_pem_x509_csr(body["csr"].encode())
        try:
            token = jwt.decode(body["ott"], self.provisioner_key, algorithms=["ES256"])
        except Exception:
            return httpx.Response(401, json={"status": 401, "message": "The request lacked authorization."})
        claims, now = token.claims, NOW.timestamp()
        digest = hashlib.sha256(csr.public_bytes(Encoding.DER)).digest()
        assert token.header["kid"] == self.kid
        assert (claims["iss"], claims["aud"]) == ("mesh", f"{ADDRESS}/1.0/sign")
        assert claims["nbf"] <= now < claims["exp"]
        assert claims["sub"]
        assert claims["cnf"] == {"x5rt#S256": urlsafe_b64encode(digest).decode()}
        assert claims["jti"] not in self.used
        self.used.add(claims["jti"])
        leaf = self.issue(csr, [_name(each) for each in claims["sans"]], timedelta(seconds=int(body["notAfter"][:-1])))
        above = [each for each in self.chain_above if each.issuer != each.subject]
        pems = [each.public_bytes(PEM).decode() for each in (leaf, *above)]
        return httpx.Response(201, json={"crt": pems[0], "ca": pems[-1], "certChain": pems})


def _name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    return x509.IPAddress(ip_address(text)) if is_address(text) else x509.DNSName(text)
