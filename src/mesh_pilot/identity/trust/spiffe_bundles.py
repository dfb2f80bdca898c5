"""Bundles of trust domains in SPIFFE's own format: a JWK set whose entries for ``x509-svid`` hold a root each.

Rules: "SPIFFE Trust Domain and Bundle". The certificate in ``x5c`` is the root; the other parameters of an entry are
its public key for those who read JWKs.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping

import attrs
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.jwk import ECKey, OKPKey, RSAKey

X509_USE = "x509-svid"
MAX_ROOTS = 100
"""Roots that one document may have."""


class BundleError(Exception):
    """A document that is not a bundle, with the reason for people."""


@attrs.frozen
class BundleDocument:
    """The content of a bundle document."""

    roots: tuple[bytes, ...]
    """Certificates, each in PEM."""
    sequence: int = 0
    """Grows with each change; 0 if it is not known."""
    refresh_hint_seconds: int = 0
    """The interval at which to ask again; 0 if it is not known."""


def read_bundle(document: Mapping[str, object]) -> BundleDocument:
    """The roots of a document. Entries for other uses are passed over. Raises BundleError."""
    entries = document.get("keys")
    if not isinstance(entries, list):
        raise BundleError("it has no list of keys")
    for_certificates = [entry for entry in entries if isinstance(entry, Mapping) and entry.get("use") == X509_USE]
    if not for_certificates:
        raise BundleError(f"it has no key for {X509_USE}")
    if len(for_certificates) > MAX_ROOTS:
        raise BundleError(f"it has more than {MAX_ROOTS} roots")
    return BundleDocument(
        roots=tuple(dict.fromkeys(map(_root_of, for_certificates))),
        sequence=_number(document.get("spiffe_sequence")),
        refresh_hint_seconds=_number(document.get("spiffe_refresh_hint")),
    )


def write_bundle(document: BundleDocument) -> str:
    """The document as JSON."""
    return json.dumps(
        {
            "keys": [_entry_of(root) for root in document.roots],
            "spiffe_sequence": document.sequence,
            "spiffe_refresh_hint": document.refresh_hint_seconds,
        },
        indent=2,
    )


def roots_in(pem: str) -> tuple[bytes, ...]:
    """The certificates of a PEM text, each in PEM. Raises BundleError."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        raise BundleError("it is not PEM of certificates") from None
    return tuple(dict.fromkeys(map(_checked, found)))


def _root_of(entry: Mapping[str, object]) -> bytes:
    chain = entry.get("x5c")
    if not isinstance(chain, list) or len(chain) != 1 or not isinstance(chain[0], str):
        raise BundleError(f"a key for {X509_USE} must have exactly one certificate in x5c")
    try:
        certificate = x509.load_der_x509_certificate(base64.b64decode(chain[0], validate=True))
    except (ValueError, binascii.Error):
        raise BundleError("an x5c is not a certificate in base64") from None
    return _checked(certificate)


def _checked(certificate: x509.Certificate) -> bytes:
    """The PEM of a certificate of a CA."""
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        subject = certificate.subject.rfc4514_string()
    except (x509.ExtensionNotFound, ValueError):
        is_authority, subject = False, "one"
    if not is_authority:
        raise BundleError(f"a certificate in it ({subject}) is not that of a CA")
    return certificate.public_bytes(Encoding.PEM)


def _entry_of(root: bytes) -> Mapping[str, object]:
    certificate = x509.load_pem_x509_certificate(root)
    der = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()
    return {**_public_key(certificate), "use": X509_USE, "x5c": [der]}


def _public_key(certificate: x509.Certificate) -> Mapping[str, object]:
    key = certificate.public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    match key:
        case rsa.RSAPublicKey():
            jwk: Mapping[str, object] = RSAKey.import_key(pem).as_dict(private=False)
        case ec.EllipticCurvePublicKey():
            jwk = ECKey.import_key(pem).as_dict(private=False)
        case _:
            jwk = OKPKey.import_key(pem).as_dict(private=False)
    return jwk


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def joined_pem(roots: Iterable[bytes]) -> bytes:
    """Roots in one text of PEM."""
    return b"".join(root.rstrip(b"\n") + b"\n" for root in roots)
