"""CAs for tests: roots and intermediates of any key, written as Istio's ``cacerts``, and requests for them to sign."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from mesh_pilot.identity.authority.material import (
    CA_CERTIFICATE,
    CA_KEY,
    CHAIN,
    KEYS,
    ROOTS,
    KeyPair,
    joined,
    key_pem,
    pem,
)
from mesh_pilot.identity.signers.signing import SigningRequest
from mesh_pilot.model.spiffe import Identity

RECO = Identity("cluster.local", "shop", "reco")
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def make_ca(
    name: str,
    issuer: KeyPair | None = None,
    *,
    key: Key | None = None,
    now: datetime | None = None,
    lifetime: timedelta = timedelta(days=365),
    is_ca: bool = True,
    path_length: int | None = None,
    may_sign: bool = True,
) -> KeyPair:
    """A CA under ``issuer``; a root without one."""
    now = now or datetime.now(UTC)
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    parent = issuer.certificate.subject if issuer else subject
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=may_sign,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder(parent, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=path_length if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def cacerts(signing: KeyPair, *above: KeyPair, more_roots: tuple[KeyPair, ...] = ()) -> dict[str, bytes]:
    """Istio's files; ``above``: the issuers of the signing CA, the root last."""
    root = above[-1] if above else signing
    return {
        CA_CERTIFICATE: pem(signing.certificate),
        CA_KEY: key_pem(signing.key),
        CHAIN: joined(pair.certificate for pair in (signing, *above)),
        ROOTS: joined(pair.certificate for pair in (root, *more_roots)),
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a CA's files as an operator does, one after the other."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, content in files.items():
        new = folder / f"{name}.new"
        new.write_bytes(content)
        new.chmod(0o600 if name in KEYS else 0o644)
        new.rename(folder / name)


def set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


@attrs.frozen(eq=False)
class LeafRequest:
    """A request with the key that its owner keeps."""

    key: Key = attrs.field(factory=lambda: ec.generate_private_key(ec.SECP256R1()), repr=False)
    lifetime: timedelta = timedelta(hours=1)
    identity: Identity | None = RECO
    dns_names: tuple[str, ...] = ()

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)

    @property
    def signing(self) -> SigningRequest:
        csr = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(self.key, hashes.SHA256())
        return SigningRequest(csr, self.lifetime, self.identity, self.dns_names)
