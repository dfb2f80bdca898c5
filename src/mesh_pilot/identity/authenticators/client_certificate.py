"""Callers with a client certificate: its SPIFFE id names them (SPIFFE, "X.509-SVID": a certificate has exactly one).

That the certificate leads to a root that we trust is verified in the TLS handshake. That it is in force is verified
there and for each call: a connection may outlast it. Whether it is revoked is looked up for each call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from cryptography import x509

from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials, TrustDomains, TrustDomainsNow
from mesh_pilot.model.spiffe import SCHEME, Identity, parse_identity


class ClientCertificate:
    """Judges client certificates."""

    name = "client_certificate"

    def __init__(
        self,
        trust_domains: TrustDomainsNow,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        is_revoked: Callable[[x509.Certificate], bool] = lambda _: False,
        *,
        gateways: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """``gateways``: namespace and service account of proxies that
        speak for others only, never for themselves."""
        self._trust_domains = trust_domains
        self._now = now
        self._is_revoked = is_revoked
        self._gateways = gateways

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        if credentials.certificate is None:
            return None
        certificate = read_certificate(credentials.certificate)
        ended = certificate.not_valid_after_utc
        if self._now() > ended:
            raise AuthenticationError("expired", f"the certificate ended at {ended:%F %T} UTC")
        if self._is_revoked(certificate):
            raise AuthenticationError("revoked", "the certificate is revoked")
        identity = identity_in(_spiffe_ids(certificate), self._trust_domains())
        return None if (identity.namespace, identity.service_account) in self._gateways else identity


def identity_in(spiffe_ids: tuple[str, ...], trust_domains: TrustDomains) -> Identity:
    """The one identity of a certificate. Raises AuthenticationError."""
    if len(spiffe_ids) != 1:
        found = f"{len(spiffe_ids)} SPIFFE names" if spiffe_ids else "no SPIFFE name"
        raise AuthenticationError("spiffe_names", f"the certificate has {found}; exactly one is needed")
    identity = parse_identity(spiffe_ids[0])
    if identity is None:
        raise AuthenticationError(
            "spiffe_form",
            f"the certificate is for {spiffe_ids[0]!r}, and that is not of the form "
            "spiffe://<trust domain>/ns/<namespace>/sa/<service account>",
        )
    if identity.trust_domain not in trust_domains:
        known = ", ".join(sorted({trust_domains.own, *trust_domains.aliases}))
        raise AuthenticationError(
            "trust_domain",
            f"the certificate is for {identity}, and {identity.trust_domain} is not a trust domain of this mesh "
            f"({known}); if it should be one, add it to trustDomainAliases",
        )
    return Identity(trust_domains.own, identity.namespace, identity.service_account)


@lru_cache(maxsize=1000)  # the calls of a connection show the same one, and two authenticators look at it
def read_certificate(certificate: bytes) -> x509.Certificate:
    """A certificate in DER. Raises AuthenticationError."""
    try:
        return x509.load_der_x509_certificate(certificate)
    except ValueError as error:
        raise AuthenticationError("certificate_form", f"the certificate cannot be read: {error}") from None


def _spiffe_ids(certificate: x509.Certificate) -> tuple[str, ...]:
    """The ``spiffe://`` names of a certificate. Raises AuthenticationError for names that do not parse."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise AuthenticationError("certificate_form", f"the certificate cannot be read: {error}") from None
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return tuple(uri for uri in uris if uri.startswith(SCHEME))
