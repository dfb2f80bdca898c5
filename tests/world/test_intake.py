"""Which events take effect: restored pictures, and what a source loses implausibly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import (
    Accepted,
    Confirmed,
    Delete,
    Endpoints,
    Event,
    Item,
    Rejected,
    Replace,
    SourceAdded,
    SourceRemoved,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.model.guard import GuardOptions
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.sources.base.published import (
    InvalidObject,
    LocationContent,
    Precedence,
    PublishedState,
    UnseenObject,
    ValidObject,
)
from mesh_pilot.world.guard import HoldStep
from mesh_pilot.world.intake import NOT_RETURNED, OPERATOR, REMOVED, Admitted, Intake, ItemChange
from mesh_pilot.world.loss_counts import OBJECTS as OBJECTS_OF_ALL
from mesh_pilot.world.loss_counts import sorts_of
from mesh_pilot.world.rejections import StandingRejections
from mesh_pilot.world.restored import GRACE_SECONDS, NOT_REFUSED
from tests.support.sample import examples

Key = tuple[str, ...]
SOURCE = "files"
YESTERDAY = datetime(2026, 1, 1, tzinfo=UTC)
OPTIONS = GuardOptions()
STEADY = OPTIONS.steady_seconds


def config(name: str, *, version: str = "1", file: str = "", kind: str = "VirtualService") -> Config:
    return Config(ConfigKey(kind, "shop", name), version, origin=Origin(SOURCE, file or f"{name}.yaml", 1))


def endpoints(name: str, count: int = 1) -> Endpoints:
    return Endpoints(
        ServiceKey(f"{name}.example", "shop"), tuple(Endpoint(f"10.0.0.{n}", 80, "http") for n in range(count))
    )


def upserts(*items: Item) -> list[Event]:
    return [Upsert(SOURCE, item) for item in items]


def deletes(*items: Item) -> list[Event]:
    return [Delete(SOURCE, item_key(item)) for item in items]


@attrs.define
class Pictures:
    """The items in force of sources, without the rest of a World."""

    items: dict[str, dict[Key, Item]] = attrs.field(factory=dict)
    rejected: StandingRejections = attrs.field(factory=StandingRejections)

    def item_of(self, source: str, key: Key) -> Item | None:
        return self.items.get(source, {}).get(key)

    def items_of(self, source: str) -> dict[Key, Item]:
        return dict(self.items.get(source, {}))

    def current(self, key: Key) -> list[Item]:
        return [items[key] for items in self.items.values() if key in items]

    def rejections(self) -> tuple[Rejected, ...]:
        return tuple(self.rejected.all())

    def apply(self, events: Iterable[Event]) -> None:
        for event in events:
            items = self.items.setdefault(event.source, {})
            self.rejected.take(event)
            match event:
                case Upsert(item=item):
                    items[item_key(item)] = item
                case SourceRemoved():
                    items.clear()
                case Delete(key=key):
                    items.pop(key, None)
                case Replace(collection=collection, items=new):
                    for key in [key for key in items if key[: len(collection)] == collection]:
                        del items[key]
                    items |= {item_key(item): item for item in new}


class Bench:
    """An intake, what is in force behind it, and what was told to it."""

    def __init__(self, *, guard: GuardOptions | None = OPTIONS) -> None:
        self.pictures = Pictures()
        self.raw = Pictures()
        self.intake = Intake(self.pictures, guarded=[SOURCE], guard=guard)
        self.now = 1000.0
        self.changes: list[ItemChange] = []
        self.shadow: dict[Key, Item] = {}

    def tell(self, *events: Event, after: float = 0.0) -> Admitted:
        self.now += after
        admitted = self.intake.admit(events, self.now)
        self.pictures.apply(admitted.events)
        self.raw.apply(events)
        self._replay(admitted.changes)
        return admitted

    def restore(self, *items: Item) -> None:
        self.pictures.apply(self.intake.restored(SOURCE, items, YESTERDAY))
        self.shadow = self.in_force()

    def begin(self, *items: Item) -> None:
        """A first full picture."""
        self.tell(Replace(SOURCE, (), items), Synced(SOURCE))

    def in_force(self) -> dict[Key, Item]:
        return self.pictures.items_of(SOURCE)

    def names(self) -> set[str]:
        return {key[-1] if key[0] == "config" else key[1] for key in self.in_force()}

    def said(self) -> dict[Key, Item]:
        return self.raw.items_of(SOURCE)

    def held(self) -> set[Key]:
        picture = self.intake.held().get(SOURCE)
        return set(picture.keys) if picture else set()

    def _replay(self, changes: Iterable[ItemChange]) -> None:
        for change in (change for change in changes if change.source == SOURCE):
            assert self.shadow.get(change.key) is change.before
            if change.after is None:
                del self.shadow[change.key]
            else:
                self.shadow[change.key] = change.after


TEN = [config(f"c{n}") for n in range(10)]


def test_few_objects_go_at_once() -> None:
    bench = Bench()
    bench.begin(*TEN[:4])
    assert not bench.tell(*deletes(*TEN[:2])).holds
    assert bench.names() == {"c2", "c3"}
    assert not bench.tell(*deletes(*TEN[2:4]), after=OPTIONS.seconds + 1).holds
    assert not bench.names()


def test_the_only_file_goes_at_once_however_many_objects_are_in_it() -> None:
    bench = Bench()
    many = [config(f"c{n}", file="all.yaml") for n in range(10)]
    bench.begin(*many)
    assert not bench.tell(*deletes(*many)).holds
    assert not bench.in_force()


def test_an_emptied_folder_is_held_and_named() -> None:
    bench = Bench()
    bench.begin(*TEN)
    (change,) = bench.tell(*deletes(*TEN)).holds
    assert change.step is HoldStep.BEGUN
    assert change.held.reason == "10 of 10 objects of namespace shop went at once"
    assert change.held.objects == 10
    assert (
        change.held.first_names == "VirtualService/shop/c0, VirtualService/shop/c1, VirtualService/shop/c2 and 7 more"
    )
    assert bench.in_force() == {item_key(c): c for c in TEN}
    assert not bench.tell(*upserts(config("new")), after=1000).holds, "what is new is in force at once, and holds on"
    assert len(bench.in_force()) == 11


def test_what_went_just_before_comes_back_when_the_rest_is_held() -> None:
    bench = Bench()
    bench.begin(*TEN)
    for each in TEN[:5]:
        assert not bench.tell(*deletes(each), after=1).holds
    assert len(bench.in_force()) == 5
    admitted = bench.tell(*deletes(TEN[5]), after=1)
    assert admitted.holds[0].held.reason == "6 of 10 objects of namespace shop went at once"
    assert len(bench.in_force()) == 10


def test_what_went_long_before_does_not_count() -> None:
    bench = Bench()
    bench.begin(*TEN)
    for each in TEN:
        assert not bench.tell(*deletes(each), after=OPTIONS.seconds + 1).holds
    assert not bench.in_force()


def test_a_first_picture_is_never_held() -> None:
    bench = Bench()
    bench.tell(*upserts(*TEN))
    bench.begin(TEN[0])
    assert bench.names() == {"c0"}


def test_a_source_that_begins_again_with_all_it_had_is_not_held() -> None:
    bench = Bench()
    bench.begin(*TEN)
    assert not bench.tell(Replace(SOURCE, (), tuple(TEN)), Synced(SOURCE)).holds
    assert not bench.tell(Replace(SOURCE, (), ()), *upserts(*TEN)).holds, "empty for a moment only, in one batch"
    assert len(bench.in_force()) == 10


def test_objects_that_come_and_go_all_the_time_are_no_loss() -> None:
    bench = Bench()
    bench.begin(*TEN)
    for n in range(100):
        came = config(f"short-{n}")
        assert not bench.tell(*upserts(came), after=0.1).holds
        assert not bench.tell(*deletes(came), after=0.1).holds
    assert len(bench.in_force()) == 10


def test_renamed_objects_are_not_held() -> None:
    bench = Bench()
    bench.begin(*TEN)
    assert not bench.tell(*deletes(*TEN), *upserts(*(config(f"d{n}") for n in range(10)))).holds
    assert bench.names() == {f"d{n}" for n in range(10)}


def test_held_objects_that_come_back_are_as_their_source_says() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*deletes(*TEN))
    bench.tell(*upserts(*(config(f"c{n}", version="2") for n in range(9))))
    assert bench.in_force()[item_key(TEN[3])].spec == "2"  # type: ignore[union-attr]  # all are configs
    assert bench.held() == {item_key(TEN[9])}
    (change,) = bench.tell(*upserts(TEN[9])).holds
    assert change.step is HoldStep.RECOVERED
    assert not change.held.keys


def test_services_that_register_again_one_by_one_do_not_end_it_for_the_others() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*deletes(*TEN))
    for each in TEN[:9]:
        assert not bench.tell(*upserts(each), after=STEADY / 2).holds
        assert len(bench.in_force()) == 10
    assert bench.intake.due == bench.now + STEADY
    assert not bench.tell(after=STEADY - 1).holds
    admitted = bench.tell(after=1)
    assert [change.step for change in admitted.holds] == [HoldStep.RECOVERED]
    assert [change.cause for change in admitted.changes] == [NOT_RETURNED]
    assert len(bench.in_force()) == 9
    assert bench.intake.due > bench.now + 1e9


def test_an_operator_lets_go_what_is_held() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*deletes(*TEN[:8]))
    admitted = bench.tell(Confirmed(SOURCE))
    assert [change.step for change in admitted.holds] == [HoldStep.ACCEPTED]
    assert {change.cause for change in admitted.changes} == {OPERATOR}
    assert bench.names() == {"c8", "c9"}
    assert not bench.tell(Confirmed(SOURCE)).holds, "nothing is held"


def test_what_an_operator_let_go_does_not_count_as_gone_again() -> None:
    bench = Bench()
    many = [config(f"c{n}") for n in range(20)]
    bench.begin(*many)
    bench.tell(*deletes(*many[:12]))
    bench.tell(Confirmed(SOURCE), after=1)
    assert not bench.tell(*deletes(*many[12:15]), after=1).holds, "3 of 8"
    (change,) = bench.tell(*deletes(*many[15:17]), after=1).holds
    assert change.held.reason == "5 of 8 objects of namespace shop went at once"


def test_what_went_for_a_moment_does_not_make_one_file_many() -> None:
    bench = Bench()
    file = [config(f"m{n}", file="all.yaml") for n in range(10)]
    bench.begin(*file, *TEN[:2])
    bench.tell(*deletes(TEN[0]))
    bench.tell(*deletes(TEN[1]), after=1)
    bench.tell(*upserts(*TEN[:2]), after=1)
    assert not bench.tell(*deletes(*file), after=1).holds
    assert bench.names() == {"c0", "c1"}


def test_services_that_lose_their_endpoints_keep_them() -> None:
    bench = Bench()
    names = ["a", "b", "c", "d"]
    bench.begin(*(endpoints(name, 2) for name in names))
    assert not bench.tell(*upserts(*(endpoints(name, 1) for name in names))).holds, "fewer is not none"
    (change,) = bench.tell(*upserts(*(endpoints(name, 0) for name in names[:3]))).holds
    assert change.held.reason == "3 of 4 services lost all endpoints at once"
    assert all(item.endpoints for item in bench.in_force().values())  # type: ignore[union-attr]  # all are Endpoints
    bench.tell(Confirmed(SOURCE))
    assert bench.in_force() == bench.said()


# -- sources that come and go


LATE = "late"


def test_a_source_that_comes_late_is_guarded_like_the_others() -> None:
    bench = Bench()
    bench.tell(SourceAdded(LATE), Replace(LATE, (), tuple(TEN)), Synced(LATE))
    assert len(bench.pictures.items_of(LATE)) == 10
    bench.tell(Replace(LATE, (), ()))
    assert len(bench.pictures.items_of(LATE)) == 10
    assert bench.intake.held()[LATE].objects == 10


def test_what_a_removed_source_has_goes_held_or_not_and_nobody_elses() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(SourceAdded(LATE), Replace(LATE, (), tuple(config(f"d{n}") for n in range(10))), Synced(LATE))
    bench.tell(Replace(LATE, (), ()))
    assert bench.intake.held()
    admitted = bench.tell(SourceRemoved(LATE))
    assert admitted.events == [SourceRemoved(LATE)]
    assert {(change.after, change.cause) for change in admitted.changes} == {(None, REMOVED)}
    assert len(admitted.changes) == 10
    assert len(bench.in_force()) == 10
    assert not bench.intake.held()


def test_a_source_that_goes_and_comes_back_at_once_begins_anew() -> None:
    bench = Bench()
    bench.tell(SourceAdded(LATE), Replace(LATE, (), tuple(TEN)), Synced(LATE))
    again = [SourceRemoved(LATE), SourceAdded(LATE), Replace(LATE, (), (TEN[0],)), Synced(LATE)]
    admitted = bench.tell(Upsert(LATE, config("never")), *again)
    assert admitted.events == again
    assert len(admitted.changes) == 11
    assert [(change.before, change.after) for change in admitted.changes[10:]] == [(None, TEN[0])]


def test_the_picture_of_an_earlier_run_of_a_late_source_is_in_force_until_its_own_is_full() -> None:
    bench = Bench()
    bench.tell(SourceAdded(LATE, (SOURCE,), tuple(TEN), YESTERDAY))
    assert bench.intake.stale() == {LATE: YESTERDAY}
    bench.tell(Replace(LATE, (), (TEN[0], config("new"))))
    assert len(bench.pictures.items_of(LATE)) == 10
    bench.tell(Synced(LATE))
    assert not bench.intake.stale()
    assert config("new") in bench.pictures.items_of(LATE).values()


def test_the_picture_of_an_earlier_run_is_renewed_by_a_source_that_answers_at_once() -> None:
    bench = Bench()
    full = Replace(LATE, (), (*TEN[:9], config("new")))
    admitted = bench.tell(SourceAdded(LATE, (SOURCE,), tuple(TEN), YESTERDAY), full, Synced(LATE))
    assert not bench.intake.stale()
    assert bench.pictures.items_of(LATE).keys() == {item_key(item) for item in full.items}
    assert [(change.before, change.after) for change in admitted.changes] == [(None, config("new")), (TEN[9], None)]
    assert [renewal.changed for renewal in admitted.renewals] == [2]


def test_the_picture_of_an_earlier_run_is_guarded_against_a_source_that_has_lost_it_all() -> None:
    bench = Bench()
    admitted = bench.tell(SourceAdded(LATE, (), tuple(TEN), YESTERDAY), Replace(LATE, (), ()), Synced(LATE))
    assert [change.held.objects for change in admitted.holds] == [10]
    assert len(bench.pictures.items_of(LATE)) == 10


def test_objects_that_another_source_has_are_not_lost() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*(Upsert("consul", each) for each in TEN[:8]))
    assert not bench.tell(*deletes(*TEN[:4])).holds
    assert not bench.tell(*deletes(*TEN[4:9]), after=1).holds, "1 of 2 is lost, all others have moved"
    assert bench.names() == {"c9"}


def test_objects_that_move_do_not_hide_that_others_are_lost() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*(Upsert("consul", each) for each in TEN[:4]))
    (change,) = bench.tell(*deletes(*TEN[:8])).holds
    assert change.held.reason == "4 of 6 objects of namespace shop went at once"
    assert bench.names() == {f"c{n}" for n in range(4, 10)}
    bench.tell(Upsert("consul", TEN[8]))
    assert not bench.tell(*deletes(TEN[8])).holds
    bench.tell(*upserts(*TEN[4:8]))
    assert not bench.held()
    assert bench.names() == {*(f"c{n}" for n in range(4, 8)), "c9"}


def test_objects_that_all_their_sources_lose_at_once_are_held() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*(Upsert("consul", each) for each in TEN))
    admitted = bench.tell(*(Delete("consul", item_key(each)) for each in TEN), *deletes(*TEN))
    assert [change.held.source for change in admitted.holds] == [SOURCE]


def test_services_of_two_sources_keep_the_endpoints_of_both() -> None:
    bench = Bench()
    both = [endpoints(f"s{n}") for n in range(4)]
    bench.begin(*both)
    bench.tell(*(Upsert("consul", each) for each in both))
    assert bench.tell(*deletes(*both)).holds


def test_a_collection_that_is_purged_is_held_though_the_source_has_more_of_others() -> None:
    bench = Bench()
    services = [endpoints(f"s{n}") for n in range(50)]
    bench.begin(*TEN[:5], *services)
    (change,) = bench.tell(*deletes(*TEN[:5])).holds
    assert change.held.reason == "5 of 5 objects of namespace shop went at once"


def test_a_rejected_object_is_still_known_as_rejected_after_its_hold() -> None:
    bench = Bench()
    bench.begin(*TEN)
    bench.tell(*deletes(*TEN))
    rejected = Rejected(SOURCE, TEN[0].origin, (Problem("", "is garbage"),), item_key(TEN[0]))
    bench.tell(rejected)
    bench.tell(Confirmed(SOURCE))
    assert not bench.in_force()
    assert bench.pictures.rejections() == (rejected,)


def test_without_a_guard_nothing_is_held() -> None:
    bench = Bench(guard=None)
    bench.begin(*TEN)
    assert not bench.tell(*deletes(*TEN)).holds
    assert not bench.in_force()


# -- restored pictures


def test_a_restored_picture_stays_until_its_source_has_told_everything() -> None:
    bench = Bench()
    bench.restore(*TEN)
    bench.tell(*upserts(*TEN[:5], config("new")))
    bench.tell(*upserts(config("c5", version="2")))
    assert bench.in_force() == {item_key(c): c for c in TEN}
    assert bench.intake.stale() == {SOURCE: YESTERDAY}
    admitted = bench.tell(*upserts(TEN[6]), Synced(SOURCE))
    assert bench.names() == {*(f"c{n}" for n in range(7)), "new"}
    assert not bench.intake.stale()
    assert [renewal.changed for renewal in admitted.renewals] == [5]
    assert {change.key[-1] for change in admitted.changes} == {"new", "c5", "c7", "c8", "c9"}


def test_a_source_that_comes_back_empty_is_held_over_the_restart() -> None:
    bench = Bench()
    bench.restore(*TEN)
    admitted = bench.tell(Replace(SOURCE, (), ()), Synced(SOURCE))
    assert [change.step for change in admitted.holds] == [HoldStep.BEGUN]
    assert len(bench.in_force()) == 10


def test_a_source_that_comes_back_with_nothing_is_held_however_little_it_had() -> None:
    bench = Bench()
    bench.restore(*TEN[:2])
    (change,) = bench.tell(Replace(SOURCE, (), ()), Synced(SOURCE)).holds
    assert change.held.reason == "2 of 2 objects went at once"
    assert not bench.tell(after=10 * STEADY).holds
    assert bench.names() == {"c0", "c1"}
    bench.tell(*upserts(TEN[0]))
    assert [change.step for change in bench.tell(after=STEADY).holds] == [HoldStep.RECOVERED]
    assert bench.names() == {"c0"}
    bench.tell(*deletes(TEN[0]))
    assert not bench.in_force(), "it is not a return any more"


def test_few_objects_that_went_during_a_restart_are_gone() -> None:
    bench = Bench()
    bench.restore(*TEN[:3])
    assert not bench.tell(Replace(SOURCE, (), (TEN[0],)), Synced(SOURCE)).holds
    assert bench.names() == {"c0"}


def test_a_source_that_dies_while_it_tells_begins_anew() -> None:
    bench = Bench()
    bench.restore(*TEN)
    bench.tell(*upserts(config("gone")))
    bench.tell(Replace(SOURCE, (), tuple(TEN)), Synced(SOURCE))
    assert bench.in_force() == {item_key(c): c for c in TEN}


# -- objects that are refused after a restart


def refused(*items: Config) -> list[Event]:
    return [Rejected(SOURCE, item.origin, (Problem("", "is garbage"),), item_key(item)) for item in items]


def unreadable(location: str) -> Event:
    return Rejected(SOURCE, Origin(SOURCE, location), (Problem("", "is not YAML"),))


def readable(location: str) -> Event:
    return Accepted(SOURCE, location)


def restarted(*said: Event) -> Bench:
    """After a restart, with a first picture of these events."""
    bench = Bench()
    bench.restore(*TEN)
    bench.tell(Replace(SOURCE, (), tuple(TEN[2:])), *said, Synced(SOURCE))
    return bench


def test_an_object_that_is_refused_after_a_restart_stays_as_it_was() -> None:
    bench = restarted(*refused(TEN[0]))
    assert bench.names() == {f"c{n}" for n in range(10)} - {"c1"}
    mended = config("c0", version="2")
    bench.tell(*upserts(mended))
    assert bench.in_force()[item_key(mended)] is mended
    bench.tell(*deletes(mended))
    assert "c0" not in bench.names(), "it is the source's again"


def test_objects_of_a_file_that_is_garbage_after_a_restart_stay_as_they_were() -> None:
    bench = restarted(unreadable("c0.yaml"))
    assert bench.names() == {f"c{n}" for n in range(10)} - {"c1"}
    bench.tell(readable("c0.yaml"), unreadable("c0.yaml"))
    assert bench.intake.due > bench.now + 1e9
    bench.tell(readable("c0.yaml"))
    assert "c0" in bench.names(), "it may be refused again in a moment"
    assert bench.intake.due == bench.now + GRACE_SECONDS
    bench.tell(unreadable("c0.yaml"), after=1)
    assert bench.intake.due > bench.now + 1e9
    bench.tell(readable("c0.yaml"))
    admitted = bench.tell(after=GRACE_SECONDS)
    assert [(change.key[-1], change.cause) for change in admitted.changes] == [("c0", NOT_REFUSED)]
    assert bench.intake.due > bench.now + 1e9


def test_what_is_refused_after_a_restart_stays_when_its_source_begins_again() -> None:
    bench = restarted(*refused(TEN[0]))
    bench.tell(Replace(SOURCE, (), tuple(TEN[2:])))
    bench.tell(*refused(TEN[0]), Synced(SOURCE), after=1)
    bench.tell(after=GRACE_SECONDS)
    assert "c0" in bench.names()


def test_an_object_is_gone_after_a_restart_although_its_file_has_a_duplicate() -> None:
    first, gone = config("x", file="a.yaml"), config("y", file="b.yaml")
    bench = Bench()
    bench.restore(first, gone, *TEN)
    state = PublishedState[str](SOURCE, Precedence.LOWEST)
    state.put("a.yaml", [first])
    state.put("b.yaml", [config("x", file="b.yaml")])
    state.put("c.yaml", TEN)
    bench.tell(*state.announce(), Synced(SOURCE))
    assert [rejected.origin.location for rejected in bench.pictures.rejections()] == ["b.yaml"]
    assert "y" not in bench.names()


def test_a_rejection_that_ends_before_the_first_full_picture_is_over() -> None:
    bench = Bench()
    bench.restore(*TEN)
    bench.tell(*refused(TEN[0], TEN[1]), unreadable("c2.yaml"))
    assert len(bench.pictures.rejections()) == 3, "it is said at once"
    bench.tell(*upserts(TEN[0]), Replace(SOURCE, (), tuple(TEN)), *refused(TEN[1]), Synced(SOURCE))
    assert bench.pictures.rejections() == (*refused(TEN[1]),)


def test_a_rejection_before_the_first_full_picture_stands_after_it() -> None:
    bench = Bench()
    bench.restore(*TEN)
    changed = config("c0", version="2")
    (rejection,) = refused(TEN[0])
    bench.tell(Replace(SOURCE, (), (changed, *TEN[1:])), rejection)
    bench.tell(Synced(SOURCE))
    assert bench.in_force()[item_key(changed)] is changed
    assert bench.pictures.rejections() == (rejection,)


def test_refused_objects_are_no_loss() -> None:
    bench = Bench()
    bench.restore(*TEN)
    admitted = bench.tell(Replace(SOURCE, (), ()), *refused(*TEN), Synced(SOURCE))
    assert not admitted.holds
    assert len(bench.in_force()) == 10
    assert len(admitted.renewals[0].leftovers) == 10
    admitted = bench.tell(*(readable(f"c{n}.yaml") for n in range(10)))
    admitted = bench.tell(after=GRACE_SECONDS)
    assert [change.step for change in admitted.holds] == [HoldStep.BEGUN], "then the files went, all at once"


# -- properties

NAMES = st.sampled_from([f"n{n}" for n in range(8)])
ITEMS = st.one_of(
    st.builds(config, NAMES, version=st.sampled_from("12"), kind=st.sampled_from(["VirtualService", "Sidecar"])),
    st.builds(endpoints, NAMES, st.integers(0, 2)),
)
COLLECTIONS = st.sampled_from([(), ("config",), ("config", "Sidecar"), ("endpoints",)])


@st.composite
def replaces(draw: st.DrawFn) -> Event:
    collection = draw(COLLECTIONS)
    items = {item_key(item): item for item in draw(st.lists(ITEMS, max_size=10))}
    return Replace(SOURCE, collection, tuple(i for key, i in items.items() if key[: len(collection)] == collection))


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Upsert, st.just(SOURCE), ITEMS),
    st.builds(lambda item: Delete(SOURCE, item_key(item)), ITEMS),
    replaces(),
)
BATCHES = st.lists(EVENTS, max_size=12)


@given(st.lists(st.lists(EVENTS | st.just(Synced(SOURCE)) | st.just(Confirmed(SOURCE)), max_size=12), max_size=10))
def test_without_guards_and_restored_pictures_all_is_as_told(batches: list[list[Event]]) -> None:
    bench = Bench(guard=None)
    for batch in batches:
        bench.tell(*batch)
        assert bench.in_force() == bench.said() == bench.shadow


@given(st.lists(ITEMS, max_size=10), st.lists(BATCHES, max_size=5), BATCHES)
def test_a_restored_picture_is_replaced_in_one_step(
    kept: list[Item], batches: list[list[Event]], last: list[Event]
) -> None:
    bench = Bench(guard=None)
    bench.restore(*kept)
    before = bench.in_force()
    for batch in batches:
        bench.tell(*batch)
        assert bench.in_force() == before
    bench.tell(*last, Synced(SOURCE))
    assert bench.in_force() == bench.said() == bench.shadow


def there(items: Mapping[Key, Item]) -> set[Key]:
    return {key for key, item in items.items() if not isinstance(item, Endpoints) or item.endpoints}


class GuardedSource(RuleBasedStateMachine):
    """A guarded source says anything, and time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()

    @initialize(items=st.lists(ITEMS, max_size=16), is_restored=st.booleans())
    def begin(self, items: list[Item], is_restored: bool) -> None:
        if is_restored:
            self.bench.restore(*items)
        self.bench.begin(*items)

    @rule(batch=BATCHES, after=st.sampled_from([0.0, 1.0, 20.0, 31.0, 121.0]))
    def change(self, batch: list[Event], after: float) -> None:
        self.bench.tell(*batch, after=after)

    @rule()
    def empty(self) -> None:
        self.bench.tell(Replace(SOURCE, (), ()))

    @rule(batch=BATCHES)
    def begin_again(self, batch: list[Event]) -> None:
        self.bench.tell(Replace(SOURCE, (), tuple(self.bench.said().values())), *batch, Synced(SOURCE))

    @rule(batch=BATCHES)
    def accept(self, batch: list[Event]) -> None:
        self.bench.tell(*batch, Confirmed(SOURCE))
        assert self.bench.in_force() == self.bench.said()

    @rule()
    def recover(self) -> None:
        """All that is held comes back."""
        held = self.bench.held()
        self.bench.tell(*upserts(*(item for key, item in self.bench.in_force().items() if key in held)))
        assert self.bench.in_force() == self.bench.said()

    @invariant()
    def all_that_is_said_is_in_force_and_all_that_is_held(self) -> None:
        in_force, said, held = self.bench.in_force(), self.bench.said(), self.bench.held()
        assert there(in_force) == there(said) | held
        assert not there(said) & held
        assert {key: item for key, item in in_force.items() if key not in held} == {
            key: item for key, item in said.items() if key not in held
        }

    @invariant()
    def changes_tell_what_is_in_force(self) -> None:
        assert self.bench.shadow == self.bench.in_force()

    @invariant()
    def counts_are_those_of_the_source(self) -> None:
        (guard,) = self.bench.intake._guards.values()
        found = there(self.bench.said())
        assert guard._count(("endpoints", "")).now == sum(key[0] == "endpoints" for key in found)
        assert guard._count(OBJECTS_OF_ALL).now == sum(key[0] != "endpoints" for key in found)
        for sort, count in guard._counts.items():
            assert count.held == sum(sort in sorts_of(key) for key in guard.held)
        assert {key for hold in guard._holds.values() for key in hold.keys} == {*guard.held}


