"""Signing: the interface of whatever signs certificates, built in or outside."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

import attrs
import structlog
from cryptography import x509

from mesh_pilot.identity.trust.callers import host_of
from mesh_pilot.identity.trust.validity import ValidityPeriod, validity_of
from mesh_pilot.model.spiffe import Identity

log = structlog.get_logger(scope="security")

MOST_PERIODS = 10_000
"""Certificates whose lives are remembered."""


class SigningError(Exception):
    """A certificate that could not be signed, with the reason for the operator."""


@attrs.frozen
class SigningRequest:
    """A certificate to sign. The names are those of the authenticated caller; those in the CSR are never looked at."""

    csr: x509.CertificateSigningRequest
    """A certificate signing request whose own signature was verified. Its public key is what is signed."""
    lifetime: timedelta
    """The lifetime that is asked for; a signer may give less."""
    identity: Identity | None = None
    """The URI name of the certificate: a workload's."""
    dns_names: tuple[str, ...] = ()
    """The DNS names and IP addresses of the certificate: a server of ours, with or without an ``identity``."""
    is_followed: bool = False
    """True if whoever asks replaces the certificate as soon as another CA certificate signs."""
    evidence: str = ""
    """The evidence of who asks, for the audit: an authenticator, and the id of what it was shown. No secret."""
    peer: str = ""
    """The address of whoever asks; empty for this server."""
    renews: x509.Certificate | None = attrs.field(default=None, repr=False)
    """The certificate that the caller has shown; None for other evidence."""

    @property
    def longest(self) -> timedelta | None:
        """The whole lifetime that the certificate may have, from its beginning on: that of the one it renews."""
        if self.renews is None:
            return None
        return self.renews.not_valid_after_utc - self.renews.not_valid_before_utc


@attrs.frozen
class SignedCertificate:
    """A certificate for a key that its owner keeps."""

    leaf: x509.Certificate
    chain: bytes
    """PEM, leaf first, then the intermediates, then the root if the signer has it."""
    not_before: datetime
    not_after: datetime


class SignedPeriods:
    """The lives of the latest certificates of workloads. State: those, by identity and address of whoever asked, in the
    order of signing."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], ValidityPeriod] = {}

    def __repr__(self) -> str:
        return f"<SignedPeriods of {len(self._found)}>"

    def note(self, request: SigningRequest, leaf: x509.Certificate) -> None:
        """A certificate was signed."""
        if request.identity is None:
            return
        key = str(request.identity), host_of(request.peer)
        self._found.pop(key, None)
        self._found[key] = validity_of(leaf)
        if len(self._found) > MOST_PERIODS:
            del self._found[next(iter(self._found))]

    def of(self, identity: str, host: str) -> ValidityPeriod | None:
        """The life of the latest certificate that an identity has had from here at this address; else of the one whose
        key is made here, which all proxies with the identity share; None if neither is known."""
        return self._found.get((identity, host)) or self._found.get((identity, ""))


@attrs.frozen(eq=False)
class AuditedSigner:
    """A signer that leaves a line for each certificate, whoever asks for it: name, serial number, end, evidence."""

    signer: Signer
    periods: SignedPeriods = attrs.field(factory=SignedPeriods)

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """See ``Signer``."""
        signed = await self.signer.sign(request)
        leaf = signed.leaf
        self.periods.note(request, leaf)
        log.info(
            "certificate signed",
            identity=str(request.identity or "") or ", ".join(request.dns_names),
            serial=f"{leaf.serial_number:x}",
            not_after=f"{leaf.not_valid_after_utc:%F %T}",
            evidence=request.evidence,
            **({"peer": request.peer} if request.peer else {}),
        )
        return signed


class Signer(Protocol):
    """A signer of certificates, with a key that no other part needs to have."""

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """Sign one certificate. Raises SigningError."""
        ...
