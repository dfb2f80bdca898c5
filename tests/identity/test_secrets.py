"""Secrets of identities: signed by a signer that may be slow or fail, renewed in time, with the roots of the moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.engine.failures import Condition
from mesh_pilot.engine.snapshots import SnapshotStore
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.material import ROOTS
from mesh_pilot.identity.authority.rotation import initial
from mesh_pilot.identity.authority.store import StoredFiles
from mesh_pilot.identity.certificates.secrets import MAX_SIGNING, SIGNING_SECONDS, SWEEP_SECONDS, IdentitySet, Issuer
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.trust.bundles import OWN_CA, Bundle, TrustStore
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.spiffe import Identity

NOW = datetime(2024, 3, 1, tzinfo=UTC)
RECO = Identity("cluster.local", "shop", "reco")
FILES = StoredFiles(initial("cluster.local", NOW))
ROOT = FILES.files[ROOTS]


def now() -> datetime:
    return NOW + timedelta(seconds=trio.current_time())


class OddSigner:
    """The built-in signer, made slow or broken. State: what it is to do, and the requests that it was sent."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.error: Exception | None = None
        self.requests: list[SigningRequest] = []
        self.at_once = 0
        self.most_at_once = 0
        self._signer = Authority(FILES, "test", TrustStore(), now=now)

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await trio.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            return await self._signer.sign(request)
        finally:
            self.at_once -= 1


class Story:
    """An issuer at work, and the readers that it woke."""

    def __init__(self) -> None:
        self.signer = OddSigner()
        self.trust = TrustStore()
        self.trust.put(OWN_CA, Bundle((ROOT,)))
        self.issuer = Issuer(self.signer, self.trust, now=now)
        self.woken: list[str] = []

    def reader(self, name: str, identity: Identity = RECO) -> IdentitySet:
        held = self.issuer.secrets_of(identity)
        held.attach(name, lambda: self.woken.append(name))
        return held


@asynccontextmanager
async def story() -> AsyncIterator[Story]:
    made = Story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.issuer.run)
        yield made
        nursery.cancel_scope.cancel()


def certificate_of(held: IdentitySet) -> x509.Certificate:
    found = held.get(IDENTITY_SECRET)
    assert found is not None
    chain = secret_pb2.Secret.FromString(found.body).tls_certificate.certificate_chain.inline_bytes
    return x509.load_pem_x509_certificates(chain)[0]


async def test_a_secret_has_the_key_that_was_made_here_its_certificate_and_the_roots(autojump_clock: MockClock) -> None:
    async with story() as it:
        held = it.reader("one")
        assert held.snapshot().names == {TRUST_SECRET}
        assert held.awaited == {IDENTITY_SECRET}
        await wait_all_tasks_blocked()
        assert it.woken == ["one"]
        assert held.awaited == frozenset()
        own = secret_pb2.Secret.FromString(held.snapshot().entries[IDENTITY_SECRET].body).tls_certificate
        key = serialization.load_pem_private_key(own.private_key.inline_bytes, None)
        assert certificate_of(held).public_key() == key.public_key()
        root = secret_pb2.Secret.FromString(held.snapshot().entries[TRUST_SECRET].body).validation_context
        assert root.trusted_ca.inline_bytes == ROOT
        (request,) = it.signer.requests
        assert request.identity == RECO
        assert isinstance(request.csr, x509.CertificateSigningRequest)


async def test_proxies_of_one_identity_share_a_certificate_renewed_between_half_and_three_quarters_of_its_life(
    autojump_clock: MockClock,
) -> None:
    async with story() as it:
        held = it.reader("one")
        assert it.reader("two") is held
        await wait_all_tasks_blocked()
        first, before = held.get(IDENTITY_SECRET), held.snapshot()
        it.woken.clear()
        assert NOW + timedelta(hours=12) <= held.renew_at <= NOW + timedelta(hours=18)
        await trio.sleep((held.renew_at - now()).total_seconds() - 60)
        assert held.get(IDENTITY_SECRET) is first
        await trio.sleep(120)
        assert it.woken == ["one", "two"]
        assert SnapshotStore().diff(before, held.snapshot()) == {IDENTITY_SECRET}
        assert it.issuer.statistics().issued == 2


async def test_renewals_of_a_fleet_that_came_at_once_are_spread(autojump_clock: MockClock) -> None:
    async with story() as it:
        sets = [it.reader("one", Identity("cluster.local", "shop", f"app-{n}")) for n in range(50)]
        await trio.sleep(1)
        times = sorted(held.renew_at for held in sets)
        assert times[-1] - times[0] > timedelta(hours=3)


async def test_only_so_many_certificates_are_being_signed_at_the_same_time(autojump_clock: MockClock) -> None:
    async with story() as it:
        it.signer.seconds = 1
        sets = [it.reader("one", Identity("cluster.local", "shop", f"app-{n}")) for n in range(5 * MAX_SIGNING)]
        await trio.sleep(5.5)
        assert it.signer.most_at_once == MAX_SIGNING
        assert not any(held.awaited for held in sets)


