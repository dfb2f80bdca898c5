"""Certificates and revocation lists, made and signed: roots, leaves, CRLs. Pure, but for serial numbers and keys.

After RFC 5280 and the SPIFFE X.509-SVID document: a leaf has one URI name, no subject, and is not a CA.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mesh_pilot.identity.authority.material import MIN_RSA_BITS, KeyPair, SigningKey, is_known_curve
from mesh_pilot.identity.signers.signing import SigningError, SigningRequest

ROOT_LIFETIME = timedelta(days=3650)
CLOCK_SKEW = timedelta(minutes=2)
"""Certificates are valid from a little before now, for machines whose clocks are behind."""

LeafKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


def new_root(name: str, now: datetime) -> KeyPair:
    """A new P-256 key with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, name),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{name} root {identifier.digest.hex()[:8]}"),
        ]
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + ROOT_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def cross_certificate(old: KeyPair, new: KeyPair, now: datetime) -> x509.Certificate | None:
    """A new root's name and key in a certificate of the old root, for verifiers that know only the old one.

    None if the old root allows no CA certificate below it (pathlen:0).
    """
    constraints = old.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    if constraints.path_length == 0:
        return None
    root = new.certificate
    key = new.key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(root.subject)
        .issuer_name(old.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(root.not_valid_after_utc, old.certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_authority_key(old.certificate), critical=False)
        .sign(old.key, _hash(old.key))
    )


def requested_key(csr: x509.CertificateSigningRequest) -> LeafKey:
    """The public key of a CSR. Raises SigningError for one that Envoy would not take, or that is weak."""
    try:
        key = csr.public_key()
    except Exception as error:  # the library raises several kinds
        raise SigningError(f"the CSR cannot be read: {error}") from None
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise SigningError(f"the CSR has an RSA key of {key.key_size} bits; at least {MIN_RSA_BITS} are needed")
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and is_known_curve(key.curve):
        return key
    raise SigningError("the CSR's key is neither RSA nor of P-256, P-384, P-521: no Envoy takes others")


def sign_leaf(issuer: KeyPair, request: SigningRequest, start: datetime, end: datetime) -> x509.Certificate:
    """A certificate for the public key of a request, with the names of the request. Raises SigningError."""
    key = requested_key(request.csr)
    names: list[x509.GeneralName] = []
    if request.identity is not None:
        names.append(x509.UniformResourceIdentifier(str(request.identity)))
    names += map(_server_name, request.dns_names)
    if not names:
        raise SigningError("a certificate needs a name")
    return (
        _leaf_of(issuer.certificate, is_rsa=isinstance(key, rsa.RSAPublicKey))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(issuer.key, _hash(issuer.key))
    )


@lru_cache(maxsize=8)
def _leaf_of(issuer: x509.Certificate, *, is_rsa: bool) -> x509.CertificateBuilder:
    """The beginning of all leaves of an issuer that are for a key of this kind."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True, key_encipherment=is_rsa), critical=True)
        .add_extension(_authority_key(issuer), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
    )


def make_crl(
    issuer: KeyPair, serials: Iterable[int], now: datetime, *, last: x509.CertificateRevocationList | None = None
) -> x509.CertificateRevocationList:
    """A list that revokes ``serials`` besides those of ``last``, the previous list of the issuer.

    It is in force for as long as its issuer: Envoy refuses everybody once a list ended.
    """
    revoked = {entry.serial_number: entry for entry in (last or ())}
    number = 1
    if last is not None:
        with suppress(x509.ExtensionNotFound):
            number += last.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    for serial in serials:
        if serial not in revoked:
            revoked[serial] = x509.RevokedCertificateBuilder(serial, now).build()
    builder = (
        x509.CertificateRevocationListBuilder(issuer.certificate.subject)
        .last_update(now - CLOCK_SKEW)
        .next_update(issuer.certificate.not_valid_after_utc)
        .add_extension(_authority_key(issuer.certificate), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for entry in revoked.values():
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(issuer.key, _hash(issuer.key))


def _server_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise SigningError(f"{name!r} is not a DNS name") from None


def _authority_key(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The key identifier of an issuer, as its own certificate has it."""
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        key = issuer.public_key()
        assert isinstance(key, LeafKey)
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def _hash(key: SigningKey) -> hashes.SHA256 | hashes.SHA384 | hashes.SHA512:
    """The digest that fits a signing key's strength."""
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.key_size > 256:
        return hashes.SHA384() if key.curve.key_size == 384 else hashes.SHA512()
    return hashes.SHA256()


def _usage(
    *,
    digital_signature: bool = False,
    key_encipherment: bool = False,
    key_cert_sign: bool = False,
    crl_sign: bool = False,
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_encipherment=key_encipherment,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
