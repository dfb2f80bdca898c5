"""The identity of a caller: authenticators in order, and the node that a proxy claims to be against what is proven.

The first authenticator that vouches for the caller decides. A caller that shows evidence of which none is accepted is
refused, with all reasons; one that shows none is nobody: served configuration in plaintext, but no private key, and
refused over TLS.

The namespace that counts is the one that configuration is generated for: metadata NAMESPACE, else that of the node id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.spiffe import Identity, make_identity
from mesh_pilot.security.callers import (
    AuthenticationError,
    Authenticator,
    AuthenticatorUnavailable,
    Caller,
    Credentials,
    is_local,
)
from mesh_pilot.security.denials import Denials

DEFAULT_ACCOUNT = "default"

NOBODY = "none"
"""The word in place of an authenticator for callers without evidence."""

TOKEN_HEADERS = frozenset({"authorization", "x-consul-token"})


class Authentication:
    """The authenticators, in the order in which they are asked.

    Mutable state: what they have accepted and refused.
    """

    def __init__(self, authenticators: Sequence[Authenticator], denials: Denials | None = None) -> None:
        self._authenticators = tuple(authenticators)
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
                text = "its token came in plaintext, where it may have been overheard: replace it"
                self.denials.note(credentials.address, NOBODY, "plaintext_token", text)
            credentials = attrs.evolve(credentials, metadata={})
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
                    self.accepted[authenticator.name] += 1
                    return Caller(identity, authenticator.name)
        if unavailable is not None and not any(error.is_final for error in errors):
            raise unavailable
        if errors:
            raise AuthenticationError(errors[0].reason, "; ".join(map(str, errors)))
        if credentials.tls:
            text = "it shows neither a client certificate nor a token of a kind that is known here"
            self.denials.note(credentials.address, NOBODY, "no_evidence", text)
            raise AuthenticationError("no_evidence", text)
        return None


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
