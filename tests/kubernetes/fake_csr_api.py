"""An API server of one kind, ``CertificateSigningRequest``, with a signer behind it, and a ConfigMap with its roots.

A real one does not go by a test's clock (tests/apiserver/test_a_real_signer.py has it).
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import trio
from cryptography import x509

from tests.identity.signers.fake_authority import PEM, FakeAuthority

SIGNER, TOKEN = "example.com/mesh", "a-token-of-an-account"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CONFIG_MAP = "/api/v1/namespaces/istio-system/configmaps/mesh-roots"


class FakeCsrApi(FakeAuthority):
    """State: the requests that exist, and the signal of the last change."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        """Requests as they were created."""
        self.is_idle = False
        """True if no signer is there."""
        self.conflicts = 0
        """So many approvals more fail, as somebody else has changed the request."""
        self._version = 0
        self._changed = trio.Event()

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(f"{request.method} {path}")
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized", "Unauthorized")
        name, _, subresource = path.removeprefix(f"{REQUESTS}/").partition("/")
        match request.method, path:
            case "GET", str(there) if there == CONFIG_MAP:
                texts = [root.pem.decode() for root in (*self.issuers, *self.chain)]
                return httpx.Response(200, json={"data": {"root-cert.pem": "".join(texts)}})
            case "GET", str(there) if there == REQUESTS:
                return httpx.Response(200, content=self._watched(dict(request.url.params)))
            case "POST", _ if self.is_forbidden:
                text = 'User "mesh-pilot" cannot create resource "certificatesigningrequests"'
                return _status(403, "Forbidden", text)
            case "POST", _ if self.busy:
                self.busy -= 1
                return _status(429, "TooManyRequests", "the server has received too many requests")
            case "POST", _:
                return self._create(json.loads(request.content))
        if name not in self.objects:
            return _status(404, "NotFound", f'certificatesigningrequests.certificates.k8s.io "{name}" not found')
        match request.method:
            case "PUT" if subresource == "approval" and self.conflicts:
                self.conflicts -= 1
                return _status(409, "Conflict", "the object has been modified")
            case "PUT" if subresource == "approval":
                self._put(name, **json.loads(request.content)["status"])
                if not self.is_idle:
                    self._sign(name)
            case "DELETE":
                del self.objects[name]
                return httpx.Response(200, json={"status": "Success"})
        return httpx.Response(200, json=self.objects[name])

    def _create(self, body: dict[str, Any]) -> httpx.Response:
        self.made.append(body)
        spec = body["spec"]
        assert spec["signerName"] == SIGNER
        assert spec["expirationSeconds"] >= 600
        assert set(spec["usages"]) >= {"server auth", "client auth"}
        name = f"{body['metadata']['generateName']}{len(self.made)}"
        self.objects[name] = {**body, "metadata": {"name": name}}
        self._put(name)
        return httpx.Response(201, json=self.objects[name])

    def _put(self, name: str, **status: Any) -> None:
        self._version += 1
        found = self.objects[name]
        metadata = {**found["metadata"], "resourceVersion": str(self._version)}
        self.objects[name] = {**found, "metadata": metadata, "status": {**found.get("status", {}), **status}}
        self._changed.set()
        self._changed = trio.Event()

    def _sign(self, name: str) -> None:
        spec = self.objects[name]["spec"]
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        leaf = self.issue(csr, list(names), timedelta(seconds=spec["expirationSeconds"]))
        pem = b"".join(each.public_bytes(PEM) for each in (leaf, *self.chain_above))
        self._put(name, certificate=base64.b64encode(pem).decode())

    async def _watched(self, params: dict[str, str]) -> AsyncIterator[bytes]:
        name = params["fieldSelector"].removeprefix("metadata.name=")
        seen = int(params["resourceVersion"])
        with trio.move_on_after(float(params["timeoutSeconds"])):
            while name in self.objects:
                found = self.objects[name]
                if int(found["metadata"]["resourceVersion"]) > seen:
                    seen = int(found["metadata"]["resourceVersion"])
                    yield json.dumps({"type": "MODIFIED", "object": found}).encode() + b"\n"
                else:
                    await self._changed.wait()


def _status(code: int, reason: str, message: str) -> httpx.Response:
    return httpx.Response(code, json={"kind": "Status", "code": code, "reason": reason, "message": message})
