"""Checks of a certificate that another CA signed, before anybody gets it: it is the one that was asked for.

A CA outside is configured by others: its role may put in other names, take those of the request, or make a CA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from mesh_pilot.identity.signers.requests import listed, names_of, shown_name
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest

LIFETIME_SLACK = timedelta(minutes=5)
"""A certificate may end so much later than asked: clocks differ, and signers round."""

CLOCK_SKEW = timedelta(seconds=30)
"""A certificate may begin so much in the future: the signer's clock is ahead."""

PEM = serialization.Encoding.PEM


def verified(
    chain: Sequence[x509.Certificate], request: SigningRequest, roots: Sequence[x509.Certificate], now: datetime
) -> SignedCertificate:
    """The answer to a request, leaf first, as PEM up to its root. Raises SigningError for any other certificate."""
    leaf = chain[0]
    if _spki(leaf) != _spki(request.csr):
        raise SigningError("the certificate is for another public key than that of the request")
    _check_names(leaf, request)
    _check_usage(leaf)
    if leaf.not_valid_before_utc > now + CLOCK_SKEW:
        raise SigningError(f"the certificate is valid from {leaf.not_valid_before_utc:%F %T} UTC, which is not yet")
    if leaf.not_valid_after_utc <= now:
        raise SigningError(f"the certificate ended already, at {leaf.not_valid_after_utc:%F %T} UTC")
    if leaf.not_valid_after_utc > now + request.lifetime + LIFETIME_SLACK:
        raise SigningError(
            f"the certificate is valid until {leaf.not_valid_after_utc:%F %T} UTC, longer than the {request.lifetime} "
            "that were asked for"
        )
    path = _path(leaf, chain[1:], roots, max(now, leaf.not_valid_before_utc))
    pem = b"".join(certificate.public_bytes(PEM) for certificate in path)
    return SignedCertificate(leaf, pem, leaf.not_valid_before_utc, min(c.not_valid_after_utc for c in path))


def _check_names(leaf: x509.Certificate, request: SigningRequest) -> None:
    wanted = names_of(request)
    try:
        names: Iterable[x509.GeneralName] = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = ()
    except ValueError as error:
        raise SigningError(f"the names of the certificate cannot be read: {error}") from None
    found = [shown_name(name) for name in names]
    if len(found) != len(wanted) or set(found) != wanted:
        raise SigningError(
            f"the certificate is for {listed(found)} and not, as asked, for exactly {listed(sorted(wanted))}"
        )


def _check_usage(leaf: x509.Certificate) -> None:
    extensions = leaf.extensions
    try:
        is_ca = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    with suppress(x509.ExtensionNotFound):
        is_ca = is_ca or extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    if is_ca:
        raise SigningError("the certificate is one of a CA: whoever has it could sign others")
    needed = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    try:
        usages = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usages = set()
    if not needed <= usages:
        raise SigningError("the certificate is not for both servers and clients (extended key usage)")


def _path(
    leaf: x509.Certificate, intermediates: Iterable[x509.Certificate], roots: Sequence[x509.Certificate], at: datetime
) -> list[x509.Certificate]:
    """The certificates from the leaf to one of the roots."""
    if not roots:
        raise SigningError("no root of the signer is known yet")
    verifier = PolicyBuilder().store(Store(list(roots))).time(at).build_client_verifier()
    try:
        return verifier.verify(leaf, [c for c in intermediates if c not in roots]).chain
    except VerificationError as error:
        raise SigningError(f"the certificate does not lead to a root of the signer: {error}") from None


def _spki(of: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return of.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
