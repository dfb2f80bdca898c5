"""What makers of certificates for tests have in common; each adds what its tests are about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

HOUR = timedelta(hours=1)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    *,
    begins: timedelta = -HOUR,
    ends: timedelta = HOUR,
) -> x509.CertificateBuilder:
    """A certificate without extensions, in force from now + ``begins`` to now + ``ends``."""
    now = datetime.now(UTC)
    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now + begins, now + ends)


def usage(*, signs: bool) -> x509.KeyUsage:
    """The usages of a CA's key, or of a leaf's."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
