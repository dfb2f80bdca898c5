"""Callers with a JSON Web Token of an issuer that is believed: ``authorization: Bearer <header>.<claims>.<signature>``.

Rules: RFC 7519, RFC 8725 ("JSON Web Token Best Current Practices"), OpenID Connect Core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from joserfc import jws
from joserfc.errors import JoseError

from mesh_pilot.identity.authenticators.compact_token import CompactToken, read_token, shown, token_in
from mesh_pilot.identity.authenticators.issuer_keys import Fetch, IssuerKey, IssuerKeys
from mesh_pilot.identity.authenticators.token_issuers import TokenIssuer
from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials, TrustDomainsNow
from mesh_pilot.model.spiffe import Identity, make_identity


class JsonWebToken:
    """Judges tokens of the issuers that it knows."""

    name = "jwt"

    def __init__(
        self,
        issuers: Iterable[TokenIssuer],
        trust_domains: TrustDomainsNow,
        *,
        is_last: bool = True,
        fetch: Fetch | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``is_last``: tokens of other issuers are refused; otherwise another authenticator may know them.

        Raises TokenIssuerError.
        """
        self._issuers = {issuer.issuer: (issuer, IssuerKeys(issuer, fetch=fetch)) for issuer in issuers}
        self._trust_domains = trust_domains
        self._is_last = is_last
        self._now = now

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        text = token_in(credentials)
        if text is None:
            return None
        if not self._is_last and not self._issuers:
            return None
        token = read_token(text)
        if token.issuer not in self._issuers:
            if not self._is_last:
                return None
            known = ", ".join(self._issuers) or "none: --jwt-rules names them"
            raise AuthenticationError(
                "issuer", f"the token is of the issuer {shown(token.issuer)}; believed here: {known}"
            )
        issuer, keys = self._issuers[token.issuer]
        await check_token(token, issuer, keys, self._now())
        return identity_of(self._trust_domains().own, *issuer.names(token))


async def check_token(token: CompactToken, issuer: TokenIssuer, keys: IssuerKeys, now: float) -> None:
    """Refuse a token that its issuer did not sign, that is not in force at a time, or that is for somebody else.

    ``now``: seconds since 1970. Raises AuthenticationError, and AuthenticatorUnavailable while that cannot be told.
    """
    if token.algorithm not in issuer.algorithms:
        raise AuthenticationError(
            "algorithm",
            f"the token is signed by {token.algorithm}, which the rule of {issuer.issuer} does not permit",
        )
    if not any(_verifies(token, key) for key in await keys.find(token.key_id, token.algorithm)):
        raise AuthenticationError("signature", f"the token is not signed by {issuer.issuer}, or was changed since")
    token.check_times(now)
    token.check_audience(issuer.audiences)


def identity_of(trust_domain: str, namespace: str, service_account: str) -> Identity:
    """The identity of these names, which come from a token. Raises AuthenticationError."""
    identity = make_identity(trust_domain, namespace, service_account)
    if identity is None:
        raise AuthenticationError(
            "claim_form",
            f"the token is for the namespace {shown(namespace)} and the service account {shown(service_account)}; "
            "names are of lower-case letters, digits and '-', as in Kubernetes",
        )
    return identity


def _verifies(token: CompactToken, key: IssuerKey) -> bool:
    registry = jws.JWSRegistry(algorithms=[token.algorithm], strict_check_header=False)
    try:
        return jws.validate_compact(token.signature, key, registry=registry)
    except (JoseError, ValueError, TypeError):
        return False
