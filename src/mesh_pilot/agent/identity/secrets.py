"""Envoy's ``Secret`` messages, written and read by fields: their generated classes are not worth their memory here.

Source: Envoy, ``envoy.extensions.transport_sockets.tls.v3``.
"""

from __future__ import annotations

import hashlib
import ssl

import attrs

from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.identity.material import IdentityMaterial, certificates_in, joined_roots
from mesh_pilot.base.protowire import WireError, field
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET

_NAME, _CERTIFICATE, _VALIDATION = 1, 2, 4
_CHAIN, _KEY = 1, 2
_TRUSTED, _REVOKED, _CUSTOM = 1, 7, 12
_FILE, _BYTES, _STRING = 1, 2, 3

FILE_CERTIFICATE, FILE_ROOTS = "file-cert:", "file-root:"
"""Begin the names of secrets that are files next to Envoy, which reads them itself: ``file-cert:chain~key``."""


@attrs.frozen
class AgentSecret:
    """A Secret as it is sent."""

    name: str
    body: bytes = attrs.field(repr=False)
    version: str = attrs.field(init=False)

    @version.default
    def _hash(self) -> str:
        return hashlib.sha256(self.body).hexdigest()[:16]


def certificate_secret(material: IdentityMaterial) -> AgentSecret:
    """The secret ``default``: the chain and its key."""
    pair = field(_CHAIN, field(_BYTES, material.chain)) + field(_KEY, field(_BYTES, material.key))
    return AgentSecret(IDENTITY_SECRET, field(_NAME, IDENTITY_SECRET.encode()) + field(_CERTIFICATE, pair))


def roots_secret_of(roots: bytes) -> AgentSecret:
    """The secret ``ROOTCA`` without borders between trust domains."""
    trusted = field(_TRUSTED, field(_BYTES, roots))
    return AgentSecret(TRUST_SECRET, field(_NAME, TRUST_SECRET.encode()) + field(_VALIDATION, trusted))


def file_secret(name: str) -> AgentSecret | None:
    """The secret of a name that says which files to read; None for other names."""
    body = b""
    if name.startswith(FILE_CERTIFICATE):
        chain, tilde, key = name.removeprefix(FILE_CERTIFICATE).partition("~")
        if chain and tilde and key:
            body = field(_CERTIFICATE, field(_CHAIN, _file(chain)) + field(_KEY, _file(key)))
    elif name.startswith(FILE_ROOTS) and (file := name.removeprefix(FILE_ROOTS)):
        body = field(_VALIDATION, field(_TRUSTED, _file(file)))
    return AgentSecret(name, field(_NAME, name.encode()) + body) if body else None


def _file(path: str) -> bytes:
    return field(_FILE, path.encode())


@attrs.frozen
class ReadSecret:
    """The parts of a foreign Secret that we understand; empty where it has none."""

    name: str
    chain: bytes = b""
    key: bytes = attrs.field(default=b"", repr=False)
    roots: bytes = b""
    is_validation: bool = False


def read_secret(body: bytes) -> ReadSecret:
    """Read a Secret with its content inline. Raises WireError."""
    secret = Parts(body)
    certificate, validation = Parts(secret.last(_CERTIFICATE)), Parts(secret.last(_VALIDATION))
    roots = _inline(validation.last(_TRUSTED))
    if not roots and _CUSTOM in validation:
        # Envoy's SPIFFE validator: bundles in PEM by trust domain, within an Any.
        roots = joined_roots(validation.last(_CUSTOM))
    return ReadSecret(
        secret.text(_NAME, "replace"),
        _inline(certificate.last(_CHAIN)),
        _inline(certificate.last(_KEY)),
        roots,
        _VALIDATION in secret,
    )


def is_roots_secret(body: bytes) -> bool:
    """True for a Secret by which peers can be verified: with roots, or with a validator that has some."""
    try:
        found = read_secret(body)
        own_roots(body, "")  # a validator is read to its end
    except WireError:
        return False
    return found.name == TRUST_SECRET and found.is_validation and can_be_trusted(joined_roots(found.roots))


def can_be_trusted(roots: bytes) -> bool:
    """True for certificates that TLS can load: with one that it cannot, it would have none of them."""
    if not certificates_in(roots):
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=roots.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        return False
    return True


def own_roots(body: bytes, trust_domain: str) -> bytes:
    """The roots of a trust domain in a Secret ``ROOTCA``, in PEM: all, unless it tells trust domains apart."""
    validation = Parts(Parts(body).last(_VALIDATION))
    if _TRUSTED in validation:
        return _inline(validation.last(_TRUSTED))
    validator = Parts(Parts(validation.last(_CUSTOM)).last(2)).last(2)  # within an Any
    domains = map(Parts, Parts(validator).all(1))
    return joined_roots(*(_inline(each.last(2)) for each in domains if each.last(1) == trust_domain.encode()))


def revocation_lists(body: bytes) -> bytes:
    """The revocation lists of a Secret ``ROOTCA``, in PEM; empty where it has none."""
    return _inline(Parts(Parts(body).last(_VALIDATION)).last(_REVOKED))


def has_roots(body: bytes, roots: bytes) -> bool:
    """True if a Secret has one of these roots, in PEM, among its own."""
    return not _bare(read_secret(body).roots).isdisjoint(_bare(roots))


def _bare(pem: bytes) -> set[bytes]:
    """The certificates of a string, however its lines end."""
    return {b"".join(text.split()) for text in certificates_in(pem)}


def _inline(source: bytes) -> bytes:
    parts = Parts(source)
    return parts.last(_BYTES) or parts.last(_STRING)
