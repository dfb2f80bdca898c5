"""Signing: the interface of whatever signs certificates, built in or outside."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

import attrs
from cryptography import x509

from mesh_pilot.model.spiffe import Identity


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
    """The DNS names and IP addresses of the certificate: those of a server of ours; ``identity`` is None or its own."""
    is_followed: bool = False
    """True if whoever asks replaces the certificate as soon as another CA certificate signs."""


@attrs.frozen
class SignedCertificate:
    """A certificate for a key that its owner keeps."""

    chain: bytes
    """PEM, leaf first, then the intermediates, then the root if the signer has it."""
    not_before: datetime
    not_after: datetime


class Signer(Protocol):
    """Signs certificates with a key that nobody else needs to have."""

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """Sign one certificate. Raises SigningError."""
        ...
