"""Credentials that are ordered by ACME: what is wanted, when an order is due, what is kept, served and told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.identity.authority.material import key_pem, pem
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError
from mesh_pilot.model.events import ChallengeAnswer, Event, Secret
from mesh_pilot.sources.acme import source
from mesh_pilot.sources.acme.issued import IssuedCertificate, IssuerError, Keep, Show
from mesh_pilot.sources.acme.protocol import LONGEST_WAIT, wait_of
from mesh_pilot.sources.acme.source import NOWHERE, AcmeSource
from mesh_pilot.sources.acme.stored import Account, LastOrder, StoredCredential, renewal_of, retry_after
from mesh_pilot.sources.acme.wanted import NO_HOSTS, AcmeServer, CredentialName, WantedCertificate, wanted_by
from mesh_pilot.world import World
from tests.support.worlds import world_of
from tests.support.x509_parts import named

NAME = ("shop", "edge")
PATH = "shop/edge"
START = datetime(2026, 11, 30, tzinfo=UTC)
LIFE = timedelta(days=90)
ISSUER = AcmeServer("https://issuer.test/dir", ("mailto:ops@example.com",), "/etc/issuer.pem")
WANTED = WantedCertificate(ISSUER, ("a.test", "b.test"))
ANSWER = ChallengeAnswer("a.test", "token", "token.print")


@pytest.fixture(autouse=True)
def _looks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests go through years, and nobody sets their clock."""
    monkeypatch.setattr(source, "LOOK_SECONDS", 1e9)


def issued(hosts: Sequence[str], begins: datetime, life: timedelta = LIFE) -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(named("leaf"))
        .issuer_name(named("issuer"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + life)
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    return IssuedCertificate(pem(leaf), key_pem(key))


class MemoryStore:
    """A store of one name, which may be away."""

    def __init__(self) -> None:
        self.files: Mapping[str, bytes] = {}
        self.trouble = ""
        self.is_read_only = False
        self._changed = trio.Event()

    @property
    def place(self) -> str:
        return "memory"

    async def read(self) -> StoredFiles:
        await trio.lowlevel.checkpoint()
        if self.trouble:
            raise StoreError(self.trouble)
        return StoredFiles(self.files)

    async def write(self, files: Mapping[str, bytes], expected: str) -> None:
        if self.trouble or self.is_read_only:
            raise StoreError(self.trouble or "read-only")
        if (await self.read()).version != expected:
            raise StoreConflict("changed")
        self.put(files)

    def put(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self, version: str) -> None:
        while StoredFiles(self.files).version == version:
            await self._changed.wait()


@attrs.define(eq=False, slots=False)
class Bench:
    """A source with an issuer that a test scripts; time is Trio's, from START."""

    world: World = attrs.field(factory=World)
    stores: dict[str, MemoryStore] = attrs.field(factory=dict)
    wanted: dict[CredentialName, WantedCertificate] = attrs.field(factory=lambda: {NAME: WANTED})
    is_known: bool = True
    orders: list[tuple[datetime, tuple[str, ...]]] = attrs.field(factory=list)
    fail: list[Exception] = attrs.field(factory=list)
    """What the next orders raise."""
    hang: trio.Event | None = None
    """What orders wait for while their challenges are shown."""
    source: AcmeSource = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.source = self.replica()
        self.world.expect(self.source.name)

    def replica(self) -> AcmeSource:
        return AcmeSource(self, self.store, obtain=self.obtain, now=self.now)

    def store(self, name: str) -> MemoryStore:
        return self.stores.setdefault(name, MemoryStore())

    def now(self) -> datetime:
        return START + timedelta(seconds=trio.current_time())

    def wanted_certificates(self) -> Mapping[CredentialName, WantedCertificate]:
        return self.wanted

    def is_complete(self) -> bool:
        return self.is_known

    async def obtain(
        self, issuer: AcmeServer, account: Account | None, hosts: Sequence[str], keep: Keep, show: Show
    ) -> IssuedCertificate:
        self.orders.append((self.now(), tuple(hosts)))
        if account is None:
            await keep(Account(b"key of the account", issuer.directory, "https://issuer.test/1", issuer.contacts))
        await show((ANSWER,))
        if self.hang is not None:
            await self.hang.wait()
        if self.fail:
            raise self.fail.pop(0)
        return issued(hosts, self.now())

    async def send(self, event: Event) -> None:
        self.world.apply([event])

    @property
    def secret(self) -> Secret | None:
        return self.world.secrets.peek(NAME)

    @property
    def told(self) -> list[str]:
        return [str(problem) for rejected in self.world.rejections() for problem in rejected.problems]

    @property
    def kept(self) -> StoredCredential:
        return StoredCredential.of(StoredFiles(self.store(PATH).files))

    def want(self, wanted: WantedCertificate | None) -> None:
        self.wanted = {NAME: wanted} if wanted is not None else {}
        self.source.wake()

    def days(self, number: int = -1) -> float:
        """When an order was made."""
        return (self.orders[number][0] - START) / timedelta(days=1)


@asynccontextmanager
async def running(bench: Bench, *, leads: bool = True) -> AsyncIterator[Bench]:
    # The time of Trio's mock clock begins at 0, so at START.
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.source.run, bench)
        if leads:
            nursery.start_soon(bench.source.lead, lambda: None)
        await trio.sleep(5)
        yield bench
        nursery.cancel_scope.cancel()


