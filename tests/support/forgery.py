"""Certificates and requests for them that a forger could show: right in all but what is asked for.

forger = Forger(tmp_path)
files = forger.leaf("spiffe://cluster.local/ns/shop/sa/web", signer=forger.foreign)
pem = csr_of(uris=("spiffe://cluster.local/ns/other/sa/web",))
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from mesh_pilot.net.rpc import CertificateFiles
from tests.support.x509_parts import HOUR, named, unsigned

Key: TypeAlias = "ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey"

BOTH_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@attrs.frozen
class Signer:
    """A certificate with its key, and the certificates above it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = attrs.field(repr=False)
    chain: tuple[x509.Certificate, ...] = ()
    """From its own certificate up; empty for a root."""

    @classmethod
    def root(cls, name: str) -> Signer:
        key = new_key()
        return cls(_certificate(named(name), named(name), key.public_key(), key, ca=True), key)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> Signer:
        """A root from its PEM files."""
        found = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return cls(x509.load_pem_x509_certificate(certificate.read_bytes()), found)

    def intermediate(self, name: str) -> Signer:
        """A CA below this one."""
        key = new_key()
        made = _certificate(named(name), self.certificate.subject, key.public_key(), self.key, ca=True)
        return Signer(made, key, (made, *self.chain))

    @property
    def pem(self) -> bytes:
        return pem_of(self.certificate)


class Forger:
    """Writes leaves into a folder. ``own`` is the root that the plane trusts, ``foreign`` one that it does not.

    ``namesake`` has the name of ``own``, and another key.
    """

    def __init__(self, folder: Path, own: Signer | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.own = own or Signer.root("own")
        self.foreign = Signer.root("foreign")
        self.namesake = Signer.root("own")
        self.trusted = folder / "own.pem"
        self.trusted.write_bytes(self.own.pem)
        self._made = 0

    def leaf(
        self,
        *uris: str,
        dns: Sequence[str] = (),
        signer: Signer | None = None,
        begins: timedelta = -HOUR,
        ends: timedelta = HOUR,
        usages: Sequence[x509.ObjectIdentifier] = BOTH_USAGES,
        self_signed: bool = False,
    ) -> CertificateFiles:
        """A leaf with these names; ``begins`` and ``ends`` count from now."""
        signer = signer or self.own
        key = new_key()
        self._made += 1
        certificate = _certificate(
            (subject := named(f"leaf {self._made}")),
            subject if self_signed else signer.certificate.subject,
            key.public_key(),
            key if self_signed else signer.key,
            names=[*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)],
            begins=begins,
            ends=ends,
            usages=usages,
        )
        files = CertificateFiles(
            certificate=self.folder / f"{self._made}.pem",
            key=self.folder / f"{self._made}.key",
            trusted=self.trusted,
        )
        assert files.certificate is not None and files.key is not None
        files.certificate.write_bytes(pem_of(certificate, *signer.chain))
        files.key.write_bytes(key_pem(key))
        return files

    def under_a_leaf(self, *uris: str) -> CertificateFiles:
        """A leaf that another leaf of ours has signed, as if that were a CA."""
        files = self.leaf("spiffe://cluster.local/ns/shop/sa/web")
        assert files.certificate is not None and files.key is not None
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return self.leaf(*uris, signer=Signer(certificate, key, (certificate,)))


def csr_of(
    key: Key | None = None, *, uris: Sequence[str] = (), dns: Sequence[str] = (), ca: bool = False, subject: str = ""
) -> bytes:
    """A request for a certificate, PEM, signed with ``key``."""
    key = key or new_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(named(subject) if subject else x509.Name([]))
    if uris or dns:
        names = [*map(x509.UniformResourceIdentifier, uris), *map(x509.DNSName, dns)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def badly_signed_csr() -> bytes:
    """A request with the signature of another one."""
    one, other = (x509.load_pem_x509_csr(csr_of()) for _ in range(2))
    der = one.public_bytes(serialization.Encoding.DER)
    forged = der.replace(one.tbs_certrequest_bytes, other.tbs_certrequest_bytes)
    return x509.load_der_x509_csr(forged).public_bytes(serialization.Encoding.PEM)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def pem_of(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    key: ec.EllipticCurvePrivateKey,
    *,
    names: Sequence[x509.GeneralName] = (),
    begins: timedelta = -HOUR,
    ends: timedelta = HOUR,
    usages: Sequence[x509.ObjectIdentifier] = (),
    ca: bool = False,
) -> x509.Certificate:
    builder = unsigned(subject, issuer, public, begins=begins, ends=ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(key, hashes.SHA256())
