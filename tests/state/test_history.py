"""The history in the file: any revision that is kept can be made again, over restarts, and until it is pruned."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.events import (
    Delete,
    Event,
    Item,
    KeySet,
    Replace,
    Secret,
    SourceAdded,
    SourceRemoved,
    Synced,
    Upsert,
)
from mesh_pilot.model.history import ProxyRevision, RevisionNack, RevisionOutcome
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.safety.state.reader import HistoryError, HistoryReader
from mesh_pilot.safety.state.revision_log import ProxyRecord, RevisionLog
from mesh_pilot.safety.state.settings import HistoryBounds, StateSettings
from mesh_pilot.safety.state.store import Batch, Store
from mesh_pilot.world import World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from tests.support.worlds import configs, sidecar

Key = tuple[str, ...]
Pictures = Mapping[str, Mapping[Key, Item]]

SOURCES = ("files", "consul")
MANY = HistoryBounds(revisions=1000)


def entry(name: int, edit: int, source: str = "files") -> Config:
    text = f"""\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: s{name}, namespace: shop}}
spec:
  hosts: [s{name}.test]
  resolution: STATIC
  ports: [{{number: {1000 + edit}, name: http, protocol: HTTP}}]
"""
    (config,) = configs(text)
    return attrs.evolve(config, origin=Origin(source, f"config/s{name}.yaml", 3))


class Effects:
    """Proxies and outcomes as a test says."""

    def __init__(self) -> None:
        self.outcomes: list[RevisionOutcome] = []
        self.records: list[ProxyRecord] = []

    def take_outcomes(self) -> list[RevisionOutcome]:
        taken, self.outcomes = self.outcomes, []
        return taken

    def proxies(self) -> list[ProxyRecord]:
        return self.records


@attrs.frozen
class Record:
    """A stream at a revision."""

    proxy: Proxy | None
    at: ProxyRevision

    def position(self) -> ProxyRevision:
        return self.at


class Run:
    """A plane without its event loop: events in, batches out into the store."""

    def __init__(self, folder: Path, bounds: HistoryBounds = MANY, *, place: str = "here") -> None:
        self.world = World()
        self.sources = [*SOURCES]
        for source in SOURCES:
            self.world.expect(source)
        self.intake = Intake(self.world)
        self.log = RevisionLog(self.world.settings, limit=max(1, bounds.revisions))
        self.effects = self.log.effects = Effects()
        self.copies: dict[int, Pictures] = {}
        self.waiting: dict[tuple[str, Key], None] = {}
        self.now = 0.0
        self.store = Store(StateSettings(folder=folder, history=bounds), dict.fromkeys(SOURCES, place))
        kept = self.store.pictures()
        self.world.revision = self.store.revision
        events: list[Event] = []
        for picture in kept:
            events += self.intake.restored(picture.source, picture.items, picture.confirmed_at)
        if events:
            self._publish(events, ())

    def say(self, *events: Event) -> None:
        admitted = self.intake.admit(events, self.now)
        self._publish(admitted.events, admitted.changes)

    def _publish(self, events: list[Event], changes: object) -> None:
        revision = self.world.apply(events)
        published = Published(revision, 0.0, 0.0, changes)  # type: ignore[arg-type]  # the reducer's own list
        for change in published.changes:
            self.waiting[change.source, change.key] = None
        self.log.published(published)
        if revision.changed:
            self.copies[revision.number] = pictures(self.world)

    def write(self) -> None:
        self.now += 10.0
        whole = frozenset(self.sources) - self.store.current - set(self.world.unsynced())
        items = [(s, key, item) for s in whole for key, item in self.world.items_of(s).items()]
        items += [(s, k, self.world.item_of(s, k)) for s, k in self.waiting if s in self.store.current]
        self.waiting.clear()
        confirmed = dict.fromkeys(set(self.sources) - set(self.world.unsynced()), datetime.now(UTC))
        history, order = self.log.take(self.now), self.world.sources()
        self.store.write(Batch(self.world.revision, items, confirmed, whole, history, order))

    def close(self) -> None:
        self.store.close()


@contextmanager
def running(folder: Path, bounds: HistoryBounds = MANY, *, place: str = "here") -> Iterator[Run]:
    run = Run(folder, bounds, place=place)
    try:
        yield run
    finally:
        run.close()


def pictures(world: World) -> Pictures:
    return {source: world.items_of(source) for source in SOURCES}


def past(folder: Path, number: int) -> Pictures:
    with HistoryReader.open(folder) as history:
        return history.items_at(number).items


def begin(run: Run) -> None:
    for source in SOURCES:
        run.say(Replace(source, (), ()), Synced(source))


STEP = st.one_of(
    st.tuples(st.just("upsert"), st.sampled_from(SOURCES), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.sampled_from(SOURCES), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("replace"), st.sampled_from(SOURCES), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.sampled_from(["write", "restart", "crash"]), st.just(""), st.just(0), st.just(0)),
)


def event_of(what: str, source: str, name: int, edit: int) -> Event:
    item = entry(name, edit, source)
    match what:
        case "upsert":
            return Upsert(source, item)
        case "delete":
            return Delete(source, ("config", *item.key))
        case _:
            return Replace(source, (), tuple(entry(n, edit, source) for n in range(name)))


@settings(deadline=None)
@given(st.lists(STEP, max_size=40))
def test_a_world_made_again_at_a_revision_equals_the_one_of_that_time(
    steps: list[tuple[str, str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        copies: dict[int, Pictures] = {}
        run = Run(folder)
        begin(run)
        for step in steps:
            match step[0]:
                case "write":
                    run.write()
                case "restart" | "crash":
                    if step[0] == "restart":
                        run.write()
                    written = run.store.revision
                    copies |= {number: copy for number, copy in run.copies.items() if number <= written}
                    run.close()
                    run = Run(folder)
                    begin_again = [Replace(s, (), tuple(run.world.items_of(s).values())) for s in SOURCES]
                    run.say(*begin_again, *map(Synced, SOURCES))
                case _:
                    run.say(event_of(*step))
        run.write()
        copies |= run.copies
        run.close()
        with HistoryReader.open(folder) as history:
            listed = [record.number for record in history.revisions()]
            assert listed == sorted(copies, reverse=True)
            for number in listed:
                assert history.items_at(number).items == copies[number], number


def test_sources_that_come_and_go_are_part_of_it(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(0, 0)))
        run.write()
        assert run.store.picture_of("west", "there") is None
        run.sources.append("west")
        run.say(SourceAdded("west", ("files",)), Upsert("west", entry(1, 0)), Synced("west"))
        run.write()
        run.say(Upsert("west", entry(1, 1)))
        run.write()
        run.store.move("west", "elsewhere")
        run.say(Upsert("west", entry(2, 0)))
        run.write()
        run.store.forget("west")
        run.sources.remove("west")
        run.say(SourceRemoved("west"))
        run.write()
        assert run.store.picture_of("west", "elsewhere") is None
        found = [past(tmp_path, number) for number in range(1, run.world.revision + 1)]
    wests = [sorted(config.spec.ports[0].number for config in of["west"].values()) for of in found]  # type: ignore[union-attr]
    assert wests == [[], [1000], [1001], [1000, 1001], []]


def test_a_source_that_comes_later_has_its_rank_there(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(0, 0)))
        run.write()
        run.store.picture_of("west", "there")
        run.sources.append("west")
        run.say(SourceAdded("west", ("files",)), Upsert("west", entry(1, 0)), Synced("west"))
        run.write()
        assert [*past(tmp_path, run.world.revision)] == ["files", "west", "consul"]


def test_it_is_read_while_it_is_written_and_by_nobody_else_written(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
        with HistoryReader.open(tmp_path) as history:
            assert history.is_running
            run.say(Upsert("files", entry(1, 1)))
            run.write()
            assert history.latest == 1  # as of one moment
        with HistoryReader.open(tmp_path) as history:
            assert history.latest == 2
    with HistoryReader.open(tmp_path) as history:
        assert not history.is_running


def test_a_pipe_that_its_reader_has_closed_is_no_fault_of_the_file(tmp_path: Path) -> None:
    """As of ``mesh-pilot history diff 1 9 | head``."""
    with running(tmp_path) as run:
        begin(run)
        run.write()
    with pytest.raises(BrokenPipeError), HistoryReader.open(tmp_path):
        raise BrokenPipeError


def test_revisions_say_what_changed_and_why(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(*(Upsert("files", entry(number, 0)) for number in range(8)))
        run.say(Upsert("consul", entry(9, 0, "consul"), cause="Consul index 42"))
        run.say(Delete("files", ("config", *entry(1, 0).key)))
        run.write()
    with HistoryReader.open(tmp_path) as history:
        deleted, added, first = history.revisions()
        assert deleted.causes == ("config/s1.yaml:3 (gone)",)
        assert added.causes == ("config/s9.yaml:3, Consul index 42",)
        assert (first.causes[0], len(first.causes), first.more_causes) == ("config/s0.yaml:3", 5, 3)
        (change,) = history.changes(3)
        assert (change.action, change.source, change.key[-1]) == ("delete", "files", "s1")
        assert change.cause == "config/s1.yaml:3 (gone)"
        for asked in ("shop/s1", "s1.shop", "ServiceEntry/shop/s1", "ServiceEntry/s1.shop"):
            assert [record.number for record in history.revisions(object_name=asked)] == [3, 1]
        assert history.revisions(object_name="s1.bank") == []
        assert history.revisions(object_name="s1", is_seen=lambda name: "/bank/" in name) == []
        assert [record.number for record in history.revisions(limit=1)] == [3]


def test_old_revisions_are_pruned_and_the_others_stay_exact(tmp_path: Path) -> None:
    with running(tmp_path, HistoryBounds(revisions=5)) as run:
        begin(run)
        for edit in range(12):
            run.say(Upsert("files", entry(1, edit)))
            run.write()
        copies = run.copies
    with HistoryReader.open(tmp_path) as history:
        assert history.kept() == (8, 12)
        assert [history.items_at(number).items for number in range(8, 13)] == [copies[n] for n in range(8, 13)]
        with pytest.raises(HistoryError, match="revision 7 is not kept; kept are 8 to 12"):
            history.items_at(7)


def test_revisions_that_are_too_old_are_pruned_but_the_latest(tmp_path: Path) -> None:
    with running(tmp_path, HistoryBounds(seconds=60.0)) as run:
        begin(run)
        run.log._now = lambda: datetime(2026, 1, 1, tzinfo=UTC)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
        with HistoryReader.open(tmp_path) as history:
            assert history.kept() == (1, 1)
        run.log._now = lambda: datetime(2026, 1, 2, tzinfo=UTC)
        run.say(Upsert("files", entry(1, 1)))
        run.write()
    with HistoryReader.open(tmp_path) as history:
        assert history.kept() == (2, 2)


def test_before_a_restart_that_read_elsewhere_nothing_can_be_made_again(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    with running(tmp_path, place="elsewhere") as run:
        begin(run)
        run.say(Upsert("files", entry(2, 0)))
        run.say(Upsert("files", entry(2, 1)))
        run.write()
        copies = run.copies
    with HistoryReader.open(tmp_path) as history:
        assert [record.number for record in history.revisions()] == [3, 2, 1]
        assert history.items_at(2).items == copies[2]
        with pytest.raises(HistoryError, match="at revision 1 are not known any more"):
            history.items_at(1)


def test_a_run_that_began_without_the_state_of_the_last_one_begins_the_history_anew(tmp_path: Path) -> None:
    """As one that found another process on the folder at its start."""
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.say(Upsert("files", entry(1, 1)))
        run.write()
    run = Run(tmp_path / "nothing")
    begin(run)
    run.say(Upsert("files", entry(2, 0)))
    run.close()
    run.store = Store(StateSettings(folder=tmp_path), dict.fromkeys(SOURCES, "here"))
    with capture_logs() as logs:
        run.write()
    run.close()
    assert [line["event"] for line in logs] == ["history begins again"]
    with HistoryReader.open(tmp_path) as history:
        assert history.kept() == (1, 1)
        assert history.items_at(1).items == run.copies[1]


def test_private_keys_are_in_no_change_and_said_to_be_unknown(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        secret = Secret("web", "shop", b"chain", b"MARKER")
        run.say(Upsert("files", secret), Upsert("files", KeySet("a", "", "{}")))
        run.write()
        run.say(Upsert("files", attrs.evolve(secret, private_key=b"MARKER 2")), Delete("files", ("keys", "a", "")))
        run.say(Upsert("files", attrs.evolve(secret, private_key=b"MARKER 3")))
        run.write()
        assert not any(b"MARKER" in file.read_bytes() for file in tmp_path.iterdir())
    with HistoryReader.open(tmp_path) as history:
        found = history.items_at(1)
        assert found.unknown == (("secret", "shop", "web"),)
        assert list(found.items["files"]) == [("keys", "a", "")]


def test_outcomes_refusals_and_proxies_are_kept(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    nack = RevisionNack(at, "web-1.shop", "CDS", ("a", "b"), ("VirtualService/shop/web",), "no 'such' thing")
    proxy = sidecar(name="web-1", namespace="shop")
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.effects.outcomes = [RevisionOutcome(1, 2, 1, 700, 0.25, (nack,), 1, False)]
        run.effects.records = [
            Record(proxy, ProxyRevision(0, True)),
            Record(sidecar(name="b"), ProxyRevision(None, False)),
        ]
        run.write()
        run.effects.outcomes = [RevisionOutcome(1, 2, 0, 900, 0.5, (nack, nack), 70, True)]
        run.effects.records = run.effects.records[:1]
        run.write()
        with HistoryReader.open(tmp_path) as history:
            (record,) = history.revisions(proxy="web-1")
            assert (record.proxies, record.waiting, record.bytes, record.acked_seconds) == (2, 0, 900, 0.5)
            assert (record.nacked, record.is_over) == (70, True)
            assert history.nacks(1) == [nack, nack]
            gone, refusing = history.proxies()
            assert (gone.proxy.name, gone.is_connected, gone.revision) == ("b.default", False, 1)
            assert (refusing.is_connected, refusing.revision, refusing.is_refusing) == (True, 0, True)
            assert attrs.asdict(refusing.proxy) == attrs.asdict(proxy)
            assert [each.number for each in history.revisions(proxy="web-1.shop")] == [1]
            assert not any(history.revisions(proxy=other) for other in ("b.default", "web_1", "web-%", "shop"))
    with HistoryReader.open(tmp_path) as history:
        assert not any(position.is_connected for position in history.proxies())


def test_a_batch_that_could_not_be_written_comes_again(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.effects.outcomes = [RevisionOutcome(1, 1, 1, 7, None, (), 0, False)]
        run.log.give_back(run.log.take(100.0))
        run.say(Upsert("files", entry(1, 1)))
        run.effects.outcomes = [RevisionOutcome(1, 1, 0, 8, 0.1, (), 0, True)]
        run.effects.records = [Record(sidecar(), ProxyRevision(None, False))]
        run.log.give_back(run.log.take(150.0))
        batch = run.log.take(200.0)
        assert [each.proxy.name for each in batch.proxies] == ["client.default"]
        assert [each.number for each in batch.revisions] == [1, 2]
        assert [each.bytes for each in batch.outcomes] == [8]
        assert not run.log.take(200.0)


def test_a_proxy_that_leaves_while_nothing_can_be_written_is_gone(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.effects.records = [Record(sidecar(name=name), ProxyRevision(None, False)) for name in ("a", "b")]
        run.write()
        run.log.give_back(run.log.take(100.0))
        run.effects.records = run.effects.records[:1]
        run.now = 200.0
        run.write()
        with HistoryReader.open(tmp_path) as history:
            assert {each.proxy.name: each.is_connected for each in history.proxies()} == {
                "a.default": True,
                "b.default": False,
            }


def test_refusals_that_come_in_another_order_are_kept_once_each(tmp_path: Path) -> None:
    """As of several workers, whose refusals are put together."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one, two = (RevisionNack(at, name, "CDS", (), (), "no") for name in ("web-1.shop", "web-2.shop"))
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.effects.outcomes = [RevisionOutcome(1, 2, 1, 7, None, (two,), 1, False)]
        run.write()
        run.effects.outcomes = [RevisionOutcome(1, 2, 0, 7, None, (one, two), 2, True)]
        run.write()
    with HistoryReader.open(tmp_path) as history:
        assert history.nacks(1) == [one, two]


