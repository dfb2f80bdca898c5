"""Callers with a client certificate: its SPIFFE id names them (SPIFFE, "X.509-SVID": a certificate has exactly one).

That the certificate leads to a root that we trust, and is in force, is verified in the TLS handshake.
"""

from __future__ import annotations

from cryptography import x509

from mesh_pilot.model.spiffe import SCHEME, Identity, parse_identity
from mesh_pilot.security.callers import AuthenticationError, Credentials, TrustDomains, TrustDomainsNow


class ClientCertificate:
    """Judges client certificates."""

    name = "client_certificate"

    def __init__(self, trust_domains: TrustDomainsNow) -> None:
        self._trust_domains = trust_domains

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        if credentials.certificate is None:
            return None
        return identity_in(spiffe_ids_of(credentials.certificate), self._trust_domains())


def identity_in(spiffe_ids: tuple[str, ...], trust_domains: TrustDomains) -> Identity:
    """The one identity of a certificate. Raises AuthenticationError."""
    if len(spiffe_ids) != 1:
        found = f"{len(spiffe_ids)} SPIFFE names" if spiffe_ids else "no SPIFFE name"
        raise AuthenticationError("spiffe_names", f"its certificate has {found}; exactly one is needed")
    identity = parse_identity(spiffe_ids[0])
    if identity is None:
        raise AuthenticationError(
            "spiffe_form",
            f"its certificate is for {spiffe_ids[0]!r}, and that is not of the form "
            "spiffe://<trust domain>/ns/<namespace>/sa/<service account>",
        )
    if identity.trust_domain not in trust_domains:
        known = ", ".join(sorted({trust_domains.own, *trust_domains.aliases}))
        raise AuthenticationError(
            "trust_domain",
            f"its certificate is for {identity}, and {identity.trust_domain} is not a trust domain of this mesh "
            f"({known}); if it should be one, add it to trustDomainAliases",
        )
    return Identity(trust_domains.own, identity.namespace, identity.service_account)


def spiffe_ids_of(certificate: bytes) -> tuple[str, ...]:
    """The ``spiffe://`` names of a certificate in DER. Raises AuthenticationError for one that does not parse."""
    try:
        names = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return ()
    except ValueError as error:
        raise AuthenticationError("certificate_form", f"its certificate cannot be read: {error}") from None
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return tuple(uri for uri in uris if uri.startswith(SCHEME))
