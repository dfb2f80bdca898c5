"""Clocks that are set, forwards and back: what has not begun is renewed or said, as what ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.material import pem
from mesh_pilot.identity.certificates.secrets import Issuer
from mesh_pilot.identity.certificates.server_certificate import ServerCertificate
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.validity import LOOK_SECONDS, ValidityPeriod, ValidityWatch, leaf_validity, validity_of
from mesh_pilot.model.resource import IDENTITY_SECRET
from mesh_pilot.model.spiffe import Identity
from tests.support.envoy import eventually

WEB = Identity("cluster.local", "shop", "web")
JUMPS = [
    timedelta(days=2),
    timedelta(minutes=10),
    timedelta(minutes=3),
    timedelta(seconds=30),
    timedelta(seconds=-30),
    timedelta(minutes=-10),
    timedelta(days=-2),
]
LIFETIMES = [timedelta(minutes=2), timedelta(hours=1), timedelta(hours=24)]


@attrs.define
class Clock:
    """A wall clock that follows Trio's, until it is set."""

    base: datetime = datetime(2026, 11, 28, tzinfo=UTC)
    ahead: timedelta = timedelta(0)

    def __call__(self) -> datetime:
        return self.base + timedelta(seconds=trio.current_time()) + self.ahead


class OldRoot:
    """A signer whose root has begun long before every jump."""

    def __init__(self, clock: Clock) -> None:
        is_made = False
        self._authority = Authority.ephemeral(now=lambda: clock() if is_made else clock() - timedelta(days=30))
        is_made = True
        self.sign = self._authority.sign


@pytest.mark.parametrize("lifetime", LIFETIMES, ids=str)
@pytest.mark.parametrize("first", JUMPS, ids=str)
@pytest.mark.parametrize("second", JUMPS[::3], ids=str)
async def test_two_looks_after_any_jump_the_server_shows_a_certificate_in_force(
    first: timedelta, second: timedelta, lifetime: timedelta, autojump_clock: trio.testing.MockClock
) -> None:
    clock = Clock()
    certificate = ServerCertificate(OldRoot(clock), lambda: ("localhost",), lifetime, clock)
    await certificate.renew()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.run)
        for jump in (first, second, -first):
            clock.ahead += jump
            await trio.sleep(2 * LOOK_SECONDS)
            assert certificate.validity.covers(clock())
            assert leaf_validity(certificate.shown().certificate) == certificate.validity
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lifetime", LIFETIMES, ids=str)
@pytest.mark.parametrize("jump", JUMPS, ids=str)
async def test_two_looks_after_any_jump_proxies_have_a_certificate_in_force(
    jump: timedelta, lifetime: timedelta, autojump_clock: trio.testing.MockClock
) -> None:
    clock = Clock()
    issuer = Issuer(OldRoot(clock), TrustStore(), now=clock, lifetime=lifetime)
    secrets = issuer.secrets_of(WEB)
    secrets.attach("a proxy", lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(issuer.run)
        await trio.sleep(1)
        assert secrets.get(IDENTITY_SECRET) is not None
        for each in (jump, -jump):
            clock.ahead += each
            await trio.sleep(2 * LOOK_SECONDS)
            assert secrets.validity is not None
            assert secrets.validity.covers(clock())
        nursery.cancel_scope.cancel()


async def test_an_attempt_that_a_clock_put_off_by_days_is_made_within_two_looks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Clock(ahead=timedelta(days=2))
    issuer = Issuer(OldRoot(clock), TrustStore(), now=clock)
    secrets = issuer.secrets_of(WEB)
    secrets.attach("a proxy", lambda: None)
    clock.ahead = timedelta(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(issuer.run)
        await trio.sleep(2 * LOOK_SECONDS)
        assert secrets.get(IDENTITY_SECRET) is not None
        nursery.cancel_scope.cancel()


async def test_a_signer_whose_clock_is_ahead_is_asked_again_each_minute(autojump_clock: trio.testing.MockClock) -> None:
    clock = Clock()
    ahead = Clock(ahead=timedelta(minutes=10))
    signer = OldRoot(ahead)
    certificate = ServerCertificate(signer, lambda: ("localhost",), timedelta(hours=24), clock)
    await certificate.renew()
    asked = signer._authority.statistics().signed
    async with trio.open_nursery() as nursery:
        nursery.start_soon(certificate.run)
        await trio.sleep(5 * LOOK_SECONDS + 1)
        assert 5 <= signer._authority.statistics().signed - asked <= 7
        ahead.ahead = timedelta(0)
        await trio.sleep(LOOK_SECONDS)
        assert certificate.validity.covers(clock())
        nursery.cancel_scope.cancel()


def test_a_root_that_has_not_begun_is_a_fault_until_it_begins() -> None:
    clock = Clock(ahead=timedelta(days=2))
    made = datetime(2026, 11, 30, tzinfo=UTC)
    authority = Authority.ephemeral(now=lambda: made)
    ((name, validity),) = authority.validities().items()
    assert name.startswith("the root ")
    assert validity == validity_of(authority.material.root)
    fault = validity.fault(clock.base)
    assert fault == "has not begun: it begins at 2026-11-29 23:58:00 UTC, in 48.0 hours, and it is 2026-11-28 00:00:00"
    assert validity.fault(made) == ""
    assert "ended at" in validity.fault(made + timedelta(days=4000))


async def test_what_is_not_in_force_is_said_once_and_again_when_it_is(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Clock()
    begins = clock() + timedelta(minutes=3)
    life = ValidityPeriod(begins, begins + timedelta(minutes=5))
    watch = ValidityWatch(lambda: {"it": life}, clock)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await trio.sleep(150)
            assert list(watch.faults()) == ["it"]
            await trio.sleep(100)
            assert watch.faults() == {}
            await trio.sleep(400)
            assert watch.faults()["it"].startswith("ended at")
            nursery.cancel_scope.cancel()
    assert [(line["event"], line["what"]) for line in logs] == [
        ("not in force", "it"),
        ("in force again", "it"),
        ("not in force", "it"),
    ]


async def test_certificates_in_files_are_looked_at_and_a_file_that_is_none_hides_no_other(tmp_path: Path) -> None:
    later = Clock(ahead=timedelta(days=2))
    root = authority_certificate(later)
    for name, content in (("good", root), ("bad", b"no certificate")):
        (tmp_path / name).write_bytes(content)
    files = {name: tmp_path / name for name in ("bad", "gone", "good")}
    watch = ValidityWatch(dict, lambda: later.base, files=files)  # Trio's clock begins anywhere
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await eventually(lambda: bool(watch.faults()), what="the files are read, in a thread")
        assert list(watch.faults()) == ["good"]
        nursery.cancel_scope.cancel()


def authority_certificate(clock: Clock) -> bytes:
    made = clock.base + clock.ahead
    return pem(Authority.ephemeral(now=lambda: made).material.root)