def test_a_run_that_keeps_no_history_drops_it(tmp_path: Path) -> None:
    """What it changed is unknown: older revisions could not be made again, and are not kept as asked."""
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    with running(tmp_path, HistoryBounds(revisions=0)) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 1)))
        run.log.take(1.0)
        run.write()
    with HistoryReader.open(tmp_path) as history:
        assert (history.kept(), history.proxies()) == (None, [])
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 2)))
        run.write()
        copies = run.copies
    with HistoryReader.open(tmp_path) as history:
        assert {each.number: history.items_at(each.number).items for each in history.revisions()} == copies


def test_changes_after_some_that_could_not_wait_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.safety.state.revision_log.MAX_CHANGES", 4)
    with running(tmp_path) as run:
        begin(run)
        run.say(*(Upsert("files", entry(number, 0)) for number in range(4)))
        run.write()
        run.say(*(Upsert("files", entry(number, 1)) for number in range(3)))
        run.say(*(Upsert("files", entry(number, 2)) for number in (2, 3)))  # not recorded
        run.say(Upsert("files", entry(3, 3)))
        run.write()
        copies = run.copies
    with HistoryReader.open(tmp_path) as history:
        assert {number: history.items_at(number).items for number in (3, 4)} == {3: copies[3], 4: copies[4]}
        with pytest.raises(HistoryError, match="those since 3 are"):
            history.items_at(2)


