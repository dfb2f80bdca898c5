"""The mesh identity of a proxy as SDS secrets: ``default`` (its certificate and key) and ``ROOTCA``.

A private key is sent only to streams authenticated as that workload; ``Proxy.identity`` has the result, which is
decided when the stream is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from mesh_pilot.model.resource import IDENTITY_SECRET, SECRET, TRUST_SECRET, Resource, make_resource
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.security.ca import Certificate, CertificateAuthority
from mesh_pilot.snapshots import Snapshot, snapshot_of


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

    def __init__(self, authority: CertificateAuthority, *, now: Callable[[], datetime]) -> None:
        self.authority = authority
        self.now = now
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
            del self._sets[identity]
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
        self._root = secret_resource(TRUST_SECRET, trusted_ca=inline(issuer.authority.root))
        self._issue()

    def __repr__(self) -> str:
        return f"<IdentitySet {self._identity} until {self._certificate.not_after:%F %T}>"

    @property
    def idle(self) -> bool:
        return not self._wakers

    @property
    def renew_at(self) -> datetime:
        return self._certificate.renew_at

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
        issuer = self._issuer
        self._certificate: Certificate = issuer.authority.issue(self._identity, issuer.now())
        issuer.issued += 1
        pair = inline(self._certificate.chain), inline(self._certificate.private_key)
        identity = secret_resource(IDENTITY_SECRET, certificate=pair)
        self._snapshot = snapshot_of((identity, self._root))


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
