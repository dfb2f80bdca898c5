"""The certificate authority: one root key that signs workload certificates.

The root lives in a folder of the operator's (``root-cert.pem``, ``root-key.pem``; made at the first start), so that
restarts and replicas share it; without a folder it lives and dies with the process.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mesh_pilot.model.spiffe import Identity

ROOT_CERTIFICATE = "root-cert.pem"
ROOT_KEY = "root-key.pem"
ROOT_LIFETIME = timedelta(days=3650)
WORKLOAD_LIFETIME = timedelta(hours=24)
CLOCK_SKEW = timedelta(minutes=2)
"""Certificates are valid from a little before now, for machines whose clocks are behind."""


class AuthorityError(Exception):
    """A root that can't be read or used, with the file and what to do."""


@attrs.frozen
class Certificate:
    """A workload certificate with its key, PEM encoded."""

    chain: bytes
    private_key: bytes = attrs.field(repr=False)
    not_before: datetime
    not_after: datetime


class CertificateAuthority:
    """Signs workload certificates with one root."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.root = certificate.public_bytes(serialization.Encoding.PEM)
        """The root certificate, PEM."""

    @classmethod
    def ephemeral(cls, trust_domain: str, now: datetime) -> CertificateAuthority:
        """A new root that lives as long as this object."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain)])
        certificate = (
            _builder(name, name, key.public_key(), now - CLOCK_SKEW, now + ROOT_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def open(cls, folder: Path, trust_domain: str, now: datetime) -> CertificateAuthority:
        """The root in a folder; created there if the folder has none. Raises AuthorityError."""
        certificate, key = folder / ROOT_CERTIFICATE, folder / ROOT_KEY
        try:
            if not certificate.exists() and not key.exists():
                cls.ephemeral(trust_domain, now)._save(folder)
            return cls._load(certificate, key)
        except OSError as error:
            raise AuthorityError(f"{error.filename}: {error.strerror}") from None

    def issue(self, identity: Identity, now: datetime, lifetime: timedelta = WORKLOAD_LIFETIME) -> Certificate:
        """A new key and a certificate for it that names ``identity``."""
        key = ec.generate_private_key(ec.SECP256R1())
        chain, not_after = self.certify(key.public_key(), identity, now, lifetime)
        return Certificate(chain=chain, private_key=_pem(key), not_before=now, not_after=not_after)

    def certify(
        self, key: CertificatePublicKeyTypes, identity: Identity, now: datetime, lifetime: timedelta
    ) -> tuple[bytes, datetime]:
        """A certificate for a key that names ``identity``, as PEM with the root after it, and when it ends."""
        not_after = min(now + lifetime, self._certificate.not_valid_after_utc)
        certificate = (
            _builder(x509.Name([]), self._certificate.subject, key, now - CLOCK_SKEW, not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(identity))]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM) + self.root, not_after

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / ROOT_KEY, _pem(self._key), 0o600)
        _write(folder / ROOT_CERTIFICATE, self.root, 0o644)

    @classmethod
    def _load(cls, certificate_file: Path, key_file: Path) -> CertificateAuthority:
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        except ValueError as error:
            raise AuthorityError(f"{certificate_file}: not a PEM certificate: {error}") from None
        try:
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise AuthorityError(f"{key_file}: not a plain PEM private key: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(f"{key_file}: an elliptic curve key is needed (P-256)")
        try:
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
            certificate.verify_directly_issued_by(certificate)
        except (x509.ExtensionNotFound, InvalidSignature, ValueError):
            raise AuthorityError(f"{certificate_file}: not a self-signed CA certificate") from None
        if not constraints.ca:
            raise AuthorityError(f"{certificate_file}: not a CA certificate")
        if certificate.public_key() != key.public_key():
            raise AuthorityError(f"{key_file}: is not the key of {certificate_file}")
        return cls(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: CertificatePublicKeyTypes, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start.astimezone(UTC))
        .not_valid_after(end.astimezone(UTC))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_encipherment=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
