"""Certificates and roots of an EST server (RFC 7030).

What is asked for: the CSR as it is, whose names the certificate gets (``/simpleenroll``). A workload's renewal is
another enrollment: ``/simplereenroll`` is for the owner of the certificate, which shows it in TLS; we ask for others,
as a registration authority does. The roots are the self-signed certificates of ``/cacerts``, the others lead to them.
"""

from __future__ import annotations

import base64
import binascii
import warnings
from collections.abc import Mapping

import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs7

from mesh_pilot.identity.signers.est.settings import EstSettings
from mesh_pilot.identity.signers.remote import CaError, CaRoots
from mesh_pilot.identity.signers.signing import SigningError, SigningRequest
from mesh_pilot.identity.signers.wire import CaAnswer, CaConnection, read_secret, status_error

ACCEPTED, NO_CONTENT = 202, 204

CERTIFICATES = "application/pkcs7-mime"

DER = serialization.Encoding.DER

ADVICE = {
    401: "give the server a user and password, or a client certificate, that it knows",
    403: "make this user or client certificate a registration authority there: it asks for the names of others",
    400: "the server has to take the URI name of the request, and its key",
    404: "name the server in address without a path, and the CA in label, as the server's documentation says",
}
"""The advice by status."""


class EstCa:
    """An EST server. See ``RemoteCa``. Mutable state: the certificates of its CAs as they were read last."""

    names_from_csr = True

    def __init__(self, settings: EstSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` stands in for the network in tests."""
        self._settings = settings
        label = f"/{settings.label}" if settings.label else ""
        self._base = f"{settings.address.rstrip('/')}/.well-known/est{label}"
        self.place = f"EST server at {self._base}"
        self._connection = CaConnection("EST", settings.certificate_files(), transport)
        self._authorities: tuple[x509.Certificate, ...] = ()

    def __repr__(self) -> str:
        return f"<EstCa {self.place}>"

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """See ``RemoteCa``. The server decides on the lifetime."""
        url = f"{self._base}/simpleenroll"
        headers = {"content-type": "application/pkcs10", "content-transfer-encoding": "base64", **self._authorization()}
        body = base64.encodebytes(request.csr.public_bytes(DER))
        answer = await self._connection.ask("POST", url, body=body, headers=headers)
        what = f"EST, POST {url}"
        if answer.status == ACCEPTED:
            raise CaError(
                "busy",
                f"{what}: 202, the request waits for approval: have the CA approve those of this client automatically",
                passes=True,
                wait_seconds=answer.retry_after,
            )
        found = _certificates(what, answer)
        key = request.csr.public_key()
        leaves = [each for each in found if each.public_key() == key]
        if not self._authorities or not _has_issuers(found, self._authorities):
            await self.roots()
        rest = [each for each in found if each not in leaves]
        return [*(leaves or found[:1]), *rest, *self._authorities]

    async def roots(self) -> CaRoots:
        """See ``RemoteCa``."""
        url = f"{self._base}/cacerts"
        answer = await self._connection.ask("GET", url, headers={"accept": CERTIFICATES})
        self._authorities = tuple(_certificates(f"EST, GET {url}", answer))
        return CaRoots(self._authorities)

    async def aclose(self) -> None:
        """See ``RemoteCa``."""
        await self._connection.aclose()

    def _authorization(self) -> Mapping[str, str]:
        file = self._settings.password_file
        if file is None:
            return {}
        password = read_secret(file, "the password for the EST server")
        pair = base64.b64encode(f"{self._settings.user}:{password}".encode()).decode()
        return {"authorization": f"Basic {pair}"}


def _has_issuers(found: list[x509.Certificate], authorities: tuple[x509.Certificate, ...]) -> bool:
    """True if each certificate is signed by one of them or of the others: a CA may have another key under its name."""
    return all(any(_has_issued(other, each) for other in (*found, *authorities)) for each in found)


def _has_issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    if issuer.subject != certificate.issuer:
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _certificates(what: str, answer: CaAnswer) -> list[x509.Certificate]:
    """The certificates of a "certs-only" answer: PKCS #7 in base64. Raises CaError and SigningError."""
    if answer.status >= 300:
        is_text = answer.headers.get("content-type", "").startswith("text/plain")
        said = answer.body[:500].decode(errors="replace") if is_text else ""
        raise status_error(what, answer, said, advice=ADVICE)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status == NO_CONTENT or not answer.body.strip() or kind != CERTIFICATES:
        raise CaError("answer", f"{what}: the answer is {kind[:60] or 'empty'} and not {CERTIFICATES}; is that EST?")
    try:
        der = base64.b64decode(b"".join(answer.body.split()), validate=True)
    except binascii.Error:
        der = answer.body  # some servers leave the base64 out
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about encodings that are not quite DER
            found = pkcs7.load_der_pkcs7_certificates(der)
    except (ValueError, UnsupportedAlgorithm):
        raise SigningError(f"{what}: the answer is not a PKCS #7 of certificates in base64") from None
    if not found:
        raise SigningError(f"{what}: the answer has no certificate")
    return found
