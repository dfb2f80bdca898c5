"""A CA elsewhere in the test's hand: what it signs, and how it can be wrong.

authority = FakeAuthority()
chain = authority.issue(csr, names, timedelta(days=1))     # leaf first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PEM = serialization.Encoding.PEM

Names = Sequence[x509.GeneralName]


class Root:
    """A CA: a key and its certificate, self-signed or under another one."""

    def __init__(self, name: str, parent: Root | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = parent or self
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(signer.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=1))
            .not_valid_after(NOW + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
            .sign(signer.key, hashes.SHA256())
        )
        self.revoked: list[int] = []

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(PEM)

    def crl(self, next_update: datetime) -> bytes:
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name)
        builder = builder.last_update(NOW).next_update(next_update)
        for serial in self.revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(PEM)


class FakeAuthority:
    """Mutable state: its issuers, what it does to what is asked for, whether it is there, and what it was asked."""

    def __init__(self) -> None:
        self.issuers = [Root("mesh root")]
        self.chain: list[Root] = []
        """The roots above the last issuer, as far as it knows them."""
        self.is_away = False
        self.is_forbidden = False
        """True if whoever asks may not."""
        self.busy = 0
        """Requests for certificates that it answers next with "try later"."""
        self.asked: list[str] = []
        """Method and path of all requests."""
        self.begins_early = timedelta(seconds=30)
        self.names: Callable[[Names], Names] = lambda names: names
        """What it makes of a request's names."""
        self.key: ec.EllipticCurvePublicKey | None = None
        """The key that it signs; None: that of the CSR."""
        self.is_ca = False
        self.usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        self.lifetime: timedelta | None = None
        """The lifetime that it gives; None: the one that is asked for."""
        self.signer: Root | None = None
        """The CA that signs; None: the last issuer."""

    @property
    def issuer(self) -> Root:
        return self.signer or self.issuers[-1]

    @property
    def chain_above(self) -> list[x509.Certificate]:
        """The certificates above a leaf."""
        return [root.certificate for root in (self.issuer, *self.chain)]

    def issue(self, csr: x509.CertificateSigningRequest, names: Names, lifetime: timedelta) -> x509.Certificate:
        signer = self.issuer
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(signer.name)
            .public_key(self.key or csr.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - self.begins_early)
            .not_valid_after(NOW + (self.lifetime or lifetime))
            .add_extension(x509.BasicConstraints(ca=self.is_ca, path_length=None), critical=True)
            .add_extension(_usage(signs=self.is_ca), critical=True)
            .add_extension(x509.ExtendedKeyUsage(self.usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        if found := self.names(names):
            builder = builder.add_extension(x509.SubjectAlternativeName(found), critical=True)
        return builder.sign(signer.key, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
