"""An EST server as RFC 7030 says, strict about what clients send.

server = FakeEst()
ca = EstCa(server.settings(tmp_path), server.transport())
"""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

from mesh_pilot.identity.signers.est.settings import EstSettings
from tests.identity.signers.fake_authority import FakeAuthority

PASSWORD = "of-the-registration-authority"
BASE = "/.well-known/est/mesh/"


class FakeEst(FakeAuthority):
    """Mutable state: how it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.is_pending = False
        """True if a person approves requests."""
        self.answer: httpx.Response | None = None
        """What it answers instead."""

    def settings(self, folder: Path, **more: Any) -> EstSettings:
        file = folder / "password"
        file.write_text(PASSWORD + "\n")
        given = {"address": "https://est.example.com", "label": "mesh", "user": "pilot", "password_file": file}
        return EstSettings(**{**given, **more})

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix(BASE)
        self.asked.append(f"{request.method} {path}")
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        if self.answer is not None:
            return self.answer
        match request.method, path:
            case "GET", "cacerts":
                found = [root.certificate for root in (*self.issuers, *self.chain)]
                if self.signer is not None and len(self.issuers) > 1:
                    found.append(self.signer.certificate)
                return _certificates(found)
            case "POST", "simpleenroll" if self.busy:
                self.busy -= 1
                return httpx.Response(503, headers={"retry-after": "1"})
            case "POST", "simpleenroll" if self.is_pending:
                return httpx.Response(202, headers={"retry-after": "3600"})
            case "POST", "simpleenroll" if self.is_forbidden:
                return httpx.Response(403, headers={"content-type": "text/plain"}, content=b"not a\nregistrar")
            case "POST", "simpleenroll":
                return self._enroll(request)
        return httpx.Response(404)

    def _enroll(self, request: httpx.Request) -> httpx.Response:
        expected = base64.b64encode(f"pilot:{PASSWORD}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {expected}":
            return httpx.Response(401, headers={"www-authenticate": 'Basic realm="est"'})
        assert request.headers["content-type"] == "application/pkcs10"
        assert request.headers["content-transfer-encoding"] == "base64"
        assert max(map(len, request.content.splitlines())) <= 76, "RFC 2045"
        csr = x509.load_der_x509_csr(base64.b64decode(request.content))
        assert csr.is_signature_valid
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return _certificates([self.issue(csr, list(names), timedelta(days=1))])


def _certificates(found: list[x509.Certificate]) -> httpx.Response:
    body = base64.encodebytes(pkcs7.serialize_certificates(found, Encoding.DER))
    kind = "application/pkcs7-mime; smime-type=certs-only"
    return httpx.Response(200, headers={"content-type": kind, "content-transfer-encoding": "base64"}, content=body)