def test_no_more_revisions_wait_for_a_full_disk_than_are_kept(tmp_path: Path) -> None:
    with running(tmp_path, HistoryBounds(revisions=5)) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
        for edit in range(1, 20):
            run.say(Upsert("files", entry(1, edit)))
            run.effects.outcomes = [RevisionOutcome(edit + 1, 0, 0, 0, None, (), 0, True)]
            batch = run.log.take(float(edit))
            assert len(batch.revisions) <= 6
            assert len(batch.outcomes) <= 6
            run.log.give_back(batch)
        run.write()
        copies = run.copies
    with HistoryReader.open(tmp_path) as history:
        assert {each.number: history.items_at(each.number).items for each in history.revisions()} == {
            number: copies[number] for number in range(16, 21)
        }


def test_a_batch_that_is_written_again_makes_nothing_known(tmp_path: Path) -> None:
    """As at the end of a run, when it is not known whether the last write came through."""
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    with running(tmp_path, place="elsewhere") as run:
        begin(run)
        run.say(Upsert("files", entry(2, 0)))
        again = run.log.take(1.0)
        run.log.give_back(again)
        run.write()
        run.log.give_back(again)
        run.write()
    with HistoryReader.open(tmp_path) as history, pytest.raises(HistoryError, match="at revision 1 are not known"):
        history.items_at(1)


@pytest.mark.parametrize("content", [None, b"", b"not a database", b"SQLite format 3\0" + b"x" * 200])
def test_what_is_no_history_is_said_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(HistoryError) as raised, HistoryReader.open(tmp_path) as history:
        history.revisions()
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        begin(run)
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    tmp_path.chmod(0o500)
    before = (tmp_path / "state.db").read_bytes()
    with HistoryReader.open(tmp_path) as history:
        assert history.latest == 1
    tmp_path.chmod(0o700)
    assert (tmp_path / "state.db").read_bytes() == before
