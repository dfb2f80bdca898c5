"""Snapshots: equal ones are one object, and what differs is found, whichever way one came from the other."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.engine.snapshots import (
    EMPTY,
    FEW_NAMES,
    MAX_ANCESTORS,
    NO_NAMES,
    RETAINED_TRIMS,
    Join,
    Selection,
    Snapshot,
    SnapshotStore,
    WeightedLru,
    joined,
    snapshot_of,
)
from mesh_pilot.model.resource import CLUSTER, Resource, make_resource

NAMES = [f"name-{number}" for number in range(30)]


def resource(name: str, content: str = "0") -> Resource:
    return make_resource(name, CLUSTER, content.encode())


class Counted(dict[str, Resource]):
    """Counts how often somebody walks through all of it."""

    walks = 0

    def items(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().items()


edits = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from("123"), max_size=12),
        st.frozensets(st.sampled_from(NAMES), max_size=12),
    ),
    max_size=6,
)


def edited(store: SnapshotStore, base: Snapshot, steps: list[tuple[dict[str, str], frozenset[str]]]) -> Snapshot:
    for puts, drops in steps:
        base = store.edit(base, [resource(*put) for put in puts.items()], drops - puts.keys())
    return base


def differing(before: Snapshot, after: Snapshot) -> set[str]:
    return {name for name in before.names | after.names if before.entries.get(name) != after.entries.get(name)}


@given(edits, edits, edits)
def test_what_differs_is_found_on_any_two_branches(
    trunk: list[tuple[dict[str, str], frozenset[str]]],
    one: list[tuple[dict[str, str], frozenset[str]]],
    other: list[tuple[dict[str, str], frozenset[str]]],
) -> None:
    store = SnapshotStore()
    base = edited(store, EMPTY, trunk)
    before, after = edited(store, base, one), edited(store, base, other)
    assert store.diff(before, after) == store.diff(after, before) == differing(before, after)
    assert before.digest == snapshot_of(before.entries.values()).digest
    assert (before is after) == (dict(before.entries) == dict(after.entries))


def test_a_small_change_in_a_large_set_is_found_without_a_walk() -> None:
    store = SnapshotStore()
    base = store.add(snapshot_of(resource(f"name-{number}") for number in range(1000)))
    latest = base
    for number in range(MAX_ANCESTORS):
        latest = store.edit(latest, [resource(f"name-{number}", "new")])
    watched = Snapshot(latest.digest, Counted(latest.entries), latest.history)
    Counted.walks = 0
    assert store.diff(base, watched) == {f"name-{number}" for number in range(MAX_ANCESTORS)}
    assert Counted.walks == 0
    further = store.edit(latest, [resource("name-999", "new")])
    further = Snapshot(further.digest, Counted(further.entries), further.history)
    assert len(store.diff(base, further)) == MAX_ANCESTORS + 1
    assert Counted.walks == 1, "too far back for the history"


def test_a_large_change_is_no_part_of_the_history() -> None:
    store = SnapshotStore()
    base = store.add(snapshot_of(resource(name) for name in NAMES))
    assert store.edit(base, [resource(name, "new") for name in NAMES[:FEW_NAMES]]).history
    assert not store.edit(base, [resource(name, "new") for name in NAMES[: FEW_NAMES + 1]]).history


@given(st.lists(st.tuples(st.sampled_from((0, 1, 2)), st.sampled_from(NAMES), st.sampled_from("012")), max_size=30))
def test_a_join_is_what_its_parts_are(steps: list[tuple[int, str, str]]) -> None:
    store = SnapshotStore()
    join = Join(store, joined)
    parts: dict[int, Snapshot] = {0: EMPTY, 1: EMPTY, 2: EMPTY}
    before = join.of(dict(parts))
    for at, name, content in steps:
        if content == "0":
            parts[at] = store.edit(parts[at], (), [f"{at}{name}"])
        else:
            parts[at] = store.edit(parts[at], [resource(f"{at}{name}", content)])
        after = join.of(dict(parts))
        assert after.digest == snapshot_of(after.entries.values()).digest
        assert set(after.entries.values()) == {r for part in parts.values() for r in part.entries.values()}
        assert store.diff(before, after) == differing(before, after) <= {f"{at}{name}"}
        assert after is Join(store, joined).of(dict(parts)), "equal joins are one object"
        before = after
    assert join.of(dict(parts)) is before


@given(edits, st.lists(st.frozensets(st.sampled_from(NAMES)), min_size=1))
def test_a_selection_follows_the_table_and_the_names(
    steps: list[tuple[dict[str, str], frozenset[str]]], wishes: list[frozenset[str]]
) -> None:
    store = SnapshotStore()
    selection, table = Selection(store), EMPTY
    for step in steps:
        table = edited(store, table, [step])
        for wish in wishes:
            found = selection.of(table, store.names(wish))
            assert dict(found.entries) == {n: r for n, r in table.entries.items() if n in wish}
            assert found.digest == snapshot_of(found.entries.values()).digest
    assert selection.of(table, store.names(NAMES)) is table, "all of a table is the table"


def test_a_join_whose_parts_have_a_name_in_common_is_not_taken_for_a_selection() -> None:
    """A name may be generated on demand in one part and be planned in another later."""
    store = SnapshotStore()
    one, other = (store.edit(EMPTY, [resource("a"), resource(name)]) for name in "bc")
    table = Join(store, joined).of({0: one, 1: other})
    found = Selection(store).of(table, frozenset("abc"))
    assert found.digest == snapshot_of(found.entries.values()).digest
    assert found.names == frozenset("abc")


def test_snapshots_and_names_go_when_nobody_uses_them() -> None:
    store = SnapshotStore()
    snapshot = store.edit(EMPTY, [resource("a")])
    assert store.edit(EMPTY, [resource("a")]) is snapshot
    assert store.lookup(snapshot.version) is snapshot
    assert store.lookup("not a version") is None
    names = store.names(["a", "b"])
    assert store.names(("b", "a")) is names
    version = snapshot.version
    del snapshot, names
    gc.collect()
    assert store.lookup(version) is None
    assert not store._names


def test_what_a_client_had_is_retained_for_a_few_trims() -> None:
    store = SnapshotStore()
    version = store.edit(EMPTY, [resource("a")]).version
    store.retain(store.edit(EMPTY, [resource("a")]))
    for _ in range(RETAINED_TRIMS - 1):
        assert store.trim() == 0
        assert store.lookup(version) is not None
    assert store.trim() == 1
    gc.collect()
    assert store.lookup(version) is None


# -- the cache


class Calls:
    """A function of a set of names that counts its calls."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, names: frozenset[int]) -> int:
        self.sizes.append(len(names))
        return 2 * len(names)


