"""A controller of a signer of Kubernetes, as cert-manager's: it signs what is approved, by a CA in memory.

async with signing(apiserver, "example.com/mesh") as signer:
    signer.behaviour = "denied"
    signer.root, signer.seen
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.identity.authority.material import KeyPair
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, Object, load_access, reflect
from mesh_pilot.kubernetes.identity.signer import REQUESTS
from tests.support.apiserver import ApiServer
from tests.support.authorities import make_ca
from tests.support.x509_parts import usage

PEM = serialization.Encoding.PEM
_USAGES = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}


@attrs.define(eq=False)
class CsrSigner:
    """State: the CA, how it behaves, and the requests that it has seen, by name, as they were last."""

    apiserver: ApiServer
    name: str
    root: KeyPair = attrs.field(factory=lambda: make_ca("mesh root", lifetime=timedelta(days=3650)))
    ca: KeyPair = attrs.field(init=False)
    behaviour: str = "signs"
    """``signs``, ``denied``, ``failed`` or ``idle``."""
    approves: bool = False
    """True: the controller is the approver, too."""
    key: ec.EllipticCurvePublicKey | None = None
    """The key that it signs, in place of that of the CSR."""
    lifetime: timedelta | None = None
    """The lifetime that it gives, whatever is asked for."""
    spoil: Callable[[x509.CertificateBuilder], x509.CertificateBuilder] = lambda builder: builder
    seen: dict[str, Object] = attrs.field(factory=dict)
    deleted: list[str] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.ca = make_ca("mesh signer", self.root, lifetime=timedelta(days=700))

    # -- the listener of a reflector

    async def listed(self, resource: ApiResource, version: str, objects: list[Any]) -> None:
        for found in objects:
            await self.changed(resource, version, found, there=True)

    async def changed(self, resource: ApiResource, version: str, found: Any, *, there: bool) -> None:
        name = found["metadata"]["name"]
        if not there:
            self.deleted.append(name)
        elif found["spec"]["signerName"] == self.name:
            self.seen[name] = found
            await self._handle(found)

    def lost(self, resource: ApiResource, reason: str) -> None:
        pass

    def found(self, resource: ApiResource) -> None:
        pass

    async def _handle(self, found: Object) -> None:
        status = found.get("status") or {}
        conditions = status.get("conditions") or []
        kinds = {each["type"] for each in conditions}
        if status.get("certificate") or self.behaviour == "idle" or kinds & {"Denied", "Failed"}:
            return
        if "Approved" not in kinds:
            kind = {"denied": "Denied"}.get(self.behaviour, "Approved" if self.approves else "")
            if kind:
                await self._write(found, "approval", conditions=[*conditions, _condition(kind, "ByPolicy")])
            return
        if self.behaviour == "failed":
            failed = _condition("Failed", "SignerError", "the CA is out of order")
            await self._write(found, "status", conditions=[*conditions, failed])
            return
        text = self._signed(found).public_bytes(PEM) + self.ca.certificate.public_bytes(PEM)
        await self._write(found, "status", conditions=conditions, certificate=base64.b64encode(text).decode())

    async def _write(self, found: Object, subresource: str, **status: Any) -> None:
        path = f"{REQUESTS.path('v1', name=found['metadata']['name'])}/{subresource}"
        body = {**found, "apiVersion": "certificates.k8s.io/v1", "kind": REQUESTS.kind, "status": status}
        reply = await self.apiserver.request("PUT", path, body)
        assert reply.is_success or reply.status_code in (404, 409), reply.text  # gone, or changed: we are told

    def _signed(self, found: Object) -> x509.Certificate:
        spec = found["spec"]
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        now = datetime.now(UTC)
        lifetime = self.lifetime or timedelta(seconds=spec["expirationSeconds"])
        builder = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(self.ca.certificate.subject)
            .public_key(self.key or csr.public_key())  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_USAGES[u] for u in spec["usages"] if u in _USAGES]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca.key.public_key()), critical=False)
        )
        for extension in csr.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                builder = builder.add_extension(extension.value, critical=extension.critical)
        return self.spoil(builder).sign(self.ca.key, hashes.SHA256())


@asynccontextmanager
async def signing(apiserver: ApiServer, name: str, **more: Any) -> AsyncIterator[CsrSigner]:
    """The controller of a signer, for the length of the block."""
    signer = CsrSigner(apiserver, name, **more)
    async with ApiClient(load_access(apiserver.kubeconfig())) as client, trio.open_nursery() as nursery:
        nursery.start_soon(reflect, client, REQUESTS, signer, Backoff())
        yield signer
        nursery.cancel_scope.cancel()


def _condition(kind: str, reason: str, message: str = "as the test says") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}
