"""The mesh identity of a proxy as SDS secrets: ``default`` (its certificate and key) and ``ROOTCA``.

    issuer = Issuer(signer, trust, now=...)
    nursery.start_soon(issuer.run)
    issuer.secrets_of(identity).attach(reader, wake)

A private key is sent only to streams authenticated as that workload; ``Proxy.identity`` has the result, which is
decided when the stream is accepted. Keys are made here, and only a request for the certificate goes to the signer,
which may be slow or away: until it has signed, the secret does not exist; if it does not sign again, the last
certificate stays.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable, Set
from datetime import datetime, timedelta
from itertools import count

import attrs
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.config.core.v3 import base_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2

from mesh_pilot.engine.failures import Condition, Failures, OwnFailures, failure_of
from mesh_pilot.engine.snapshots import EMPTY, Snapshot, snapshot_of
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import Signer, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.roots import ProxyRoots, roots_secret
from mesh_pilot.identity.trust.validity import ValidityPeriod, leaf_validity
from mesh_pilot.model.resource import (
    IDENTITY_SECRET,
    RESOURCE_TYPES,
    SECRET,
    TRUST_SECRET,
    Resource,
    make_resource,
)
from mesh_pilot.model.spiffe import Identity

WORKLOAD_LIFETIME = timedelta(hours=24)

RENEWED_BETWEEN = (0.5, 0.75)
"""The part of its lifetime after which a certificate is renewed: at random, so that a fleet that came at once does not
come back at once."""

RETRY_SECONDS, RETRY_LIMIT_SECONDS = 1.0, 60.0
"""The longest wait after the first attempt that failed; it doubles with each, up to the limit."""

RENEW_ALL_WITHIN = timedelta(seconds=10)
"""The time within which all certificates are replaced once another CA signs."""

MAX_SIGNING = 8
"""Certificates that are being signed at the same time; the built-in signer takes them one after the other."""

SIGNING_SECONDS = 30.0
"""The time that a signer has for one certificate."""

SWEEP_SECONDS = 60.0
"""The interval at which the wall clock is looked at, and identities without a proxy are forgotten.

