"""The CA's files and what they mean: the certificate and key that sign, the path to a root, the roots, the CRLs.

Layouts, after Istio's "Plug in CA Certificates":

- ``ca-cert.pem``, ``ca-key.pem``, ``root-cert.pem``, and, for an intermediate, ``cert-chain.pem``: Istio's ``cacerts``.
  A root made here has the same files, with itself as ``ca-cert.pem``.
- ``root-cert.pem`` and ``root-key.pem``: as earlier builds made them.

``ca-crl.pem`` has revocation lists. ``next-*``, ``previous-*`` and ``cross-cert.pem`` exist during a rotation
(``rotation``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import attrs
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CA_CERTIFICATE, CA_KEY = "ca-cert.pem", "ca-key.pem"
CHAIN, ROOTS, CRLS = "cert-chain.pem", "root-cert.pem", "ca-crl.pem"
OLD_ROOT_KEY = "root-key.pem"
NEXT_CERTIFICATE, NEXT_KEY = "next-cert.pem", "next-key.pem"
PREVIOUS_CERTIFICATE, PREVIOUS_KEY = "previous-cert.pem", "previous-key.pem"
CROSS_CERTIFICATE = "cross-cert.pem"

IDENTITIES = "revoked-identities.json"
"""See ``identity.authority.revoked_identities``. It is independent of a CA: if an external one signs, it may be the
only file."""

KEYS = frozenset({CA_KEY, OLD_ROOT_KEY, NEXT_KEY, PREVIOUS_KEY})
FILES = KEYS | {
    CA_CERTIFICATE,
    CHAIN,
    ROOTS,
    CRLS,
    NEXT_CERTIFICATE,
    PREVIOUS_CERTIFICATE,
    CROSS_CERTIFICATE,
    IDENTITIES,
}
"""All names that a store keeps."""


def has_ca(files: Mapping[str, bytes]) -> bool:
    """True if any of a CA's own files is there."""
    return bool(files.keys() - {IDENTITIES})


MIN_RSA_BITS = 2048
LONGEST_PATH = 10
"""CA certificates between a leaf and its root; more is a mistake."""

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class AuthorityError(Exception):
    """Files of a CA that can't be used: which file, why, and what to do."""


@attrs.frozen(eq=False)
class KeyPair:
    """A CA certificate with its key."""

    certificate: x509.Certificate
    key: SigningKey = attrs.field(repr=False)


@attrs.frozen(eq=False)
class Material:
    """The meaning of a CA's files. Certificates are verified to lead to a root."""

    issuer: KeyPair
    """The certificate and key that sign."""
    path: tuple[x509.Certificate, ...]
    """Issuers above the signing certificate: intermediates, then the root; empty for a root."""
    roots: tuple[x509.Certificate, ...]
    """All roots that workloads trust."""
    crls: tuple[x509.CertificateRevocationList, ...] = ()
    next: KeyPair | None = None
    """The root that will sign, during a rotation."""
    previous: KeyPair | None = None
    """The root that signed before, during a rotation."""
    cross: x509.Certificate | None = None
    """The new root's name and key, signed by the old root, during a rotation."""
    chain: bytes = attrs.field(init=False)
    """The certificates that come after each leaf, in PEM: the signing one, then those above it.

    Before them the cross certificate once the new root signs: whoever knows only the old root finds a path by it.
    Verifiers that look into the chain in its order take the first certificate of the issuer's name.
    """

    @chain.default
    def _joined_chain(self) -> bytes:
        cross = (self.cross,) if self.cross is not None and self.previous is not None else ()
        return joined((*cross, self.issuer.certificate, *self.path))

    crls_pem: tuple[bytes, ...] = attrs.field(init=False)
    """The revocation lists, each in PEM."""

    @crls_pem.default
    def _encoded_crls(self) -> tuple[bytes, ...]:
        return tuple(map(pem, self.crls))

    @property
    def root(self) -> x509.Certificate:
        """The root of what is signed now."""
        return self.path[-1] if self.path else self.issuer.certificate

    @property
    def not_after(self) -> datetime:
        """The end of the first certificate to end, from the signing one to the root: nothing signed lives longer."""
        return min(c.not_valid_after_utc for c in (self.issuer.certificate, *self.path))

    @property
    def key_pairs(self) -> tuple[KeyPair, ...]:
        """All CAs whose keys are here, the signing one first."""
        return tuple(pair for pair in (self.issuer, self.next, self.previous) if pair is not None)


def read_material(files: Mapping[str, bytes], place: str, now: datetime) -> Material:
    """The meaning of files of ``place``. Raises AuthorityError."""
    reader = _MaterialReader(files, place, now)
    if CA_CERTIFICATE in files or CA_KEY in files:
        issuer = reader.pair(CA_CERTIFICATE, CA_KEY)
    else:
        issuer = reader.pair(ROOTS, OLD_ROOT_KEY)
    roots = reader.certificates(ROOTS)
    for root in roots:
        if not is_self_signed(root):
            raise reader.error(ROOTS, f"{_name(root)} is not self-signed, so it is not a root; it belongs into {CHAIN}")
    path = reader.path(issuer.certificate, roots)
    pairs = {
        name: reader.pair(certificate, key) if certificate in files or key in files else None
        for name, certificate, key in (
            ("next", NEXT_CERTIFICATE, NEXT_KEY),
            ("previous", PREVIOUS_CERTIFICATE, PREVIOUS_KEY),
        )
    }
    cross = reader.cross(issuer, pairs["next"], pairs["previous"]) if CROSS_CERTIFICATE in files else None
    return Material(issuer, path, roots, reader.crls(), **pairs, cross=cross)