async def test_after_a_failed_renewal_the_last_certificate_stays_and_attempts_go_on(autojump_clock: MockClock) -> None:
    async with story() as it:
        held = it.reader("one")
        await wait_all_tasks_blocked()
        first = held.get(IDENTITY_SECRET)
        it.signer.error, it.signer.requests = SigningError("the signer is away"), []
        await trio.sleep((held.renew_at - now()).total_seconds() + 600)
        ((owner, failure),) = it.issuer.failures.standing()
        assert (owner, failure.state, failure.error) == (
            held,
            Condition.STALE,
            "the signer is away",
        )
        assert held.get(IDENTITY_SECRET) is first
        assert 10 <= len(it.signer.requests) <= 30
        it.signer.error = None
        await trio.sleep(61)
        assert list(it.issuer.failures.standing()) == []
        assert held.get(IDENTITY_SECRET) is not first


async def test_an_outage_of_the_signer_is_one_line_and_no_internal_error(autojump_clock: MockClock) -> None:
    with capture_logs() as logs:
        async with story() as it:
            it.signer.error = SigningError("the signer is away")
            for n in range(5):
                it.reader("one", Identity("cluster.local", "shop", f"app-{n}"))
            await trio.sleep(600)
    (line,) = (entry for entry in logs if "outage" in entry["event"])
    assert (line["log_level"], line["reason"]) == ("warning", "the signer is away")
    assert [entry for entry in logs if entry["log_level"] == "error" or "exc_info" in entry] == []


async def test_an_identity_whose_first_certificate_fails_waits_for_it(autojump_clock: MockClock) -> None:
    async with story() as it:
        it.signer.error = OSError("no entropy")
        held = it.reader("one")
        await wait_all_tasks_blocked()
        ((_, failure),) = it.issuer.failures.standing()
        assert failure.state is Condition.MISSING
        assert held.awaited == {IDENTITY_SECRET}
        assert it.issuer.statistics().missing == 1
        it.signer.error = None
        await trio.sleep(2)
        assert held.awaited == frozenset()


async def test_a_signer_that_does_not_answer_is_asked_again(autojump_clock: MockClock) -> None:
    async with story() as it:
        it.signer.seconds = 1000
        held = it.reader("one")
        await trio.sleep(SIGNING_SECONDS + 0.1)
        ((_, failure),) = it.issuer.failures.standing()
        assert "has not answered within 30 s" in failure.error
        it.signer.seconds = 0
        await trio.sleep(2)
        assert held.awaited == frozenset()


async def test_new_roots_and_revocation_lists_reach_all_sets_at_once_as_one_resource(autojump_clock: MockClock) -> None:
    async with story() as it:
        one, two = it.reader("one"), it.reader("two", Identity("cluster.local", "shop", "other"))
        await wait_all_tasks_blocked()
        it.woken.clear()
        second = initial("second", NOW)[ROOTS]
        it.trust.put(OWN_CA, Bundle((ROOT, second), (b"a list",)))
        assert it.woken == ["one", "two"]
        shown = one.get(TRUST_SECRET)
        assert shown is not None
        assert shown is two.get(TRUST_SECRET)
        context = secret_pb2.Secret.FromString(shown.body).validation_context
        assert context.trusted_ca.inline_bytes == ROOT + second
        assert context.crl.inline_bytes == b"a list\n"


async def test_without_any_root_the_secret_is_awaited(autojump_clock: MockClock) -> None:
    async with story() as it:
        it.trust.put(OWN_CA, Bundle())
        held = it.reader("one")
        await wait_all_tasks_blocked()
        assert held.awaited == {TRUST_SECRET}


async def test_all_certificates_can_be_replaced_within_some_time(autojump_clock: MockClock) -> None:
    async with story() as it:
        sets = [it.reader("one", Identity("cluster.local", "shop", f"app-{n}")) for n in range(20)]
        await trio.sleep(1)
        before = [held.get(IDENTITY_SECRET) for held in sets]
        it.issuer.renew_all(timedelta(minutes=5))
        await trio.sleep(301)
        assert all(held.get(IDENTITY_SECRET) is not first for held, first in zip(sets, before, strict=True))
        assert it.issuer.statistics().issued == 40


async def test_a_certificate_that_was_being_signed_when_all_were_to_be_replaced_is_replaced_too(
    autojump_clock: MockClock,
) -> None:
    async with story() as it:
        it.signer.seconds = 5
        held = it.reader("one")
        await trio.sleep(1)
        it.issuer.renew_all()
        await trio.sleep(5)
        first = held.get(IDENTITY_SECRET)
        assert first is not None
        await trio.sleep(20)
        assert held.get(IDENTITY_SECRET) is not first


async def test_an_identity_that_nobody_holds_is_forgotten_unless_its_proxy_comes_back(
    autojump_clock: MockClock,
) -> None:
    async with story() as it:
        held = it.reader("one")
        held.detach("one")
        await trio.sleep(SWEEP_SECONDS + 1)
        assert it.reader("one") is held
        await trio.sleep(10 * SWEEP_SECONDS)
        assert it.issuer.secrets_of(RECO) is held
        held.detach("one")
        await trio.sleep(2 * SWEEP_SECONDS)
        assert it.issuer.statistics().identities == 0
        await trio.sleep(24 * 3600)
        assert len(it.signer.requests) == 1


@pytest.mark.parametrize("lifetime", [10, 3600])
async def test_certificates_never_end_while_somebody_reads_them(autojump_clock: MockClock, lifetime: int) -> None:
    async with story() as it:
        it.issuer = Issuer(it.signer, it.trust, now=now, lifetime=timedelta(seconds=lifetime))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.issuer.run)
            held = it.reader("one")
            await wait_all_tasks_blocked()
            for _ in range(100):
                await trio.sleep(lifetime / 10)
                assert certificate_of(held).not_valid_after_utc > now()
            nursery.cancel_scope.cancel()