def of(size: int) -> frozenset[int]:
    return frozenset(range(size))


def test_a_result_is_worked_out_once_for_equal_arguments() -> None:
    cache, double = WeightedLru(), Calls()
    assert [cache.call(double, of(n)) for n in (3, 4, 3)] == [6, 8, 6]
    assert double.sizes == [3, 4]


def test_the_least_recently_used_result_goes_first() -> None:
    cache, double = WeightedLru(100), Calls()
    for size in (50, 40, 50, 20, 50):
        cache.call(double, of(size))
    assert double.sizes == [50, 40, 20]
    cache.call(double, of(40))
    assert double.sizes == [50, 40, 20, 40]


def test_a_result_that_is_too_large_is_cached_alone() -> None:
    cache, double = WeightedLru(100), Calls()
    for size in range(10):
        cache.call(double, of(size))
    assert repr(cache) == "<WeightedLru 10 results, 55 names>"
    cache.call(double, of(300))
    assert repr(cache) == "<WeightedLru 1 results, 301 names>"


def test_results_are_forgotten_unless_they_are_used_between_two_trims() -> None:
    cache, double = WeightedLru(), Calls()
    for size in (1, 2):
        cache.call(double, of(size))
    assert cache.trim() == 0
    cache.call(double, of(1))
    assert cache.trim() == 3
    cache.call(double, of(1))
    cache.call(double, of(2))
    assert double.sizes == [1, 2, 2]
    cache.clear()
    assert repr(cache) == "<WeightedLru 0 results, 0 names>"


def test_a_store_shares_what_it_works_out() -> None:
    store, double = SnapshotStore(), Calls()
    assert store.shared(double, of(3)) == store.shared(double, of(3)) == 6
    assert double.sizes == [3]
    assert store.diff(EMPTY, EMPTY) is NO_NAMES