def pem(certificate: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: SigningKey) -> bytes:
    """A private key in plain PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def joined(certificates: Iterable[x509.Certificate | x509.CertificateRevocationList]) -> bytes:
    """One PEM file of several."""
    return b"".join(map(pem, certificates))


def is_self_signed(certificate: x509.Certificate) -> bool:
    return certificate.subject == certificate.issuer and issued(certificate, certificate)


def issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """True if ``issuer`` signed the certificate."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


@attrs.frozen(eq=False)
class _MaterialReader:
    """Reads files into values; every error names the file."""

    files: Mapping[str, bytes] = attrs.field(repr=False)
    place: str
    now: datetime

    def error(self, name: str, reason: str) -> AuthorityError:
        return AuthorityError(f"{self.place}: {name}: {reason}")

    def content(self, name: str) -> bytes:
        if name not in self.files:
            raise self.error(name, "there is no such file")
        return self.files[name]

    def certificates(self, name: str) -> tuple[x509.Certificate, ...]:
        try:
            return tuple(x509.load_pem_x509_certificates(self.content(name)))
        except ValueError as error:
            raise self.error(name, f"not a PEM certificate: {error}") from None

    def pair(self, certificate_name: str, key_name: str) -> KeyPair:
        certificate, *_ = self.certificates(certificate_name)
        self.check_ca(certificate_name, certificate, 0)
        key = self.key(key_name)
        if certificate.public_key() != key.public_key():
            raise self.error(key_name, f"is not the key of {certificate_name}")
        return KeyPair(certificate, key)

    def key(self, name: str) -> SigningKey:
        try:
            key = serialization.load_pem_private_key(self.content(name), password=None)
        except TypeError:
            raise self.error(name, "is encrypted with a password; a plain PEM private key is needed") from None
        except (ValueError, UnsupportedAlgorithm):
            raise self.error(name, "not a plain PEM private key") from None
        if isinstance(key, rsa.RSAPrivateKey):
            if key.key_size < MIN_RSA_BITS:
                raise self.error(name, f"an RSA key of {key.key_size} bits; at least {MIN_RSA_BITS} are needed")
        elif not isinstance(key, ec.EllipticCurvePrivateKey) or not is_known_curve(key.curve):
            raise self.error(name, "an RSA or an elliptic curve key (P-256, P-384, P-521) is needed")
        return key

    def check_ca(self, name: str, certificate: x509.Certificate, below: int) -> None:
        """Check that a certificate may sign, with so many CA certificates between it and a leaf."""
        who = _name(certificate)
        try:
            extensions = certificate.extensions
        except ValueError as error:
            raise self.error(name, f"{who} has extensions that cannot be read: {error}") from None
        try:
            constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = None
        if constraints is None or not constraints.ca:
            raise self.error(name, f"{who} is not a CA certificate (basicConstraints CA:TRUE)")
        if constraints.path_length is not None and constraints.path_length < below:
            raise self.error(
                name, f"{who} allows {constraints.path_length} intermediates below it (pathlen), and there are {below}"
            )
        try:
            usage = extensions.get_extension_for_class(x509.KeyUsage).value
        except x509.ExtensionNotFound:
            usage = None
        if usage is not None and not usage.key_cert_sign:
            raise self.error(name, f"{who} may not sign certificates (keyUsage lacks keyCertSign)")
        if self.now > certificate.not_valid_after_utc:
            raise self.error(name, f"{who} expired at {certificate.not_valid_after_utc:%F %T} UTC")
        if self.now + timedelta(minutes=10) < certificate.not_valid_before_utc:
            raise self.error(name, f"{who} is not valid before {certificate.not_valid_before_utc:%F %T} UTC")

    def path(self, signing: x509.Certificate, roots: tuple[x509.Certificate, ...]) -> tuple[x509.Certificate, ...]:
        """The issuers of ``signing``, up to one of the roots."""
        between = self.certificates(CHAIN) if self.files.get(CHAIN, b"").strip() else ()
        path: list[x509.Certificate] = []
        at = signing
        while at not in roots:
            issuer = next((c for c in (*roots, *between) if c != at and issued(c, at)), None)
            if issuer is None or len(path) == LONGEST_PATH:
                where = CHAIN if between else ROOTS
                raise self.error(
                    where, f"has no issuer of {_name(at)}; complete the path from {_name(signing)} to a root"
                )
            path.append(issuer)
            self.check_ca(ROOTS if issuer in roots else CHAIN, issuer, len(path))
            at = issuer
        return tuple(path)

    def cross(self, issuer: KeyPair, following: KeyPair | None, previous: KeyPair | None) -> x509.Certificate | None:
        """The new root as signed by the old one; None outside a rotation."""
        if following is None and previous is None:
            return None
        new, old = (following, issuer) if following is not None else (issuer, previous)
        assert old is not None
        found, *_ = self.certificates(CROSS_CERTIFICATE)
        if found.public_key() != new.key.public_key() or not issued(old.certificate, found):
            raise self.error(
                CROSS_CERTIFICATE,
                f"is not {_name(new.certificate)} signed by {_name(old.certificate)}; remove the file",
            )
        return found

    def crls(self) -> tuple[x509.CertificateRevocationList, ...]:
        content = self.files.get(CRLS, b"")
        mark = b"-----END X509 CRL-----"
        try:
            return tuple(x509.load_pem_x509_crl(part + mark) for part in content.split(mark) if part.strip())
        except ValueError as error:
            raise self.error(CRLS, f"not a PEM certificate revocation list, or several: {error}") from None


def is_known_curve(curve: ec.EllipticCurve) -> bool:
    """True for the curves that Envoy takes."""
    return isinstance(curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1)


def _name(certificate: x509.Certificate) -> str:
    return f"{certificate.subject.rfc4514_string() or 'a certificate without a name'}"
