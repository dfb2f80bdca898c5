"""Certificates, keys and revocation lists in PEM (RFC 7468), as Envoy reads and presents them.

Our parser is more lenient than Envoy's: it finds a block in the middle of a line, and passes over one that is cut off.
"""

from __future__ import annotations

import re
import warnings

import attrs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.utils import CryptographyDeprecationWarning

CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
MIN_RSA_BITS = 2048

_BEGIN = re.compile(rb"^-----BEGIN ", re.MULTILINE)
_BLOCK = re.compile(
    rb"^-----BEGIN ([A-Z0-9 ]++)-----[ \t\r]*+\n[A-Za-z0-9+/=\s]*+(?<=\n)-----END \1-----[ \t\r\x00]*+$", re.MULTILINE
)


@attrs.frozen
class _Block:
    """The block of PEM from its BEGIN to its END."""

    label: bytes
    pem: bytes


def certificates(pem: bytes) -> list[x509.Certificate] | None:
    """The certificates of a chain or list; None if Envoy reads none, or does not read all of it."""
    blocks = _blocks(pem)
    if blocks is None:
        return None
    try:
        with warnings.catch_warnings(action="ignore", category=CryptographyDeprecationWarning):
            found = x509.load_pem_x509_certificates(pem)  # it warns of what Envoy accepts, such as a serial number of 0
    except ValueError:
        return None
    return found if len(found) == sum(block.label.endswith(b"CERTIFICATE") for block in blocks) else None


def public_key_of(pem: bytes) -> bytes | None:
    """The public half of the first private key, as ``subject_key``; None if it can't be read."""
    block = next((match for match in _BLOCK.finditer(pem) if match[1].endswith(b"PRIVATE KEY")), None)
    if block is None:
        return None
    try:
        key = load_pem_private_key(block[0], password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def are_revocation_lists(pem: bytes) -> bool:
    """True if there is at least one list, and Envoy reads all of them."""
    lists = [block.pem for block in _blocks(pem) or () if block.label == b"X509 CRL"]
    try:
        for each in lists:
            x509.load_pem_x509_crl(each)
    except ValueError:
        return False
    return bool(lists)


def subject_key(certificate: x509.Certificate) -> bytes | None:
    """The public key of a certificate; None if its kind is unknown."""
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (UnsupportedAlgorithm, ValueError):
        return None


def presented_reason(certificate: x509.Certificate) -> str:
    """The reason why Envoy presents no such certificate, or an empty string."""
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        return "has a key of an unknown kind"
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            return f"has an RSA key of {key.key_size} bits; Envoy takes {MIN_RSA_BITS} or more"
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, CURVES):
            return f"has a key on the curve {key.curve.name}; Envoy takes P-256, P-384 and P-521"
        if not _may_sign(certificate):
            return "has a keyUsage without digitalSignature, which Envoy needs for a key on an elliptic curve"
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        return "has a key of a kind that Envoy does not take: RSA, P-256, P-384, P-521 or Ed25519"
    if _must_staple(certificate):
        return "demands OCSP stapling (must-staple), and no OCSP response can be given"
    return ""


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    except (x509.ExtensionNotFound, ValueError):
        return True


def _must_staple(certificate: x509.Certificate) -> bool:
    try:
        features = certificate.extensions.get_extension_for_class(x509.TLSFeature).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return x509.TLSFeatureType.status_request in features


def _blocks(pem: bytes) -> list[_Block] | None:
    """All blocks; None if one is cut off or misshapen."""
    found = [_Block(match[1], match[0]) for match in _BLOCK.finditer(pem)]
    return found if len(found) == len(_BEGIN.findall(pem)) else None
