"""Throw-away CAs for tests of trust bundles: roots, and leaves with SPIFFE names signed by them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@attrs.frozen
class Root:
    """A root with its key."""

    certificate: x509.Certificate
    key: Key = attrs.field(repr=False)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def leaf(self, spiffe_id: str) -> tuple[bytes, bytes]:
        """A certificate with a SPIFFE name, and its key, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(spiffe_id)])
        leaf = (
            _builder("leaf", self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_root=False), critical=True)
            .add_extension(names, critical=True)
            .sign(self.key, hashes.SHA256())
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return leaf.public_bytes(serialization.Encoding.PEM), pem


def make_root(name: str, *, is_rsa: bool = False, is_ca: bool = True) -> Root:
    key: Key = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(name, subject, key)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(_usage(is_root=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Root(certificate, key)


def _builder(name: str, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _usage(*, is_root: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_root,
        key_cert_sign=is_root,
        crl_sign=is_root,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