Those of proxies that reconnect at once are not."""


@attrs.frozen
class IssuerStatistics:
    identities: int
    """Identities of the connected proxies."""
    issued: int
    """Certificates signed since the start."""
    failed: int
    """Attempts since the start that gave no certificate."""
    missing: int
    """Identities that have no certificate yet."""


class Issuer:
    """Keeps one set of secrets an identity, shared by the proxies that have it, and renews them in time.

    Mutable state: the sets, and a heap of those that are to be signed, by time.
    """

    def __init__(
        self,
        signer: Signer,
        trust: TrustStore,
        *,
        now: Callable[[], datetime],
        lifetime: timedelta = WORKLOAD_LIFETIME,
        failures: Failures | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """``now`` gives the wall clock, ``lifetime`` is what the signer is asked for, ``uniform`` a random number."""
        self.failures = failures or Failures()
        self.issued = 0
        self.failed = 0
        self._signer = signer
        self._trust = trust
        self._now = now
        self._lifetime = lifetime
        self._uniform = uniform
        self._sets: dict[Identity, IdentitySet] = {}
        self._due: list[tuple[datetime, int, IdentitySet]] = []
        self._order = count()
        """The order of sets that are due at the same time."""
        self._signing = 0
        self._outdated = 0
        """The number of times that all certificates were to be replaced."""
        self._wake = trio.Event()
        """The loop has something new to look at."""
        self.root = roots_secret(trust)
        """The secret ``ROOTCA``; None while no root is known."""
        self._roots_set = ProxyRoots(trust)
        trust.on_change(self._follow_trust)

    def __repr__(self) -> str:
        return f"<Issuer {self.statistics()}>"

    def secrets_of(self, identity: Identity) -> IdentitySet:
        """The set of an identity. Its certificate is on its way."""
        found = self._sets.get(identity)
        if found is None:
            found = self._sets[identity] = IdentitySet(self, identity)
            self._schedule(found, found.renew_at)
        return found

    def roots_set(self) -> ProxyRoots:
        """The set with ``ROOTCA`` alone, for agents: they have their certificate signed themselves."""
        return self._roots_set

    async def run(self) -> None:
        """Sign what is due and forget what is not needed, forever. If cancelled, what is signed stays."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            while True:
                for secrets in self._take_due():
                    nursery.start_soon(self._sign, secrets)
                with trio.move_on_after(self._seconds_to_next()):
                    await self._wake.wait()
                self._wake = trio.Event()

    def renew_all(self, within: timedelta = RENEW_ALL_WITHIN) -> None:
        """Replace all certificates, at random times until then: another CA signs from now on."""
        self._outdated += 1
        for secrets in self._sets.values():
            if not secrets.is_signing:
                self._schedule(secrets, min(secrets.renew_at, self._now() + within * self._uniform(0, 1)))

    def forget_idle(self) -> None:
        """Forget identities that no proxy has had since the last call."""
        for secrets in list(self._sets.values()):
            if secrets.idle and secrets.was_idle and not secrets.is_signing:
                del self._sets[secrets.identity]
                secrets.failed.clear()
            secrets.was_idle = secrets.idle
        self._due = [entry for entry in self._due if self._is_valid(entry)]
        heapq.heapify(self._due)

    def look(self) -> None:
        """Sign now what a clock that was set back has put off: certificates that have not begun, and attempts."""
        now = self._now()
        latest_attempt = now + timedelta(seconds=RETRY_LIMIT_SECONDS)
        for secrets in self._sets.values():
            held = secrets.validity
            is_wrong = held is not None and not held.has_begun(now)
            is_late = (held is None or secrets.attempts > 0) and secrets.renew_at > latest_attempt
            if (is_wrong or is_late) and not secrets.is_signing:
                self._schedule(secrets, now)

    def statistics(self) -> IssuerStatistics:
        missing = sum(IDENTITY_SECRET in secrets.awaited for secrets in self._sets.values())
        return IssuerStatistics(len(self._sets), self.issued, self.failed, missing)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.forget_idle()
            self.look()

    def _schedule(self, secrets: IdentitySet, at: datetime) -> None:
        secrets.renew_at = at
        heapq.heappush(self._due, (at, next(self._order), secrets))
        if self._due[0][2] is secrets:
            self._wake.set()

    def _take_due(self) -> list[IdentitySet]:
        """The sets to sign for now, as many as may be at once."""
        taken: list[IdentitySet] = []
        now = self._now()
        while self._due and self._signing < MAX_SIGNING and self._due[0][0] <= now:
            entry = heapq.heappop(self._due)
            if self._is_valid(entry):
                secrets = entry[2]
                secrets.is_signing = True
                self._signing += 1
                taken.append(secrets)
        return taken

    def _is_valid(self, entry: tuple[datetime, int, IdentitySet]) -> bool:
        """False for an entry of a set that was forgotten, is being signed for, or is due at another time by now."""
        at, _, secrets = entry
        is_known = self._sets.get(secrets.identity) is secrets
        return is_known and not secrets.is_signing and secrets.renew_at == at

    def _seconds_to_next(self) -> float:
        """The time to wait; the wall clock may be set during it, so it is looked at now and then."""
        if not self._due or self._signing >= MAX_SIGNING:
            return SWEEP_SECONDS
        return min(max((self._due[0][0] - self._now()).total_seconds(), 0.0), SWEEP_SECONDS)

    async def _sign(self, secrets: IdentitySet) -> None:
        """Get a certificate for a set. If that fails, the last one stays, and a later attempt is scheduled."""
        outdated = self._outdated
        try:
            resource, validity, not_after = await self._certify(secrets.identity)
        except Exception as error:
            self.failed += 1
            secrets.note_failure(error)
            limit = min(RETRY_SECONDS * 2.0 ** min(secrets.attempts - 1, 30), RETRY_LIMIT_SECONDS)
            at = self._now() + timedelta(seconds=self._uniform(limit / 2, limit))
        else:
            self.issued += 1
            secrets.take(resource, validity)
            left = not_after - self._now()
            is_outdated = outdated != self._outdated
            at = self._now() + (RENEW_ALL_WITHIN if is_outdated else left * self._uniform(*RENEWED_BETWEEN))
        finally:
            secrets.is_signing = False
            self._signing -= 1
            self._wake.set()
        self._schedule(secrets, at)

    async def _certify(self, identity: Identity) -> tuple[Resource, ValidityPeriod, datetime]:
        """A new key with its certificate, the life of that, and the end of the first in its chain to end.

        Raises SigningError.
        """
        await trio.lowlevel.checkpoint()
        key = ec.generate_private_key(ec.SECP256R1())
        request = SigningRequest(
            new_request(key, identity), self._lifetime, identity, is_followed=True, evidence="xDS stream"
        )
        try:
            with trio.fail_after(SIGNING_SECONDS):
                signed = await self._signer.sign(request)
        except trio.TooSlowError:
            raise SigningError(f"the signer has not answered within {SIGNING_SECONDS:g} s") from None
        if signed.not_after <= self._now():
            raise SigningError(f"the signer's certificate ended already, at {signed.not_after:%F %T} UTC")
        pair = inline(signed.chain), inline(_pem(key))
        return secret_resource(IDENTITY_SECRET, certificate=pair), leaf_validity(signed.chain), signed.not_after

    def _follow_trust(self) -> None:
        """The roots have changed: tell all proxies."""
        self.root = roots_secret(self._trust)
        for secrets in self._sets.values():
            secrets.show(self.root)