# -- what is wanted

GATEWAYS = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - port: {number: 80, name: http, protocol: HTTP}
    hosts: ["*"]
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: ["./A.test", "*.wild.test"]
    tls: {mode: SIMPLE, credentialName: edge}
  - port: {number: 8443, name: more, protocol: HTTPS}
    hosts: [b.test]
    tls: {mode: SIMPLE, credentialName: shop/edge}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: other, namespace: blog}
spec:
  selector: {istio: edge}
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [bank.test]
    tls: {mode: SIMPLE, credentialName: shop/edge}
"""


def asked(credentials: str, gateways: str = GATEWAYS, elsewhere: str = "") -> dict[CredentialName, WantedCertificate]:
    mesh = f"""
acme:
  directory: https://issuer.test/dir
  contacts: ["mailto:ops@example.com"]
  termsOfServiceAgreed: true
  caCertificates: /etc/issuer.pem
  credentials: {credentials}
"""
    world = world_of(gateways, mesh=mesh)
    return wanted_by(world.mesh.peek(()), world.configs_of.peek("Gateway"), lambda name: elsewhere)


def test_hosts_are_those_of_servers_that_name_the_credential_in_gateways_of_its_namespace() -> None:
    assert asked("[{name: shop/edge}]") == {NAME: WANTED}


def test_hosts_that_are_listed_take_the_place_of_those_of_gateways() -> None:
    assert asked("[{name: shop/edge, hosts: [C.test]}]")[NAME].hosts == ("c.test",)


def test_a_name_without_a_namespace_is_of_the_root_namespace() -> None:
    assert asked("[{name: edge}]") == {("istio-system", "edge"): WantedCertificate(ISSUER, (), NO_HOSTS)}


@pytest.mark.parametrize(
    ("gateways", "elsewhere", "reason"),
    [
        (GATEWAYS, "files", "the source files has a credential of this name"),
        (
            GATEWAYS.replace("protocol: HTTP}", "protocol: TCP}"),
            "",
            "no plaintext HTTP server of a Gateway has the host",
        ),
        (GATEWAYS.replace('"./A.test", ', "").replace("[b.test]", '["*.b.test"]'), "", "wildcards, which http-01"),
    ],
)
def test_what_cannot_be_ordered_says_why(gateways: str, elsewhere: str, reason: str) -> None:
    assert reason in asked("[{name: shop/edge}]", gateways, elsewhere)[NAME].problem


# -- when an order is due


def test_a_certificate_is_renewed_before_two_thirds_of_its_life_and_not_all_at_once() -> None:
    times = set()
    for _ in range(8):
        leaf = StoredCredential(issued(["a.test"], START).chain).leaf
        assert leaf is not None
        assert 0.6 <= (renewal_of(leaf) - START) / LIFE <= 2 / 3
        times.add(renewal_of(leaf))
    assert len(times) > 1


def test_other_hosts_or_another_issuer_are_due_at_once_and_an_issuer_may_add_hosts() -> None:
    more = issued([*WANTED.hosts, "www.a.test"], START)
    kept = StoredCredential(more.chain, more.private_key, LastOrder(ISSUER.directory, WANTED.hosts))
    at = kept.due_at(WANTED)
    assert at is not None
    assert at > START + LIFE / 2
    assert kept.due_at(attrs.evolve(WANTED, hosts=("a.test", "c.test"))) is None
    assert kept.due_at(attrs.evolve(WANTED, issuer=AcmeServer("https://other.test/dir"))) is None


def test_waits_grow_to_six_hours_and_what_the_issuer_asks_for_counts_if_it_is_longer() -> None:
    waits = [retry_after(failures, None, False, 0.5) / timedelta(minutes=1) for failures in range(1, 8)]
    assert waits == [1, 4, 16, 64, 256, 360, 360]
    assert retry_after(1, timedelta(hours=9), False, 0.5) == timedelta(hours=9)
    assert retry_after(1, None, True, 0.5) == timedelta(hours=1)
    assert retry_after(400, None, False, 0.5) == timedelta(hours=6)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert wait_of("120", START) == timedelta(minutes=2)
    assert wait_of("Mon, 30 Nov 2026 00:01:00 GMT", START) == timedelta(minutes=1)
    assert wait_of("Mon, 30 Nov 2020 00:01:00 GMT", START) == timedelta(0)
    assert [wait_of(text, START) for text in ("", "soon", "-5")] == [None] * 3
    longest = ("9" * 30, "99999999999", "Fri, 30 Nov 9999 00:01:00 GMT")
    assert [wait_of(text, START) for text in longest] == [LONGEST_WAIT] * 3


# -- orders


async def test_an_order_shows_its_challenge_and_serves_what_is_issued(autojump_clock: MockClock) -> None:
    bench = Bench(hang=trio.Event())
    async with running(bench):
        assert bench.world.challenges.peek(()) == (ANSWER,)
        assert bench.secret is None
        assert bench.hang is not None
        bench.hang.set()
        await wait_all_tasks_blocked()
        assert bench.world.challenges.peek(()) == ()
        assert bench.secret is not None
        assert bench.secret.private_key == bench.kept.private_key != b""
        assert bench.told == []
        assert len(bench.orders) == 1


async def test_it_is_renewed_in_time_for_years(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running(bench):
        first = bench.secret
        await trio.sleep(timedelta(days=365).total_seconds())
        assert bench.secret != first
        assert 6 <= len(bench.orders) <= 8
        assert 54 <= bench.days(1) <= 60


async def test_a_failure_is_told_keeps_what_there_is_and_is_tried_again(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running(bench):
        first = bench.secret
        bench.fail = [IssuerError("a.test is not proven: connection refused")] * 4
        for _ in range(60 * 24 * 60):
            await trio.sleep(60)
            if len(bench.fail) < 4:
                break
        assert 54 <= bench.days() <= 60
        assert bench.secret == first
        (told,) = bench.told
        assert "https://issuer.test/dir: a.test is not proven: connection refused; the next order is made after" in told
        assert "until then the one that it has is served" in told
        assert [each.key for each in bench.world.rejections()] == [("credential", *NAME)]
        assert bench.world.challenges.peek(()) == ()
        await trio.sleep(timedelta(hours=3).total_seconds())
        assert bench.told == []
        assert bench.secret != first
        assert len(bench.orders) == 6


async def test_a_limit_of_the_issuer_is_kept_to_over_a_restart(autojump_clock: MockClock) -> None:
    bench = Bench(fail=[IssuerError("it says rateLimited: too many", "rateLimited", timedelta(days=2))])
    async with running(bench):
        assert len(bench.orders) == 1
        bench.source = bench.replica()
    async with running(bench):
        await trio.sleep(timedelta(days=1.9).total_seconds())
        assert len(bench.orders) == 1
        assert "rateLimited" in bench.told[0]
        await trio.sleep(timedelta(days=0.2).total_seconds())
        assert len(bench.orders) == 2
        assert bench.secret is not None


async def test_new_hosts_are_ordered_after_a_while_of_quiet_and_do_not_wait_for_a_failure(
    autojump_clock: MockClock,
) -> None:
    bench = Bench(fail=[IssuerError("no", "rateLimited", timedelta(days=2))])
    async with running(bench):
        for number in range(5):
            bench.want(attrs.evolve(WANTED, hosts=("a.test", f"x{number}.test")))
            await trio.sleep(1)
        await trio.sleep(5)
        assert [hosts for _, hosts in bench.orders] == [WANTED.hosts, ("a.test", "x4.test")]


async def test_what_is_issued_for_other_hosts_counts_as_a_failure(autojump_clock: MockClock) -> None:
    bench = Bench()

    async def other(*_: Any) -> IssuedCertificate:
        bench.orders.append((bench.now(), ()))
        return issued(["evil.test"], bench.now())

    bench.source = AcmeSource(bench, bench.store, obtain=other, now=bench.now)
    async with running(bench):
        await trio.sleep(3600)
        assert bench.secret is None
        assert "what it issued is for evil.test only" in bench.told[0]
        assert len(bench.orders) <= 4


async def test_a_certificate_that_a_wrong_clock_finds_expired_is_not_ordered_again_and_again(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()

    async def old(*_: Any) -> IssuedCertificate:
        bench.orders.append((bench.now(), ()))
        return issued(WANTED.hosts, START - timedelta(days=900))

    bench.source = AcmeSource(bench, bench.store, obtain=old, now=bench.now)
    async with running(bench):
        await trio.sleep(timedelta(hours=10).total_seconds())
        assert bench.secret is not None
        assert len(bench.orders) <= 11


async def test_an_internal_error_counts_as_a_failed_order_and_ends_the_task(autojump_clock: MockClock) -> None:
    bench = Bench(fail=[ZeroDivisionError("oh")])
    with pytest.RaisesGroup(ZeroDivisionError):
        async with running(bench):
            await trio.sleep(60)
    assert "internal error: ZeroDivisionError: oh" in bench.kept.order.reason
    assert bench.kept.order.retry_at is not None
    assert bench.kept.order.answers == ()


# -- replicas, and the store


async def test_a_follower_serves_what_the_leader_writes_and_orders_nothing(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running(bench, leads=False):
        assert bench.secret is None
        found = issued(WANTED.hosts, bench.now())
        order = LastOrder(ISSUER.directory, WANTED.hosts, (ANSWER,))
        bench.store(PATH).put(StoredCredential(order=order).files)
        await wait_all_tasks_blocked()
        assert bench.world.challenges.peek(()) == (ANSWER,)
        bench.store(PATH).put(StoredCredential(found.chain, found.private_key, attrs.evolve(order, answers=())).files)
        await wait_all_tasks_blocked()
        assert bench.secret is not None
        assert bench.world.challenges.peek(()) == ()
        assert bench.orders == []


async def test_a_new_leader_takes_over_where_the_last_one_was_cut_off(autojump_clock: MockClock) -> None:
    """The answers of a cancelled order are taken back; what was ordered meanwhile is not ordered again."""
    bench = Bench(hang=trio.Event())
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.source.run, bench)
        with trio.move_on_after(10):
            await bench.source.lead(lambda: None)
        assert bench.kept.order.answers == ()
        found = issued(WANTED.hosts, bench.now())
        order = LastOrder(ISSUER.directory, WANTED.hosts)
        bench.store(PATH).put(StoredCredential(found.chain, found.private_key, order).files)
        with trio.move_on_after(3600):
            await bench.source.lead(lambda: None)
        assert len(bench.orders) == 1
        nursery.cancel_scope.cancel()


async def test_of_two_replicas_that_take_themselves_for_the_leader_one_orders(autojump_clock: MockClock) -> None:
    one = Bench()
    two = Bench(stores=one.stores, orders=one.orders)
    async with trio.open_nursery() as nursery:
        for each in (one, two):
            await nursery.start(each.source.run, each)
        for each in (one, two):
            nursery.start_soon(each.source.lead, lambda: None)
        await trio.sleep(3600)
        assert len(one.orders) == 1
        assert one.secret == two.secret is not None
        nursery.cancel_scope.cancel()


async def test_without_a_store_nothing_is_ordered_and_it_is_told(autojump_clock: MockClock) -> None:
    bench = Bench()
    bench.source = AcmeSource(bench, None, obtain=bench.obtain, now=bench.now)
    async with running(bench):
        assert bench.orders == []
        assert NOWHERE in bench.told[0]


async def test_while_the_store_is_away_nothing_is_ordered_and_nobody_waits_for_it(autojump_clock: MockClock) -> None:
    bench = Bench()
    bench.store(PATH).trouble = "Consul does not answer"
    async with running(bench):
        await trio.sleep(600)
        assert bench.orders == []
        assert "Consul does not answer" in bench.told[0]
        assert not bench.world.unsynced()
        bench.store(PATH).trouble = ""
        await trio.sleep(120)
        assert bench.secret is not None
        assert bench.told == []


async def test_a_store_that_takes_nothing_ends_an_order_before_it_counts(autojump_clock: MockClock) -> None:
    bench = Bench()
    bench.store(PATH).is_read_only = True
    finished: list[str] = []

    async def obtain(issuer: AcmeServer, account: Any, hosts: Any, keep: Keep, show: Show) -> IssuedCertificate:
        await show((ANSWER,))
        finished.append("asked the issuer to look")
        return issued(hosts, bench.now())

    bench.source = AcmeSource(bench, bench.store, obtain=obtain, now=bench.now)
    async with running(bench):
        await trio.sleep(600)
        assert finished == []
        assert "read-only" in bench.told[0]


async def test_what_the_store_does_not_take_is_served_and_written_later(autojump_clock: MockClock) -> None:
    bench = Bench(hang=trio.Event())
    async with running(bench):
        bench.store(PATH).trouble = "Consul does not answer"
        assert bench.hang is not None
        bench.hang.set()
        await trio.sleep(1)
        assert bench.secret is not None
        assert bench.kept.certificate == b""
        bench.store(PATH).trouble = ""
        await trio.sleep(120)
        assert bench.kept.private_key == bench.secret.private_key
        assert len(bench.orders) == 1


async def test_files_that_were_garbled_leave_what_is_served(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running(bench, leads=False):
        found = issued(WANTED.hosts, bench.now())
        good = StoredCredential(found.chain, found.private_key, LastOrder(ISSUER.directory, WANTED.hosts))
        bench.store(PATH).put(good.files)
        await wait_all_tasks_blocked()
        first = bench.secret
        bench.store(PATH).put({**good.files, "tls.crt": b"garbage", "order.json": b"{"})
        await wait_all_tasks_blocked()
        assert bench.secret == first is not None
        assert "what is kept of it cannot be used: tls.crt" in bench.told[0]


async def test_a_credential_that_is_wanted_no_more_goes_and_one_that_cannot_be_ordered_stays(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    async with running(bench):
        bench.want(attrs.evolve(WANTED, problem="no plaintext server"))
        await wait_all_tasks_blocked()
        assert bench.secret is not None
        assert "no plaintext server" in bench.told[0]
        bench.want(None)
        await wait_all_tasks_blocked()
        assert bench.secret is None
        assert bench.told == []


async def test_what_is_issued_for_a_credential_that_is_wanted_no_more_is_not_served(autojump_clock: MockClock) -> None:
    bench = Bench(hang=trio.Event())
    async with running(bench):
        bench.want(None)
        await wait_all_tasks_blocked()
        assert bench.world.challenges.peek(()) == ()
        assert bench.hang is not None
        bench.hang.set()
        await wait_all_tasks_blocked()
        assert bench.secret is None
        assert bench.kept.certificate != b""


async def test_until_all_sources_have_told_nothing_is_missing_and_nothing_is_ordered(autojump_clock: MockClock) -> None:
    bench = Bench(is_known=False, wanted={NAME: attrs.evolve(WANTED, hosts=(), problem=NO_HOSTS)})
    async with running(bench):
        await trio.sleep(60)
        assert bench.told == []
        assert bench.orders == []
        assert bench.world.unsynced() == ("acme",)
        bench.is_known = True
        bench.want(WANTED)
        await trio.sleep(5)
        assert bench.secret is not None
        assert not bench.world.unsynced()


async def test_a_source_that_is_started_again_takes_nothing_away(autojump_clock: MockClock) -> None:
    bench = Bench()
    async with running(bench):
        first = bench.secret
    gone: list[Event] = []

    async def send(event: Event) -> None:
        bench.world.apply([event])
        if bench.secret is None:
            gone.append(event)

    bench.send = send  # type: ignore[method-assign]
    async with running(bench):
        assert bench.secret == first is not None
        assert gone == []
        assert len(bench.orders) == 1