TestGuardedSource = GuardedSource.TestCase
TestGuardedSource.settings = settings(max_examples=examples(100), stateful_step_count=20, deadline=None)


# -- a restart changes nothing

LOCATIONS = ("a.yaml", "b.yaml", "c.yaml")
OBJECTS = {location: [f"{location[0]}{n}" for n in range(3)] for location in LOCATIONS}


class Feed:
    """A source of files, as its published state makes events of readings; and what it read last, for a restart."""

    def __init__(self) -> None:
        self.state = PublishedState[str](SOURCE, Precedence.LOWEST)
        self.read: dict[str, LocationContent | str] = {}

    def update(self, location: str, content: LocationContent | str | None) -> list[Event]:
        """Content, the reason why there is none, or None: the location is gone."""
        if content is None:
            self.read.pop(location, None)
            return self.state.drop(location)
        self.read[location] = content
        if isinstance(content, str):
            return self.state.refuse(location, (Problem("", content),))
        return self.state.update({location: content})

    def restart(self) -> list[Event]:
        """A new process reads all that there is now."""
        self.state = PublishedState[str](SOURCE, Precedence.LOWEST)
        for location, content in self.read.items():
            self.update(location, content)
        return [*self.state.announce(), Synced(SOURCE)]


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, LocationContent | str | None]:
    """A location, and what is there now: good and bad objects, garbage, nothing."""
    location = draw(st.sampled_from(LOCATIONS))
    if draw(st.integers(0, 3)) == 0:
        return location, draw(st.sampled_from(["is not YAML", None]))
    objects: dict[Key, ValidObject | InvalidObject | UnseenObject] = {}
    for name in OBJECTS[location]:
        made = config(name, file=location, version=draw(st.sampled_from("12")))
        key = item_key(made)
        match draw(st.sampled_from(["good", "bad", "absent"])):
            case "good":
                objects[key] = ValidObject(key, made)
            case "bad":
                objects[key] = InvalidObject((Problem("", "is bad"),), key)
    return location, LocationContent(objects)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(contents() | st.just("restart") | st.just("restart in pieces"), max_size=25))
def test_a_restart_changes_nothing_that_is_served(steps: list[tuple[str, LocationContent | str | None] | str]) -> None:
    steady, feed = Feed(), Feed()
    without, bench = Bench(guard=None), Bench(guard=None)
    for each, source in ((without, steady), (bench, feed)):
        each.tell(*source.restart())
    for step in steps:
        if isinstance(step, str):
            picture = bench.in_force().values()
            bench = Bench(guard=None)
            bench.restore(*picture)
            events = feed.restart()
            for batch in [[event] for event in events] if step == "restart in pieces" else [events]:
                bench.tell(*batch, after=0.1)
        else:
            without.tell(*steady.update(*step))
            for event in feed.update(*step):
                bench.tell(event, after=0.1)
        bench.tell(after=GRACE_SECONDS)
        assert bench.in_force() == without.in_force()
