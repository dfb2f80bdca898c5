"""Root rotation and revocation: what the CA's files become by each step. Pure, but for new keys.

1. ``begin`` makes a new root, which the old one also signs. Both roots are trusted; the old one signs.
2. ``switch`` lets the new root sign. Both are trusted, and the certificate by the old root is in each chain, for those
   who know the old root from a file.
3. ``finish`` drops the old root.

A step may follow once everybody has carried out the one before: see ``ops.ca_pages``. The phase is in the names of the
files, so that all replicas that share them are in the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum

from cryptography import x509

from mesh_pilot.identity.authority.certificates import CLOCK_SKEW, cross_certificate, make_crl, new_root
from mesh_pilot.identity.authority.material import (
    CA_CERTIFICATE,
    CA_KEY,
    CHAIN,
    CRLS,
    CROSS_CERTIFICATE,
    NEXT_CERTIFICATE,
    NEXT_KEY,
    OLD_ROOT_KEY,
    PREVIOUS_CERTIFICATE,
    PREVIOUS_KEY,
    ROOTS,
    AuthorityError,
    KeyPair,
    Material,
    joined,
    key_pem,
    pem,
)

Files = Mapping[str, bytes]


class RotationPhase(Enum):
    """How far a rotation has come."""

    STEADY = "steady"
    """One root signs, and none is about to."""
    BEGUN = "begun"
    """A new root is trusted; the old one signs."""
    SWITCHED = "switched"
    """The new root signs; the old one is still trusted."""


NEXT_STEP = {RotationPhase.STEADY: "begin", RotationPhase.BEGUN: "switch", RotationPhase.SWITCHED: "finish"}


def phase_of(material: Material) -> RotationPhase:
    if material.next is not None:
        return RotationPhase.BEGUN
    return RotationPhase.SWITCHED if material.previous is not None else RotationPhase.STEADY


def begun_at(material: Material) -> datetime | None:
    """When the rotation under way had begun for certain, up to a second late; None if none is under way."""
    new = {RotationPhase.BEGUN: material.next, RotationPhase.SWITCHED: material.issuer}.get(phase_of(material))
    # Certificates have whole seconds.
    return None if new is None else new.certificate.not_valid_before_utc + CLOCK_SKEW + timedelta(seconds=1)


def initial(name: str, now: datetime) -> Files:
    """The files of a new root."""
    root = new_root(name, now)
    return {CA_CERTIFICATE: pem(root.certificate), CA_KEY: key_pem(root.key), ROOTS: pem(root.certificate)}


def begin(files: Files, material: Material, name: str, now: datetime) -> Files:
    """The files with a new root, too. Raises AuthorityError."""
    _expect(material, RotationPhase.STEADY)
    if material.path:
        raise AuthorityError(
            f"the root {material.root.subject.rfc4514_string()!r} is outside: its key is not here. Replace the files "
            f"instead: first add the new root to {ROOTS}, then replace {CA_CERTIFICATE}, {CA_KEY} and {CHAIN}, at last "
            f"remove the old root from {ROOTS} (docs/certificates.md)"
        )
    new = new_root(name, now)
    cross = cross_certificate(material.issuer, new, now)
    kept = {name: content for name, content in files.items() if name != OLD_ROOT_KEY}
    return {
        **kept,
        CA_CERTIFICATE: pem(material.issuer.certificate),
        CA_KEY: key_pem(material.issuer.key),
        NEXT_CERTIFICATE: pem(new.certificate),
        NEXT_KEY: key_pem(new.key),
        **({CROSS_CERTIFICATE: pem(cross)} if cross is not None else {}),
        ROOTS: joined((*material.roots, new.certificate)),
        **({CRLS: joined((*material.crls, make_crl(new, (), now)))} if material.crls else {}),
    }


def switch(files: Files, material: Material) -> Files:
    """The files with the new root as the one that signs. Raises AuthorityError."""
    _expect(material, RotationPhase.BEGUN)
    assert material.next is not None
    kept = {name: content for name, content in files.items() if name not in (NEXT_CERTIFICATE, NEXT_KEY)}
    return {
        **kept,
        **_pair(CA_CERTIFICATE, CA_KEY, material.next),
        **_pair(PREVIOUS_CERTIFICATE, PREVIOUS_KEY, material.issuer),
    }


def finish(files: Files, material: Material) -> Files:
    """The files without the old root. Raises AuthorityError."""
    _expect(material, RotationPhase.SWITCHED)
    assert material.previous is not None
    old = material.previous.certificate
    gone = (PREVIOUS_CERTIFICATE, PREVIOUS_KEY, CROSS_CERTIFICATE, CRLS)
    kept = {name: content for name, content in files.items() if name not in gone}
    crls = [crl for crl in material.crls if crl.issuer != old.subject]
    return {
        **kept,
        ROOTS: joined(root for root in material.roots if root != old),
        **({CRLS: joined(crls)} if crls else {}),
    }


def revoke(files: Files, material: Material, serials: Iterable[int], now: datetime) -> Files:
    """The files with lists that revoke these certificates, signed by each CA whose key is here."""
    ours = material.key_pairs
    made = [make_crl(pair, serials, now, last=crl_of(material.crls, pair.certificate)) for pair in ours]
    others = [crl for crl in material.crls if all(crl_of((crl,), pair.certificate) is None for pair in ours)]
    return {**files, CRLS: joined((*others, *made))}


def crl_of(
    crls: Iterable[x509.CertificateRevocationList], issuer: x509.Certificate
) -> x509.CertificateRevocationList | None:
    """The list that an issuer signed; None if there is none."""
    key = issuer.public_key()
    for crl in crls:
        if crl.issuer == issuer.subject and crl.is_signature_valid(key):  # type: ignore[arg-type]
            return crl
    return None


def _expect(material: Material, phase: RotationPhase) -> None:
    found = phase_of(material)
    if found is not phase:
        raise AuthorityError(
            f"the rotation of the root is {found.value!r}, so the next step is: mesh-pilot ca rotate {NEXT_STEP[found]}"
        )


def _pair(certificate_name: str, key_name: str, pair: KeyPair) -> Files:
    return {certificate_name: pem(pair.certificate), key_name: key_pem(pair.key)}
