"""Callers with a join token (``mesh-pilot token create``): ``authorization: Bearer mpjt_...``.

Each call that shows a token uses it once; a token for one use gives one certificate, or opens one xDS stream.
"""

from __future__ import annotations

import structlog
import trio

from mesh_pilot.identity.tokens.join_tokens import PREFIX, JoinTokens
from mesh_pilot.identity.tokens.store import TokenStoreError
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    AuthenticatorUnavailable,
    Credentials,
    TrustDomainsNow,
)
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="security")


class JoinToken:
    """Judges join tokens, one at a time and in a worker thread; None: this control plane takes none."""

    name = "join_token"

    def __init__(self, tokens: JoinTokens | None, trust_domains: TrustDomainsNow) -> None:
        self._tokens = tokens
        self._trust_domains = trust_domains
        self._limiter = trio.CapacityLimiter(1)
        self._lines = LogLimiter()

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        """If cancelled, the token may have been used."""
        token = credentials.bearer_token
        if token is None or not token.startswith(PREFIX):
            return None
        if self._tokens is None:
            raise AuthenticationError(
                "disabled", "this control plane takes no join tokens: it was started without --token-dir and --ca-dir"
            )
        known = self._trust_domains()
        try:
            return await trio.to_thread.run_sync(
                self._tokens.redeem, token, credentials.address, known, limiter=self._limiter
            )
        except TokenStoreError as error:
            if self._lines.admit(str(error), trio.current_time()) is not None:
                log.error("join tokens cannot be checked; whoever shows one has to try again", reason=str(error))
            raise AuthenticatorUnavailable(
                "join tokens cannot be checked now; the control plane's log says why"
            ) from None
