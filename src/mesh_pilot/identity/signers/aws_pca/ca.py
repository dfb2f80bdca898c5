"""Certificates of AWS Private CA: asked for with IssueCertificate, fetched with GetCertificate once they are there.

The names that are sent next to the CSR win where the template takes them (``..._APIPassthrough``), so a SPIFFE id is in
the certificate whatever the client wrote. The same request within five minutes is the same certificate to AWS, by its
idempotency token: what is tried again is neither signed nor paid for twice.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import httpx
import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.reading import as_object, as_string
from mesh_pilot.identity.signers.aws_pca.api import IN_PROGRESS, AwsError, AwsPcaApi
from mesh_pilot.identity.signers.aws_pca.settings import AwsPcaSettings
from mesh_pilot.identity.signers.remote import CaError, CaRoots, pem_certificates
from mesh_pilot.identity.signers.requests import is_address, listed, names_of
from mesh_pilot.identity.signers.signing import SigningRequest

BEGINS_EARLY = timedelta(minutes=1)
"""The time by which certificates begin early, for clocks that are behind. AWS would take an hour."""

SHORT_LIVED = timedelta(days=7) - timedelta(minutes=5)
"""The longest life of a certificate of a CA in the short-lived mode, less what clocks may differ by."""

POLL_SECONDS, POLL_LIMIT_SECONDS = 0.5, 3.0
"""The longest first wait for a certificate, and the longest of all: most are there within a second."""
LEAST_POLL_SECONDS = 0.1

ISSUED_SECONDS = 20.0
"""The time in which a certificate has to be there."""

MAX_URI = 253
"""The longest URI that the API takes as a name."""

_ALGORITHMS = {256: "SHA256WITHECDSA", 384: "SHA384WITHECDSA", 521: "SHA512WITHECDSA"}
_USAGES = {
    "KeyUsage": {"DigitalSignature": True, "KeyEncipherment": True},
    "ExtendedKeyUsage": [{"ExtendedKeyUsageType": "SERVER_AUTH"}, {"ExtendedKeyUsageType": "CLIENT_AUTH"}],
}


@attrs.frozen
class _CaFacts:
    """The CA, as it was read last."""

    certificate: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    algorithm: str
    """The algorithm of its signatures, by its key."""
    is_short_lived: bool


class AwsPca:
    """A private CA. Mutable state: the connections, what the CA was when it was read last, and its roots until then."""

    def __init__(
        self,
        settings: AwsPcaSettings,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        backoff: Callable[[float, float], Backoff] = Backoff,
    ) -> None:
        """``transport`` stands in for the network in tests; ``now`` gives the wall clock."""
        self.settings = settings
        self.place = f"AWS Private CA {settings.arn}"
        self.names_from_csr = not settings.passes_api
        self._api = AwsPcaApi(settings, self.place, transport)
        self._now = now
        self._backoff = backoff
        self._facts: _CaFacts | None = None
        self._seen: dict[x509.Certificate, None] = {}
        """The certificates of the CA, and those above them, since the start."""

    def __repr__(self) -> str:
        return f"<AwsPca {self.settings.arn} {self.settings.template}>"

    async def ask(self, request: SigningRequest) -> list[x509.Certificate]:
        """See ``RemoteCa``."""
        self._check(request)
        facts = self._facts or await self._read()
        answer = await self._api.call("IssueCertificate", **self._question(request, facts))
        arn = as_string(answer, "CertificateArn")
        if not arn:
            raise CaError("answer", f"{self.place}, IssueCertificate: the answer has no CertificateArn")
        found = await self._issued(arn)
        texts = [found.get("Certificate"), found.get("CertificateChain")]
        return pem_certificates(texts, f"{self.place}, GetCertificate")

    async def roots(self) -> CaRoots:
        """See ``RemoteCa``."""
        facts = await self._read()
        # A CA has one certificate. If it gets one of another root, those under the last root are still in force.
        self._seen.update(dict.fromkeys((facts.certificate, *facts.chain)))
        return CaRoots(tuple(self._seen))

    async def aclose(self) -> None:
        """See ``RemoteCa``."""
        await self._api.aclose()

    async def _read(self) -> _CaFacts:
        described = as_object(await self._api.call("DescribeCertificateAuthority"), "CertificateAuthority")
        status = as_string(described, "Status")
        if status != "ACTIVE":
            raise CaError(
                "refused", f"{self.place} is {status or 'in no state that we know'}, and signs only if ACTIVE"
            )
        answer = await self._api.call("GetCertificateAuthorityCertificate")
        whose = f"{self.place}, GetCertificateAuthorityCertificate"
        certificate, *chain = pem_certificates([answer.get("Certificate"), answer.get("CertificateChain")], whose)
        is_short_lived = as_string(described, "UsageMode") == "SHORT_LIVED_CERTIFICATE"
        self._facts = _CaFacts(certificate, tuple(chain), self._algorithm(certificate), is_short_lived)
        return self._facts

    def _algorithm(self, certificate: x509.Certificate) -> str:
        match certificate.public_key():
            case rsa.RSAPublicKey():
                return "SHA256WITHRSA"
            case ec.EllipticCurvePublicKey(curve=curve) if curve.key_size in _ALGORITHMS:
                return _ALGORITHMS[curve.key_size]
        raise CaError("refused", f"{self.place} has a key that Envoy cannot verify by: use a CA with RSA or ECDSA")

    def _check(self, request: SigningRequest) -> None:
        """Refuse what AWS would refuse, in words for whoever runs the mesh. Raises CaError."""
        if request.identity is not None and len(str(request.identity)) > MAX_URI:
            text = (
                f"{self.place} takes names of {MAX_URI} characters at most: {str(request.identity)[:80]}... is longer"
            )
            raise CaError("refused", text)
        if not request.csr.subject and not _has_names(request.csr):
            wanted = listed(sorted(names_of(request)))
            text = f"{self.place} takes no certificate signing request without a name: name exactly {wanted} in it"
            raise CaError("refused", text)

    def _question(self, request: SigningRequest, facts: _CaFacts) -> dict[str, Any]:
        now = self._now()
        lifetime = min(request.lifetime, facts.certificate.not_valid_after_utc - now)
        if facts.is_short_lived:
            lifetime = min(lifetime, SHORT_LIVED)
        names: list[dict[str, str]] = []
        if request.identity is not None:
            names.append({"UniformResourceIdentifier": str(request.identity)})
        names += [{"IpAddress" if is_address(name) else "DnsName": name} for name in request.dns_names]
        question: dict[str, Any] = {
            "Csr": base64.b64encode(request.csr.public_bytes(serialization.Encoding.PEM)).decode(),
            "SigningAlgorithm": facts.algorithm,
            "TemplateArn": self.settings.template_arn,
        }
        if self.settings.passes_api:
            question["ApiPassthrough"] = {"Extensions": {"SubjectAlternativeNames": names, **_USAGES}}
        parts = [repr(question), str(int(lifetime.total_seconds()) // 60), str(facts.certificate.serial_number)]
        return {
            **question,
            "Validity": _absolute(now + lifetime),
            "ValidityNotBefore": _absolute(now - BEGINS_EARLY),
            "IdempotencyToken": hashlib.sha256("\n".join(parts).encode()).hexdigest()[:36],
        }

    async def _issued(self, arn: str) -> Mapping[str, Any]:
        """The certificate, once it is there. Raises CaError."""
        waits = self._backoff(POLL_SECONDS, POLL_LIMIT_SECONDS)
        with trio.move_on_after(ISSUED_SECONDS):
            while True:
                await trio.sleep(max(LEAST_POLL_SECONDS, waits.next_seconds()))
                try:
                    return await self._api.call("GetCertificate", CertificateArn=arn)
                except AwsError as error:
                    # It is issued and paid for: an error that passes is waited out.
                    if error.kind != IN_PROGRESS and not error.passes:
                        raise
        text = f"{self.place}: the certificate is not there {ISSUED_SECONDS:g} s after it was asked for"
        raise CaError("busy", text, passes=True)


def _has_names(csr: x509.CertificateSigningRequest) -> bool:
    """True if the CSR has alternative names, marked as critical, as they must be without a subject."""
    try:
        return csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical
    except (x509.ExtensionNotFound, ValueError):
        return False


def _absolute(at: datetime) -> dict[str, object]:
    return {"Type": "ABSOLUTE", "Value": int(at.timestamp())}
