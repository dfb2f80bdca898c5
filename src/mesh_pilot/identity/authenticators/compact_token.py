"""JSON Web Tokens as they are sent (RFC 7519, compact form): read without belief, and the claims that all must have.

Nothing that is read here is proven: it serves to refuse a token, or to find out whose keys have to prove it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import attrs
from joserfc import jws
from joserfc.errors import JoseError

from mesh_pilot.base.reading import as_string
from mesh_pilot.identity.tokens.join_tokens import PREFIX as JOIN_TOKEN_PREFIX
from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials

MAX_BYTES = 16_384
"""The longest token that is read."""
LEEWAY_SECONDS = 30.0
"""The difference between an issuer's clock and ours that is forgiven."""

TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Types of tokens that say who somebody is; others, such as logout tokens, are signed by the same keys."""

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"})
"""Algorithms of signatures that only the issuer can make: no secret is shared, and ``none`` is not one."""

MAX_SHOWN = 100


class _Registry(jws.JWSRegistry):
    max_header_length = MAX_BYTES


@attrs.frozen
class CompactToken:
    """A token, read but not verified."""

    signature: jws.CompactSignature = attrs.field(repr=False)
    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def issuer(self) -> str:
        """The issuer that it claims; empty without one."""
        return as_string(self.claims, "iss")

    def text(self, claim: str) -> str:
        """A claim that must be there, and a string. Raises AuthenticationError."""
        value = self._required(claim)
        if not isinstance(value, str) or not value:
            raise AuthenticationError("claim_form", f"the token has the claim {claim!r}, and that is not a string")
        return value

    def check_times(self, now: float) -> None:
        """Refuse a token that is not in force at a time, in seconds since 1970. Raises AuthenticationError."""
        if self._seconds("exp") <= now - LEEWAY_SECONDS:
            raise AuthenticationError("expired", "the token has expired; a new one is needed")
        begins = [self._seconds("iat"), *([self._seconds("nbf")] if "nbf" in self.claims else [])]
        if max(begins) > now + LEEWAY_SECONDS:
            raise AuthenticationError("not_yet_valid", "the token is not valid yet; compare the clocks")

    def check_audience(self, audiences: Collection[str]) -> None:
        """Refuse a token that is for somebody else. Raises AuthenticationError."""
        found = self._required("aud")
        named = [found] if isinstance(found, str) else found
        if not isinstance(named, list) or not all(isinstance(audience, str) for audience in named):
            raise AuthenticationError("claim_form", "the token has an audience ('aud') that is not a string or strings")
        if set(named).isdisjoint(audiences):
            raise AuthenticationError(
                "audience", f"the token is for {shown(', '.join(named))}, and not for {', '.join(sorted(audiences))}"
            )

    def _seconds(self, claim: str) -> float:
        value = self._required(claim)
        try:
            if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        except OverflowError:
            pass
        raise AuthenticationError("claim_form", f"the token has the claim {claim!r}, and that is not a time")

    def _required(self, claim: str) -> object:
        if claim not in self.claims:
            raise AuthenticationError("claim_missing", f"the token has no claim {claim!r}")
        return self.claims[claim]


def token_in(credentials: Credentials) -> str | None:
    """The bearer token of a caller if it is a JSON Web Token; None for none, and for other kinds."""
    token = credentials.bearer_token
    if token is None or token.count(".") != 2 or token.startswith(JOIN_TOKEN_PREFIX):
        return None
    return token


def read_token(text: str) -> CompactToken:
    """Read a token; its algorithm is one of ``ALGORITHMS``. Raises AuthenticationError."""
    if len(text) > MAX_BYTES:
        raise AuthenticationError("token_size", f"the token has {len(text)} bytes; at most {MAX_BYTES} are read")
    try:
        signature = jws.extract_compact(text.encode("ascii"), registry=_Registry())
        header, claims = signature.protected, json.loads(signature.payload)
    except (JoseError, ValueError, TypeError, AttributeError, RecursionError):
        # The library expects the header to be an object; its texts could repeat what was sent.
        raise AuthenticationError("token_form", "the token is not a JSON Web Token") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise AuthenticationError("token_form", "the token is not a JSON Web Token: its parts are not JSON objects")
    algorithm, kind, key_id = header.get("alg"), header.get("typ", "JWT"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise AuthenticationError(
            "algorithm",
            f"the token is signed by {shown(algorithm)}; only {', '.join(sorted(ALGORITHMS))} prove anything",
        )
    if "crit" in header:
        raise AuthenticationError("token_form", "the token has a header ('crit') with rules that are not known here")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise AuthenticationError("token_type", f"the token is of the type {shown(kind)}, which names no workload")
    if key_id is not None and not isinstance(key_id, str):
        raise AuthenticationError("token_form", "the token has a key id ('kid') that is not a string")
    return CompactToken(signature, algorithm, key_id, claims)


def shown(value: object) -> str:
    """A value that somebody sent, for a message: in quotes, and not all of it if it is long."""
    text = value if isinstance(value, str) else type(value).__name__
    return ascii(text[:MAX_SHOWN]) + ("..." if len(text) > MAX_SHOWN else "")
