"""A key with its certificate: made, read, and compared with the clock. Nothing here does I/O.

``cryptography`` is imported when it is first needed, as it is large.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class MaterialError(ValueError):
    """A key, chain or roots that cannot be used; a predicate or sentence for a line that begins with where."""


@attrs.frozen
class IdentityMaterial:
    """A certificate in force with its key, as PEM."""

    identity: str
    """The SPIFFE id; empty for a certificate without one."""
    key: bytes = attrs.field(repr=False)
    chain: bytes = attrs.field(repr=False)
    """Leaf first, without the root."""
    roots: bytes = attrs.field(repr=False)
    begins: datetime
    ends: datetime

    @property
    def lifetime(self) -> timedelta:
        return self.ends - self.begins

    def clock_difference(self, now: datetime) -> timedelta | None:
        """The least by which our clock or the signer's is wrong, if this was signed just now; positive: ours is ahead.

        None if the certificate is in force.
        """
        return difference(self.begins, self.ends, now)


def difference(begins: datetime, ends: datetime, now: datetime) -> timedelta | None:
    """How far a time is before (negative) or after a certificate's life; None within it."""
    if now < begins:
        return now - begins
    return now - ends if now >= ends else None


def shown_difference(difference: timedelta) -> str:
    """A difference of clocks in words."""
    seconds = abs(difference.total_seconds())
    amount = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    amount = amount if seconds < 7200 else f"{seconds / 3600:.1f} hours"
    return f"this machine's clock is at least {amount} {'ahead' if difference > timedelta() else 'behind'}"


def certificates_in(pem: bytes) -> tuple[bytes, ...]:
    """Each certificate of a string, in PEM with a newline."""
    return tuple(text + b"\n" for text in _CERTIFICATE.findall(pem))


def joined_roots(*pems: bytes) -> bytes:
    """All certificates of these texts, each once."""
    return b"".join(dict.fromkeys(text for pem in pems for text in certificates_in(pem)))


def read_material(key: bytes, chain: bytes, roots: bytes) -> IdentityMaterial:
    """The meaning of PEM texts that belong together. Raises MaterialError."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificates = x509.load_pem_x509_certificates(chain)
    except ValueError:
        raise MaterialError("the certificate is not one in PEM") from None
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise MaterialError("the key is not a private key in PEM without a password") from None
    try:
        anchors = x509.load_pem_x509_certificates(roots)
    except ValueError:
        raise MaterialError("the roots are not certificates in PEM") from None
    leaf = certificates[0]
    if leaf.public_key() != private.public_key():
        raise MaterialError("the certificate is for another key")
    if not anchors:
        raise MaterialError("there is no root")
    return IdentityMaterial(
        _identity(leaf), key, chain, roots, begins=leaf.not_valid_before_utc, ends=leaf.not_valid_after_utc
    )


def identity_in(chain: bytes) -> str:
    """The SPIFFE id of the first certificate of a chain in PEM; empty if it has none, or cannot be read."""
    from cryptography import x509

    try:
        leaf, *_ = x509.load_pem_x509_certificates(chain)
    except ValueError:
        return ""
    return _identity(leaf)


def _identity(leaf: x509.Certificate) -> str:
    from cryptography import x509

    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return next((uri for uri in uris if uri.startswith("spiffe://")), "")


KEY_TYPES = ("EC", "RSA")
"""P-256, and 2048 bits."""


def new_key(key_type: str) -> PrivateKey:
    """A fresh key. RSA takes a tenth of a second."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    return rsa.generate_private_key(65537, 2048) if key_type == "RSA" else ec.generate_private_key(ec.SECP256R1())


def new_request(key: PrivateKey, identity: str = "") -> tuple[bytes, bytes]:
    """The key in PEM, and a signing request for it.

    The request names the SPIFFE id if it is known: some CAs know it by nothing else. Its subject says no more than
    which program made it: some CAs take no request with an empty one.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    is_named = bool(identity) and identity.isascii()
    subject = x509.Name([] if is_named else [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "mesh-pilot")])
    builder = x509.CertificateSigningRequestBuilder(subject)
    if is_named:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)])
        builder = builder.add_extension(names, critical=True)
    request = builder.sign(key, hashes.SHA256())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), request.public_bytes(Encoding.PEM)
