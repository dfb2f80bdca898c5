"""The signer with a key of our own: the built-in CA."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cryptography import x509

from mesh_pilot.security.ca import CertificateAuthority
from mesh_pilot.security.signing import SignedCertificate, SigningError, SigningRequest


class LocalSigner:
    """Signs at once. ``now`` gives the wall clock."""

    def __init__(self, authority: CertificateAuthority, now: Callable[[], datetime]) -> None:
        self._authority = authority
        self._now = now

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """See ``Signer``."""
        if request.identity is None:
            raise SigningError("only certificates of workloads are signed")
        now = self._now()
        key = x509.load_pem_x509_csr(request.csr).public_key()
        chain, not_after = self._authority.certify(key, request.identity, now, request.lifetime)
        return SignedCertificate(chain, now, not_after)
