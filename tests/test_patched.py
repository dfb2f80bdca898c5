"""Patched copies: equal to plain ones after any edits, and what they cost does not depend on how large they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.engine import patched as module
from mesh_pilot.engine.patched import PatchedMapping, PatchedSet, flat, is_akin, moved, patched, patched_set
from mesh_pilot.engine.snapshots import NO_NAMES, Lacking, SnapshotStore, snapshot_of
from mesh_pilot.model.resource import CLUSTER, make_resource

MANY = [f"name-{number}" for number in range(module.SMALL + 40)]
NAMES = MANY[30:50] + [f"other-{number}" for number in range(10)]

edits = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), max_size=5),
        st.frozensets(st.sampled_from(NAMES), max_size=5),
    ),
    max_size=8,
)


@given(edits)
def test_a_patched_mapping_is_what_a_plain_one_would_be(steps: list[tuple[dict[str, int], frozenset[str]]]) -> None:
    plain = dict.fromkeys(MANY, 7)
    kept = [(plain, patched(plain, {}, ()))]
    for puts, drops in steps:
        last, made = kept[-1]
        now = {name: value for name, value in last.items() if name not in drops} | puts
        kept.append((now, patched(made, puts, drops)))
    for expected, made in kept:
        assert dict(made.items()) == expected == {name: made[name] for name in made}
        assert len(made) == len(expected) and sorted(made.values()) == sorted(expected.values())
        assert {name for name in (*MANY, *NAMES) if name in made} == expected.keys()
        assert all(made.get(name) == expected.get(name) for name in NAMES)


@given(edits)
def test_a_patched_set_is_what_a_plain_one_would_be(steps: list[tuple[dict[str, int], frozenset[str]]]) -> None:
    store = SnapshotStore()
    kept = [(frozenset(MANY), store.names(MANY))]
    for puts, drops in steps:
        last, made = kept[-1]
        fewer = drops - puts.keys()
        kept.append(((last - fewer) | puts.keys(), store.renamed(made, frozenset(puts), fewer)))
    for expected, made in kept:
        assert frozenset(made) == flat(made) == expected and len(made) == len(expected)
        assert store.names(expected) is made, "who requests the same names has the same object"
        for other, names in kept:
            assert moved(made, names) == expected ^ other


def test_a_set_that_is_as_it_was_is_the_same_object() -> None:
    names = frozenset(MANY)
    more = patched_set(names, {"new"}, {MANY[0]})
    assert isinstance(more, PatchedSet) and is_akin(names, more)
    assert patched_set(more, {MANY[0]}, {"new"}) is names


def test_after_many_changes_a_copy_is_plain() -> None:
    mapping, sizes = patched(dict.fromkeys(map(str, range(10_000)), 1), {}, ()), []
    for number in range(300):
        mapping = patched(mapping, {f"new-{number}": 1}, ())
        sizes.append(len(mapping._changes) if isinstance(mapping, PatchedMapping) else 0)
    assert len(mapping) == 10_300 and max(sizes) < 150
    assert sizes.count(0) == 2


@pytest.mark.parametrize("size", [200, 20_000])
def test_what_a_table_lacks_is_found_by_what_changed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore()
    lacking = Lacking(store)
    table = store.edit(snapshot_of(()), [make_resource(f"s{n}", CLUSTER, b"0") for n in range(size)])
    names = store.names(["gone", *(f"s{n}" for n in range(size))])
    assert lacking.of(table, names) == {"gone"}
    for owner in (PatchedMapping, PatchedSet):
        monkeypatch.setattr(owner, "flat", lambda self: pytest.fail("all of it was walked through"))
    more = store.renamed(names, {"new"}, NO_NAMES)
    assert lacking.of(table, more) == {"gone", "new"}
    assert lacking.of(store.edit(table, [make_resource("new", CLUSTER, b"0")], ["s7"]), more) == {"gone", "s7"}
    assert lacking.of(table, names) == {"gone"}
