"""Callers: the evidence that a call shows of who makes it, and the authenticators that judge it.

An authenticator knows one kind of evidence (a client certificate, a token of some issuer).
``identity.authenticators.authentication`` asks them in order. Evidence in the metadata of a call (a bearer token) is
only looked at where no third party could have overheard it: over TLS, or from this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
from cryptography import x509

from mesh_pilot.model.spiffe import Identity


class AuthenticationError(Exception):
    """Evidence that is refused: ``reason`` is a stable code for metrics, the text is for the caller's operator.

    The text never holds a token or key.
    """

    def __init__(self, reason: str, message: str, *, is_final: bool = False) -> None:
        """``is_final``: no other evidence of this call may count instead."""
        super().__init__(message)
        self.reason = reason
        self.is_final = is_final


class AuthenticatorUnavailable(Exception):
    """Evidence that could not be judged now: whoever must be asked does not answer. The caller may try again."""


@attrs.frozen
class Credentials:
    """The evidence that one call shows of its caller."""

    address: str
    """``host:port`` or ``unix:///path``."""
    tls: bool = False
    certificate: bytes | None = attrs.field(default=None, repr=False)
    """The client certificate in DER, verified against the roots that we trust; None without one."""
    metadata: Mapping[str, Sequence[str]] = attrs.field(factory=dict, repr=False)
    """The metadata (headers) of the call by lower-case name; empty if it was sent where it can be overheard."""

    @property
    def bearer_token(self) -> str | None:
        """The token of ``authorization: Bearer ...``; None without exactly one."""
        match self.metadata.get("authorization", ()):
            case [value] if value[:7].lower() == "bearer ":
                return value[7:].strip() or None
            case _:
                return None


@attrs.frozen
class Caller:
    """An authenticated caller."""

    identity: Identity
    """The identity of the caller, in the mesh's own trust domain also where the evidence names an alias of that."""
    authenticator: str
    """The ``name`` of the authenticator that vouches for it."""
    evidence: str = attrs.field(default="", eq=False)
    """The id of its evidence, for the audit: a certificate's serial number, that of a join token. No secret."""
    certificate: x509.Certificate | None = attrs.field(default=None, repr=False, eq=False)
    """The client certificate, where that is the evidence."""


@attrs.frozen
class TrustDomains:
    """The mesh's own trust domain and its aliases."""

    own: str
    aliases: frozenset[str] = frozenset()

    def __contains__(self, trust_domain: object) -> bool:
        return trust_domain == self.own or trust_domain in self.aliases


TrustDomainsNow = Callable[[], TrustDomains]
"""The trust domains as MeshConfig has them now."""


class Authenticator(Protocol):
    """Judges one kind of evidence."""

    @property
    def name(self) -> str:
        """A word or two for logs and metrics, such as ``client_certificate``."""
        ...

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """The identity that the evidence proves, in the mesh's own trust domain; None without evidence of this kind.

        Raises AuthenticationError for evidence of this kind that proves nothing, and AuthenticatorUnavailable.
        """
        ...


def is_local(address: str) -> bool:
    """True if a peer's address is on this machine: loopback or a Unix socket."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback


def host_of(address: str) -> str:
    """The address of a peer without its port."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdecimal() else address
