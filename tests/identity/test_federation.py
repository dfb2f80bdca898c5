"""Foreign roots of the MeshConfig: in PEM or fetched, kept while they are not available, gone when not named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import structlog
import trio
import trio.testing

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshConfigCertificateData
from mesh_pilot.identity.trust.bundles import Bundle, TrustStore
from mesh_pilot.identity.trust.federation import REFRESH_SECONDS, Federation, fetching, foreign_roots
from mesh_pilot.identity.trust.spiffe_bundles import BundleDocument
from mesh_pilot.model.events import Event, Synced
from mesh_pilot.net.fetching import FetchError
from tests.support.roots import make_root

ONE, TWO, THREE = (make_root(name).pem for name in ("one", "two", "three"))
URL = "https://east.test/bundle"


def mesh(*data: MeshConfigCertificateData) -> MeshConfig:
    return MeshConfig(trust_domain="west.test", ca_certificates=[*data])


def inline(*roots: bytes, domains: tuple[str, ...] = ()) -> MeshConfigCertificateData:
    return MeshConfigCertificateData(pem=b"".join(roots).decode(), trust_domains=[*domains])


def at_url(*domains: str, url: str = URL) -> MeshConfigCertificateData:
    return MeshConfigCertificateData(spiffe_bundle_url=url, trust_domains=[*domains])


def test_roots_without_a_trust_domain_are_the_meshs_own() -> None:
    found = foreign_roots(mesh(inline(ONE), inline(TWO, domains=("west.test", "east.test")), at_url(url="a.test/b")))
    assert found.inline == {"": (ONE, TWO), "east.test": (TWO,)}
    assert found.urls == {"https://a.test/b": ("",)}


@attrs.define
class Answers:
    """The servers of bundles."""

    answer: BundleDocument | FetchError = attrs.field(factory=lambda: BundleDocument((ONE,)))
    asked: list[str] = attrs.field(factory=list)

    async def fetch(self, url: str) -> BundleDocument:
        await trio.lowlevel.checkpoint()
        self.asked.append(url)
        if isinstance(self.answer, FetchError):
            raise self.answer
        return self.answer


@attrs.define
class Running:
    answers: Answers
    mesh: MeshConfig
    trust: TrustStore = attrs.field(factory=TrustStore)
    others_synced: bool = True
    events: list[Event] = attrs.field(factory=list)
    source: Federation = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.source = Federation(self.trust, lambda: self.mesh, lambda: self.others_synced, fetch=self.answers.fetch)

    async def send(self, value: Event, /) -> None:
        await trio.lowlevel.checkpoint()
        self.events.append(value)

    async def change(self, *data: MeshConfigCertificateData) -> None:
        self.mesh = mesh(*data)
        self.source.wake()
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def running(answers: Answers, *data: MeshConfigCertificateData) -> AsyncIterator[Running]:
    at = Running(answers, mesh(*data))
    async with trio.open_nursery() as nursery:
        await nursery.start(at.source.run, at)
        await trio.testing.wait_all_tasks_blocked()
        yield at
        nursery.cancel_scope.cancel()


async def test_roots_are_in_force_while_the_mesh_config_names_them() -> None:
    async with running(Answers(), inline(TWO, domains=("north.test",)), at_url("east.test")) as at:
        assert at.trust.foreign() == {"east.test": Bundle((ONE,)), "north.test": Bundle((TWO,))}
        assert at.trust.own() == Bundle()
        assert at.events == [Synced("trust-bundles")]
        await at.change(inline(THREE))
        assert (at.trust.own(), at.trust.foreign()) == (Bundle((THREE,)), {})
        assert at.source.statistics().items == 0


async def test_the_trust_domains_of_a_bundle_may_change_without_asking_again() -> None:
    answers = Answers()
    async with running(answers, at_url("east.test")) as at:
        await at.change(at_url("south.test"))
        assert at.trust.foreign() == {"south.test": Bundle((ONE,))}
        assert answers.asked == [URL]


async def test_a_bundle_is_fetched_again_when_it_says_so(autojump_clock: trio.testing.MockClock) -> None:
    answers = Answers(BundleDocument((ONE,), refresh_hint_seconds=60))
    async with running(answers, at_url("east.test")) as at:
        answers.answer = BundleDocument((ONE, TWO))
        await trio.sleep(61)
        assert at.trust.foreign() == {"east.test": Bundle((ONE, TWO))}
        await trio.sleep(REFRESH_SECONDS - 5)
        assert len(answers.asked) == 2
        await trio.sleep(10)
        assert len(answers.asked) == 3


async def test_the_last_good_bundle_stays_while_none_can_be_had(autojump_clock: trio.testing.MockClock) -> None:
    answers = Answers()
    async with running(answers, at_url("east.test")) as at:
        answers.answer = FetchError("it is down")
        await trio.sleep(REFRESH_SECONDS + 30)
        assert at.trust.foreign() == {"east.test": Bundle((ONE,))}
        now = at.source.statistics()
        assert (now.items, now.trouble) == (1, "it is down")
        assert now.stale_seconds > 0
        answers.answer = BundleDocument((TWO,))
        await trio.sleep(120)
        assert at.trust.foreign() == {"east.test": Bundle((TWO,))}
        assert at.source.statistics().stale_seconds == 0


async def test_it_is_synced_once_each_bundle_was_asked_for_also_in_vain() -> None:
    answers = Answers(FetchError("no"))
    at = Running(answers, mesh(at_url("east.test")), others_synced=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(at.source.run, at)
        await trio.testing.wait_all_tasks_blocked()
        assert at.events == []
        at.others_synced = True
        at.source.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert at.events == [Synced("trust-bundles")]
        assert at.source.statistics().rejected == 1
        nursery.cancel_scope.cancel()


async def test_a_source_that_is_started_again_keeps_what_is_in_force() -> None:
    answers = Answers()
    at = Running(answers, mesh(at_url("east.test")))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(at.source.run, at)
            await trio.testing.wait_all_tasks_blocked()
            assert at.trust.foreign() == {"east.test": Bundle((ONE,))}
            nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert at.events == [Synced("trust-bundles")] * 2


async def test_a_server_that_cannot_be_verified_or_does_not_answer_is_an_error() -> None:
    with pytest.raises(FetchError, match=r"127\.0\.0\.1:1"):
        await fetching(None)("https://127.0.0.1:1/bundle")


@pytest.mark.parametrize("domain", ["", "east.test"])
def test_revocation_lists_that_proxies_do_not_look_at_are_told_once(domain: str) -> None:
    at = Running(Answers(), mesh())
    with structlog.testing.capture_logs() as lines:
        at.trust.put("ca", Bundle((ONE,), (b"crl",)))
        assert lines == []
        for root in (TWO, THREE):
            at.trust.put("caCertificates", Bundle((root,)), trust_domain=domain)
    (line,) = lines
    assert line["log_level"] == "warning" and "revocation list" in line["event"]
