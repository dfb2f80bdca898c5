"""The identity of a caller: authenticators in order, and the node that a proxy claims to be against what is proven.

The first authenticator that vouches for the caller decides. A caller that shows evidence of which none is accepted is
refused, with all reasons; one that shows none is anonymous: served configuration in plaintext, but no private key, and
refused over TLS.

The namespace that counts is the one that configuration is generated for: metadata NAMESPACE, else that of the node id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

import attrs

from mesh_pilot.identity.authenticators.client_certificate import ClientCertificate, read_certificate
from mesh_pilot.identity.authenticators.denials import Denials
from mesh_pilot.identity.authenticators.join_token import JoinToken
from mesh_pilot.identity.tokens.join_tokens import token_id
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    Authenticator,
    AuthenticatorUnavailable,
    Caller,
    Credentials,
    is_local,
)
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import Identity, make_identity

DEFAULT_ACCOUNT = "default"

NOBODY = "none"
"""The word in place of an authenticator for callers without evidence."""

TOKEN_HEADERS = frozenset({"authorization", "x-consul-token"})


class Authentication:
    """The authenticators, in the order in which they are asked.

    Mutable state: what they have accepted and refused.
    """

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        denials: Denials | None = None,
        revoked_until: Callable[[Identity], datetime | None] = lambda _: None,
    ) -> None:
        """``revoked_until``: the time until when an identity is revoked; None if it is not."""
        self._authenticators = tuple(authenticators)
        self._revoked_until = revoked_until
        self.accepted: Counter[str] = Counter()
        """Callers by authenticator."""
        self.denials = denials or Denials()
        """Evidence that was refused, also of callers that showed something better."""

    @property
    def refused(self) -> Counter[tuple[str, str]]:
        """Evidence that was refused, by authenticator and reason."""
        return self.denials.counts

    async def caller(self, credentials: Credentials) -> Caller | None:
        """The caller; None if it shows nothing that any authenticator knows, in plaintext.

        Raises AuthenticationError if evidence was shown and none was accepted (the reason is that of the first), or
        none was shown over TLS, and AuthenticatorUnavailable if some evidence could not be judged now.
        """
        if credentials.metadata and not (credentials.tls or is_local(credentials.address)):
            if not TOKEN_HEADERS.isdisjoint(credentials.metadata):
                text = "the token came in plaintext, where it may have been overheard: replace it"
                self.denials.note(credentials.address, NOBODY, "plaintext_token", text)
            credentials = attrs.evolve(credentials, metadata={})
        # All evidence is looked at, as a caller may show a certificate that ended and a token that has not. The
        # first that proves something wins; a final error (of a forged token, say) ends the search.
        errors: list[AuthenticationError] = []
        unavailable: AuthenticatorUnavailable | None = None
        for authenticator in self._authenticators:
            try:
                identity = await authenticator.authenticate(credentials)
            except AuthenticationError as error:
                self.denials.note(credentials.address, authenticator.name, error.reason, str(error))
                errors.append(error)
                if error.is_final:
                    break
            except AuthenticatorUnavailable as error:
                self.denials.note(credentials.address, authenticator.name, "unavailable", str(error))
                unavailable = error
            else:
                if identity is not None:
                    self.check_revoked(identity, credentials.address, authenticator.name)
                    self.accepted[authenticator.name] += 1
                    return _caller(identity, authenticator.name, credentials)
        if unavailable is not None and not any(error.is_final for error in errors):
            raise unavailable
        if errors:
            raise AuthenticationError(errors[0].reason, "; ".join(map(str, errors)))
        if credentials.tls:
            text = "it shows neither a client certificate nor a token of a kind that is known here"
            self.denials.note(credentials.address, NOBODY, "no_evidence", text)
            raise AuthenticationError("no_evidence", text)
        return None

    def check_revoked(self, identity: Identity, address: str, authenticator: str) -> None:
        """Raise AuthenticationError for an identity that is revoked: no evidence of it counts."""
        until = self._revoked_until(identity)
        if until is not None:
            text = f"{identity} is revoked until {until:%F %T} UTC (mesh-pilot ca revoke --identity)"
            self.denials.note(address, authenticator, "identity_revoked", text)
            raise AuthenticationError("identity_revoked", text, is_final=True)


def _caller(identity: Identity, authenticator: str, credentials: Credentials) -> Caller:
    if authenticator == ClientCertificate.name and credentials.certificate is not None:
        certificate = read_certificate(credentials.certificate)
        return Caller(identity, authenticator, f"{certificate.serial_number:x}", certificate)
    if authenticator == JoinToken.name:
        return Caller(identity, authenticator, token_id(credentials.bearer_token or ""))
    return Caller(identity, authenticator)


@attrs.frozen
class Verdict:
    """The identity of a proxy, or why it has none."""

    identity: str = ""
    """A SPIFFE id of the mesh's own trust domain; empty where nothing vouches for one."""
    reason: str = ""
    """Why there is no identity."""


def admission(proxy: Proxy, caller: Caller | None, address: str, *, trust_local: bool, trust_domain: str) -> Verdict:
    """The identity of a proxy whose caller is known. ``trust_local``: a caller on this machine that shows nothing is
    believed what its node says.

    Raises AuthenticationError if the node claims to be another workload.
    """
    if caller is not None:
        check_claim(proxy, caller.identity)
        return Verdict(str(caller.identity))
    if not is_local(address):
        return Verdict(reason="it shows no evidence and is not on this machine")
    if not trust_local:
        return Verdict(reason="it shows no evidence, and this machine is not trusted without (--trust-local)")
    account = proxy.text("SERVICE_ACCOUNT") or DEFAULT_ACCOUNT
    identity = make_identity(trust_domain, proxy.namespace, account)
    if identity is None:
        return Verdict(reason=f"no identity has the namespace {proxy.namespace!r} and service account {account!r}")
    return Verdict(str(identity))


def check_claim(proxy: Proxy, identity: Identity) -> None:
    """The namespace and service account in a node must be those of the identity. Raises AuthenticationError."""
    account = proxy.text("SERVICE_ACCOUNT")
    if identity.namespace != proxy.namespace or (account and identity.service_account != account):
        claimed = f"namespace {proxy.namespace}" + (f", service account {account}" if account else "")
        raise AuthenticationError("claim", f"node {proxy.id} claims {claimed}, but it is proven to be {identity}")
