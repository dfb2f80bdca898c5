"""Throw-away CAs for tests of trust bundles: roots, and leaves with SPIFFE names signed by them."""

from __future__ import annotations

from datetime import timedelta

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mesh_pilot.identity.authority.material import key_pem, pem
from tests.support.x509_parts import named, unsigned, usage

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@attrs.frozen
class Root:
    """A root with its key."""

    certificate: x509.Certificate
    key: Key = attrs.field(repr=False)

    @property
    def pem(self) -> bytes:
        return pem(self.certificate)

    def leaf(self, spiffe_id: str) -> tuple[bytes, bytes]:
        """A certificate with a SPIFFE name, and its key, in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(spiffe_id)])
        leaf = (
            unsigned(named("leaf"), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage(signs=False), critical=True)
            .add_extension(names, critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return pem(leaf), key_pem(key)


def make_root(name: str, *, is_rsa: bool = False, is_ca: bool = True) -> Root:
    key: Key = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
    subject = named(name)
    certificate = (
        unsigned(subject, subject, key.public_key(), ends=timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Root(certificate, key)
