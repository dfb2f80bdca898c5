"""The CA of a running control plane: signs with what its store has now, and follows changes of the store.

A change that can't be used is reported, and what was read before is kept. A root that disappears from the files
of an outside CA stays trusted for a while (``issued``); a restart, or ``rotate finish`` for our own root, drops it
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import attrs
import structlog
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa

from mesh_pilot.identity.authority.certificates import CLOCK_SKEW, sign_leaf
from mesh_pilot.identity.authority.issued import Issued
from mesh_pilot.identity.authority.material import AuthorityError, Material, has_ca, pem, read_material
from mesh_pilot.identity.authority.revoked_identities import RevokedIdentities, read_identities
from mesh_pilot.identity.authority.rotation import RotationPhase, crl_of, initial, phase_of
from mesh_pilot.identity.authority.settings import DEFAULT_AUTHORITY, AuthoritySettings
from mesh_pilot.identity.authority.store import MaterialStore, StoreConflict, StoredFiles, StoreError
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import OWN_CA, Bundle, TrustStore
from mesh_pilot.identity.trust.validity import LOOK_SECONDS, ValidityPeriod, validity_of

log = structlog.get_logger(scope="security")

ROOT_NAME = "mesh-pilot"
"""The organization in the name of a root that is made here."""

ENDS_SOON = timedelta(days=30)
"""A CA certificate that ends within this time is reported."""

RETRY_SECONDS = 5.0
"""The wait after a store could not be read."""


@attrs.frozen
class AuthorityStatistics:
    """The state of the CA, for metrics and pages."""

    phase: RotationPhase
    root_not_after: datetime
    """The end of the root that signs."""
    chain_not_after: datetime
    """The first end of any certificate from the signing one to the root."""
    signed: int
    """Certificates signed since the start."""
    old_in_force_until: datetime | None
    """When the last certificate ends that another CA than the signing one has signed here, and that its owner keeps;
    None if none is in force."""
    problem: str
    """Why the latest change of the files is not in force; empty if it is."""


def root_for_this_run(now: datetime) -> StoredFiles:
    """A new root that is in no store."""
    return StoredFiles(initial(ROOT_NAME, now))


class Authority:
    """Signs certificates; a ``Signer``.

    Mutable state: the material in force, and what is wrong with the latest files; `_issued`, what was signed here, and
    the removed roots that are kept for it; who is told of changes.
    """

    def __init__(
        self,
        stored: StoredFiles,
        place: str,
        trust: TrustStore,
        *,
        now: Callable[[], datetime],
        settings: AuthoritySettings = DEFAULT_AUTHORITY,
    ) -> None:
        self.place = place
        self._trust = trust
        self._now = now
        self.settings = settings
        self._version = stored.version
        self.revoked = RevokedIdentities(now, read_identities(stored.files, place))
        self._material = read_material(stored.files, place, now())
        self._issued = Issued(now)
        self._listeners: list[Callable[[], None]] = []
        self._of_chain: list[Callable[[], None]] = []
        self._followers: list[Callable[[], None]] = []
        self._problem = ""
        if (previous := self._material.previous) is not None:
            # Who was signed by the old root before this start is not known.
            self._issued.note(previous.certificate, previous.certificate, now() + settings.workload_cert_ttl)
        self._publish()

    def __repr__(self) -> str:
        return f"<Authority {self.place} {phase_of(self._material).value}>"

    @classmethod
    async def open(
        cls,
        store: MaterialStore,
        trust: TrustStore,
        *,
        now: Callable[[], datetime],
        settings: AuthoritySettings = DEFAULT_AUTHORITY,
    ) -> Authority:
        """The CA of a store, whose root is made if the store is empty. Raises AuthorityError, StoreError."""
        stored = await store.read()
        if not has_ca(stored.files):
            try:
                await store.write({**stored.files, **initial(ROOT_NAME, now())}, stored.version)
            except StoreConflict:
                log.info("another replica has made the root", place=store.place)
            else:
                log.info("a root was made", place=store.place)
            stored = await store.read()
        return cls(stored, store.place, trust, now=now, settings=settings)

    @classmethod
    def ephemeral(
        cls,
        *,
        now: Callable[[], datetime],
        trust: TrustStore | None = None,
        settings: AuthoritySettings = DEFAULT_AUTHORITY,
        files: StoredFiles | None = None,
    ) -> Authority:
        """A CA with a new root, or with that of ``files``, that lives as long as this object."""
        stored = files or root_for_this_run(now())
        return cls(stored, "the root of this run", trust or TrustStore(), now=now, settings=settings)

    @property
    def material(self) -> Material:
        """The material in force."""
        return self._material

    def on_new_issuer(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever another CA certificate signs from now on."""
        self._listeners.append(listener)

    def on_new_chain(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever other certificates follow a leaf from now on; so also for another that signs."""
        self._of_chain.append(listener)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever other files are in force from now on."""
        self._followers.append(listener)

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        """Sign a certificate that lives no longer than it may, nor than its issuers. Raises SigningError.

        In a thread with an RSA key: that takes milliseconds, and the library lets others have the interpreter.
        With one of an elliptic curve it takes less than a thread's wake-up (decision 038).
        """
        await trio.lowlevel.checkpoint()
        material, start, end = self._permitted(request)
        if isinstance(material.issuer.key, rsa.RSAPrivateKey):
            leaf = await trio.to_thread.run_sync(sign_leaf, material.issuer, request, start, end)
        else:
            leaf = sign_leaf(material.issuer, request, start, end)
        return self._signed(material, leaf, end)

    def sign_now(self, request: SigningRequest) -> SignedCertificate:
        """As ``sign``, at once."""
        material, start, end = self._permitted(request)
        return self._signed(material, sign_leaf(material.issuer, request, start, end), end)

    def _permitted(self, request: SigningRequest) -> tuple[Material, datetime, datetime]:
        """The material that signs a certificate, and its beginning and end. The root is kept from now on."""
        material, now = self._material, self._now()
        lifetime = min(request.lifetime, self.settings.max_workload_cert_ttl)
        if lifetime <= timedelta(0):
            raise SigningError("a certificate needs a positive lifetime")
        start = min(max(now - CLOCK_SKEW, material.issuer.certificate.not_valid_before_utc), now)
        end = min(now + lifetime, material.not_after)
        if end <= now:
            raise SigningError(f"{self.place}: the CA ended at {material.not_after:%F %T} UTC; replace it")
        if (longest := request.longest) is not None and not self._was_cut(request.renews):
            # What begins two minutes early as well would otherwise grow by them with each renewal.
            end = min(end, (start if longest > CLOCK_SKEW else now) + longest)
        self._issued.note(material.issuer.certificate, material.root, end, is_followed=request.is_followed)
        return material, start, end

    def _signed(self, material: Material, leaf: x509.Certificate, end: datetime) -> SignedCertificate:
        self._issued.count += 1
        return SignedCertificate(leaf, pem(leaf) + material.chain, self._now(), end)

    def _was_cut(self, certificate: x509.Certificate | None) -> bool:
        """True if a certificate ends with a CA certificate that signed here, so that its lifetime was not its own."""
        known = (*self._issued.issuers, self._material.issuer.certificate, *self._material.path)
        return certificate is not None and certificate.not_valid_after_utc in {c.not_valid_after_utc for c in known}

    def statistics(self) -> AuthorityStatistics:
        material = self._material
        return AuthorityStatistics(
            phase=phase_of(material),
            root_not_after=material.root.not_valid_after_utc,
            chain_not_after=material.not_after,
            signed=self._issued.count,
            old_in_force_until=self._issued.last_end(material.issuer.certificate),
            problem=self._problem,
        )

    def validities(self) -> dict[str, ValidityPeriod]:
        """The lives of the certificates from the signing one to the root, by name for people."""
        certificates = (self._material.issuer.certificate, *self._material.path)
        return {f"{self._kind(each)} {_name(each)}": validity_of(each) for each in certificates}

    def _kind(self, certificate: x509.Certificate) -> str:
        return "the root" if certificate == self._material.root else "the intermediate"

    def warnings(self) -> tuple[str, ...]:
        """Lines for an operator: files that can't be used, certificates that end soon, roots that are kept."""
        lines = [f"the previous files are kept: {self._problem}"] if self._problem else []
        now = self._now()
        for certificate in (self._material.issuer.certificate, *self._material.path):
            if certificate.not_valid_after_utc - now < ENDS_SOON:
                kind, end = self._kind(certificate), certificate.not_valid_after_utc
                lines.append(f"{kind} {_name(certificate)} ends at {end:%F %T} UTC; replace it")
        if self._material.crls:
            lines += [
                f"proxies get no revocation lists: {_name(issuer)} has none in force, and they would refuse everybody"
                for issuer in self._without_crl()
            ]
        for root, end in self._issued.kept_roots.items():
            lines.append(f"the removed root {_name(root)} stays trusted until {end:%F %T} UTC, or a restart")
        return tuple(lines)

    async def run(self, store: MaterialStore) -> None:
        """Follow the store forever, and look at the clock: revocation lists end, too."""
        while True:
            try:
                with trio.move_on_after(min(self._issued.seconds_to_next_drop(), LOOK_SECONDS)) as waiting:
                    await store.changed(self._version)
                if waiting.cancelled_caught:
                    self._drop_kept()
                    self._publish()
                else:
                    self.take(await store.read())
            except StoreError as error:
                self._report(str(error))
                await trio.sleep(RETRY_SECONDS)

    def take(self, stored: StoredFiles) -> None:
        """Put files in force; if they can't be used, what is in force stays."""
        self._drop_kept()
        if stored.version == self._version:
            self._report("")
            self._publish()
            return
        try:
            revoked = read_identities(stored.files, self.place)
            material = read_material(stored.files, self.place, self._now())
        except AuthorityError as error:
            self._report(str(error))
            return
        self.revoked.take(revoked)
        self._version = stored.version
        self._report("")
        before, self._material = self._material, material
        self._issued.keep_roots(before, material)
        self._drop_kept()
        self._publish()
        log.info(
            "the CA has changed",
            place=self.place,
            phase=phase_of(material).value,
            signing=_name(material.issuer.certificate),
        )
        for follower in self._followers:
            follower()
        if material.chain != before.chain:
            for listener in self._of_chain:
                listener()
        if material.issuer.certificate != before.issuer.certificate:
            for listener in self._listeners:
                listener()

    def _drop_kept(self) -> None:
        ended = self._issued.drop_roots()
        for root in ended:
            log.info("a removed root is no longer trusted", root=_name(root))
        if ended:
            self._publish()

    def _without_crl(self) -> list[x509.Certificate]:
        """CA certificates of which leaves may be in force, and which have no revocation list in force."""
        now = self._now()
        crls = [crl for crl in self._material.crls if crl.next_update_utc is None or now < crl.next_update_utc]
        issuers = [
            *(pair.certificate for pair in self._material.key_pairs),
            *self._issued.in_force(),
        ]
        return [issuer for issuer in dict.fromkeys(issuers) if crl_of(crls, issuer) is None]

    def _publish(self) -> None:
        roots = (*self._material.roots, *self._issued.kept_roots)
        crls = self._material.crls_pem if not self._without_crl() else ()
        self._trust.put(OWN_CA, Bundle(tuple(map(pem, roots)), crls))

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning("the CA's files cannot be used; the previous ones are kept", reason=problem)
        self._problem = problem


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _name(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or fingerprint(certificate)[:16]
