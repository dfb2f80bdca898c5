"""The mesh identity of a proxy as SDS secrets: ``default`` (its certificate and key) and ``ROOTCA``.

A private key is sent only to streams authenticated as that workload; ``Proxy.identity`` has the result, which is
decided when the stream is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime, timedelta

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from mesh_pilot.failures import Condition, Failures, OwnFailures, failure_of
from mesh_pilot.model.resource import (
    IDENTITY_SECRET,
    RESOURCE_TYPES,
    SECRET,
    TRUST_SECRET,
    Resource,
    make_resource,
)
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.security.ca import CertificateAuthority
from mesh_pilot.snapshots import Snapshot, snapshot_of

RETRY_AFTER = timedelta(seconds=10)
"""When a certificate that could not be issued is tried again."""


@attrs.frozen
class IssuerStatistics:
    identities: int
    """Identities of the connected proxies."""
    issued: int
    """Certificates signed since the start."""


class Issuer:
    """Keeps one set of secrets an identity, shared by the proxies that have it, and renews them in time.

    ``now`` gives the wall clock.
    """

    def __init__(
        self, authority: CertificateAuthority, *, now: Callable[[], datetime], failures: Failures | None = None
    ) -> None:
        self.authority = authority
        self.now = now
        self.failures = failures or Failures()
        self.issued = 0
        self._sets: dict[Identity, IdentitySet] = {}

    def secrets_of(self, identity: Identity) -> IdentitySet:
        found = self._sets.get(identity)
        if found is None:
            found = self._sets[identity] = IdentitySet(self, identity)
        return found

    def renew(self) -> datetime | None:
        """Renew certificates that are due and wake their readers; returns when the next one is due, if any."""
        for identity in [i for i, secrets in self._sets.items() if secrets.idle]:
            self._sets.pop(identity).failed.clear()
        for secrets in self._sets.values():
            secrets.renew()
        return min((secrets.renew_at for secrets in self._sets.values()), default=None)

    def statistics(self) -> IssuerStatistics:
        return IssuerStatistics(len(self._sets), self.issued)


class IdentitySet:
    """The two secrets of one identity, read as ``envoy.catalog.resource_sets.ResourceSet`` is."""

    type_url = SECRET
    is_plan = True
    """A wildcard subscription gets them."""

    def __init__(self, issuer: Issuer, identity: Identity) -> None:
        self._issuer = issuer
        self._identity = identity
        self._wakers: dict[Hashable, Callable[[], None]] = {}
        self.failed = OwnFailures(issuer.failures, self)
        self._root = secret_resource(TRUST_SECRET, trusted_ca=inline(issuer.authority.root))
        self._snapshot = snapshot_of((self._root,))
        self.renew_at = issuer.now()
        """When the next certificate is due, or the next attempt at one."""
        self._issue()

    def __repr__(self) -> str:
        return f"<IdentitySet {self._identity}, renewed at {self.renew_at:%F %T}>"

    @property
    def idle(self) -> bool:
        return not self._wakers

    def readers(self) -> tuple[Hashable, ...]:
        return tuple(self._wakers)

    def renew(self) -> None:
        if self._issuer.now() >= self.renew_at:
            self._issue()
            for wake in self._wakers.values():
                wake()

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def ask(self, names: frozenset[str]) -> Snapshot:
        """As ``snapshot``: what there is does not depend on the names."""
        return self._snapshot

    def has_asked(self, names: frozenset[str]) -> bool:
        return True

    def get(self, name: str) -> Resource | None:
        return self._snapshot.entries.get(name)

    def attach(self, reader: Hashable, wake: Callable[[], None]) -> None:
        self._wakers[reader] = wake

    def detach(self, reader: Hashable) -> bool:
        self._wakers.pop(reader, None)
        return self.idle

    def _issue(self) -> None:
        """Issue a certificate. If that fails, the last one stays, and a later ``renew`` tries again."""
        try:
            certificate = self._issuer.authority.issue(self._identity, self._issuer.now())
        except Exception as error:
            state = Condition.STALE if IDENTITY_SECRET in self._snapshot.entries else Condition.MISSING
            kind = RESOURCE_TYPES[SECRET].short
            self.failed.put(IDENTITY_SECRET, failure_of(error, kind, IDENTITY_SECRET, state), error)
            self.renew_at = self._issuer.now() + RETRY_AFTER
            return
        self.failed.clear()
        self._issuer.issued += 1
        self.renew_at = certificate.renew_at
        pair = inline(certificate.chain), inline(certificate.private_key)
        self._snapshot = snapshot_of((secret_resource(IDENTITY_SECRET, certificate=pair), self._root))


def secret_resource(
    name: str,
    *,
    certificate: tuple[base_pb2.DataSource, base_pb2.DataSource] | None = None,
    trusted_ca: base_pb2.DataSource | None = None,
    crl: base_pb2.DataSource | None = None,
) -> Resource:
    """A Secret: a certificate chain and its private key, or the roots to trust with a revocation list."""
    message = secret_pb2.Secret(name=name)
    if certificate is not None:
        message.tls_certificate.certificate_chain.CopyFrom(certificate[0])
        message.tls_certificate.private_key.CopyFrom(certificate[1])
    if trusted_ca is not None:
        message.validation_context.trusted_ca.CopyFrom(trusted_ca)
    if crl is not None:
        message.validation_context.crl.CopyFrom(crl)
    return make_resource(name, SECRET, message.SerializeToString(deterministic=True))


def inline(pem: bytes) -> base_pb2.DataSource:
    """PEM that is part of the secret."""
    return base_pb2.DataSource(inline_bytes=pem)