class IdentitySet:
    """The two secrets of one identity, read as ``envoy.catalog.resource_sets.ResourceSet`` is.

    Mutable state: the two secrets, the readers, and how far the issuer has come with the set.
    """

    type_url = SECRET
    is_plan = True
    """A wildcard subscription gets them."""

    def __init__(self, issuer: Issuer, identity: Identity) -> None:
        self.identity = identity
        self._wakers: dict[Hashable, Callable[[], None]] = {}
        self.failed = OwnFailures(issuer.failures, self)
        self._certificate: Resource | None = None
        self.validity: ValidityPeriod | None = None
        """The life of the certificate; None before the first."""
        self._root = issuer.root
        self._snapshot = EMPTY
        self._update()
        self.renew_at = issuer._now()
        """When the next certificate is due, or the next attempt at one."""
        self.attempts = 0
        """Attempts since the last certificate."""
        self.is_signing = False
        self.was_idle = False
        """It had no reader when the issuer last looked."""

    def __repr__(self) -> str:
        return f"<IdentitySet {self.identity}, renewed at {self.renew_at:%F %T}>"

    @property
    def idle(self) -> bool:
        return not self._wakers

    @property
    def awaited(self) -> frozenset[str]:
        """The names that do not exist yet but will: no proxy is told that they do not exist."""
        return _NAMES - self._snapshot.names

    def readers(self) -> tuple[Hashable, ...]:
        return tuple(self._wakers)

    def show(self, root: Resource | None) -> None:
        """Take these roots, and wake the readers if they are others."""
        if root is not self._root:
            self._root = root
            self._update()

    def take(self, certificate: Resource, validity: ValidityPeriod) -> None:
        """Take a new certificate, and wake the readers."""
        self.attempts, self.validity = 0, validity
        self.failed.clear()
        self._certificate = certificate
        self._update()

    def note_failure(self, error: Exception) -> None:
        """An attempt has failed: what there is stays."""
        self.attempts += 1
        state = Condition.MISSING if self._certificate is None else Condition.STALE
        kind = RESOURCE_TYPES[SECRET].short
        is_expected = isinstance(error, SigningError)
        failure = failure_of(error, kind, IDENTITY_SECRET, state, is_expected=is_expected)
        self.failed.put(IDENTITY_SECRET, failure, error)

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def ask(self, names: Set[str]) -> Snapshot:
        """As ``snapshot``: what there is does not depend on the names."""
        return self._snapshot

    def has_asked(self, names: Set[str]) -> bool:
        return True

    def get(self, name: str) -> Resource | None:
        return self._snapshot.entries.get(name)

    def attach(self, reader: Hashable, wake: Callable[[], None]) -> None:
        self._wakers[reader] = wake

    def detach(self, reader: Hashable) -> bool:
        self._wakers.pop(reader, None)
        return self.idle

    def _update(self) -> None:
        self._snapshot = snapshot_of(part for part in (self._certificate, self._root) if part is not None)
        for wake in list(self._wakers.values()):
            wake()


_NAMES = frozenset((IDENTITY_SECRET, TRUST_SECRET))


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


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
