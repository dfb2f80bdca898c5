"""The effects of revisions on the proxies of all workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import attrs

from mesh_pilot.model.history import ProxyRevision, RevisionNack, RevisionOutcome
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.replicas.workers.effects import EffectsOfAll, EffectsQuestion, WorkerEffects, telling_effects
from mesh_pilot.safety.state.revision_log import ProxyEntry, ProxyRecord

AT = datetime(2026, 11, 23, tzinfo=UTC)
LATEST, OLDER = ProxyRevision(None, False), ProxyRevision(6, False)


@attrs.define
class Record:
    """A stream of a proxy."""

    proxy: Proxy | None
    at: ProxyRevision = LATEST

    def position(self) -> ProxyRevision:
        return self.at


@attrs.define
class Told:
    """The effects of a worker that the test dictates."""

    outcomes: list[RevisionOutcome] = attrs.field(factory=list)
    streams: list[Record] = attrs.field(factory=list)

    def take_outcomes(self) -> Sequence[RevisionOutcome]:
        taken, self.outcomes = self.outcomes, []
        return taken

    def proxies(self) -> Iterable[ProxyRecord]:
        return self.streams


def proxy(name: str) -> Proxy:
    return parse_proxy(f"sidecar~10.1.1.1~{name}.shop~shop.svc.cluster.local", {})


def nack(name: str) -> RevisionNack:
    return RevisionNack(AT, name, "CDS", (), (), "no")


def outcome(
    revision: int, *, proxies: int = 1, waiting: int = 0, acked: float | None = 0.1, **more: int
) -> RevisionOutcome:
    nacked = more.get("nacked", 0)
    nacks = tuple(nack(f"web-{number}") for number in range(nacked))
    return RevisionOutcome(revision, proxies, waiting, 100 * proxies, acked, nacks, nacked, not waiting)


def test_a_revision_comes_to_the_sum_of_what_all_workers_tell() -> None:
    own = Told([outcome(7, proxies=2)])
    everyone = EffectsOfAll(own)
    everyone.told(2, WorkerEffects([outcome(7, proxies=3, waiting=1, acked=0.4, nacked=1)], []))
    everyone.told(3, WorkerEffects([outcome(7, proxies=1, acked=None, nacked=2)], []))
    (found,) = everyone.take_outcomes()
    assert attrs.evolve(found, nacks=()) == RevisionOutcome(7, 6, 1, 600, 0.4, (), 3, is_over=False)
    assert len(found.nacks) == 3
    assert everyone.take_outcomes() == []
    everyone.told(2, WorkerEffects([outcome(7, proxies=3, acked=0.5, nacked=1)], []))
    (found,) = everyone.take_outcomes()
    assert (found.proxies, found.acked_seconds, found.is_over) == (6, 0.5, True)


def test_the_proxies_of_a_worker_that_has_ended_are_not_waited_for() -> None:
    everyone = EffectsOfAll(Told())
    web = proxy("web")
    everyone.told(2, WorkerEffects([outcome(7, waiting=1, acked=None)], [ProxyEntry(web, OLDER, AT)]))
    everyone.take_outcomes()
    assert [record.position() for record in everyone.proxies()] == [OLDER]
    everyone.ended(2)
    (found,) = everyone.take_outcomes()
    assert (found.waiting, found.is_over, found.proxies) == (0, True, 1)
    assert list(everyone.proxies()) == []


def test_a_proxy_that_moves_to_another_worker_stays_connected() -> None:
    own = Told(streams=[Record(proxy("other"))])
    everyone = EffectsOfAll(own)
    web = proxy("web")
    everyone.told(2, WorkerEffects([], [ProxyEntry(web, LATEST, AT)]))
    everyone.told(3, WorkerEffects([], [ProxyEntry(web, LATEST, AT)]))
    everyone.told(2, WorkerEffects([], [ProxyEntry(web, LATEST, AT, is_connected=False)]))
    assert [record.proxy.name for record in everyone.proxies() if record.proxy] == ["other.shop", "web.shop"]


def test_old_revisions_are_forgotten() -> None:
    everyone = EffectsOfAll(Told())
    for revision in range(1, 2000):
        everyone.told(2, WorkerEffects([outcome(revision)], []))
        everyone.take_outcomes()
    assert len(everyone._outcomes[2]) < 500


async def test_a_worker_tells_what_has_changed_and_answers_everything_else_as_before() -> None:
    web = Record(proxy("web"))
    told = Told([outcome(7)], [web])

    async def other(question: object) -> object:
        return f"answer to {question}"

    answer = telling_effects(other, told)
    assert await answer("page") == "answer to page"
    first = await answer(EffectsQuestion())
    assert isinstance(first, WorkerEffects)
    assert [each.revision for each in first.outcomes] == [7]
    assert [(entry.proxy.name, entry.position, entry.is_connected) for entry in first.moved] == [
        ("web.shop", LATEST, True)
    ]
    assert await answer(EffectsQuestion()) == WorkerEffects([], [])
    web.at = OLDER
    told.streams.append(Record(None))
    moved = await answer(EffectsQuestion())
    assert isinstance(moved, WorkerEffects)
    assert [entry.position for entry in moved.moved] == [OLDER]
    told.streams.clear()
    gone = await answer(EffectsQuestion())
    assert isinstance(gone, WorkerEffects)
    assert [entry.is_connected for entry in gone.moved] == [False]
