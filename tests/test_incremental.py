from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.engine import CycleError, Index, Memo, Watch, derived


class Table:
    """A view with one index of numbers."""

    def __init__(self) -> None:
        self.memo = Memo()
        self.numbers: Index[str, int] = self.memo.index("numbers", 0)
        self.memo.view = self
        self.calls: list[Any] = []


@derived
def total(view: Table, *keys: str) -> int:
    view.calls.append(("total", keys))
    return sum(view.numbers.read(k) for k in keys)


@derived
def is_even(view: Table, *keys: str) -> bool:
    view.calls.append(("is_even", keys))
    return total(view, *keys) % 2 == 0


@derived
def described(view: Table, *keys: str) -> str:
    view.calls.append(("described", keys))
    return "even" if is_even(view, *keys) else "odd"


def test_a_value_is_computed_once_while_what_it_read_stays() -> None:
    view = Table()
    assert described(view, "a") == "even"
    view.calls.clear()
    assert described(view, "a") == "even"
    assert view.calls == []


def test_a_change_elsewhere_computes_nothing() -> None:
    view = Table()
    described(view, "a")
    view.calls.clear()
    view.numbers["b"] = 1
    assert described(view, "a") == "even"
    assert view.calls == []


def test_an_equal_result_stops_the_change_from_going_up() -> None:
    view = Table()
    described(view, "a")
    view.calls.clear()
    view.numbers["a"] = 2
    assert described(view, "a") == "even"
    assert [name for name, _ in view.calls] == ["total", "is_even"]
    assert view.memo.statistics().cut_off == 1


def test_writing_an_equal_value_is_no_change() -> None:
    view = Table()
    view.numbers["a"] = 3
    described(view, "a")
    stale: list[str] = []
    watch = Watch(view.memo, lambda: stale.append("stale"))
    watch.get(described.query("a"))
    view.numbers["a"] = 3
    assert stale == []


def test_a_missing_key_is_a_read_too() -> None:
    view = Table()
    assert total(view, "nobody") == 0
    view.numbers["nobody"] = 7
    assert total(view, "nobody") == 7
    del view.numbers["nobody"]
    assert total(view, "nobody") == 0


def test_reads_are_those_of_the_last_call() -> None:
    @derived
    def chosen(view: Table) -> int:
        view.calls.append("chosen")
        return view.numbers.read("b" if view.numbers.read("which") else "a")

    view = Table()
    chosen(view)
    view.numbers["which"] = 1
    chosen(view)
    view.calls.clear()
    view.numbers["a"] = 5
    assert chosen(view) == 0
    assert view.calls == []


def test_a_read_that_no_longer_applies_is_not_computed_first() -> None:
    @derived
    def fragile(view: Table) -> float:
        view.calls.append("fragile")
        return 1 / view.numbers.read("divisor")

    @derived
    def guarded(view: Table) -> float:
        return fragile(view) if view.numbers.read("divisor") else -1.0

    view = Table()
    view.numbers["divisor"] = 2
    assert guarded(view) == 0.5
    view.calls.clear()
    view.numbers["divisor"] = 0
    assert guarded(view) == -1.0
    assert view.calls == []


def test_an_error_is_remembered_until_a_read_changes() -> None:
    @derived
    def inverse(view: Table) -> float:
        view.calls.append("inverse")
        return 1 / view.numbers.read("x")

    view = Table()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            inverse(view)
    assert view.calls == ["inverse"]
    view.numbers["x"] = 4
    assert inverse(view) == 0.25


def test_a_value_that_needs_itself_is_an_error_and_recovers() -> None:
    @derived
    def loop(view: Table) -> int:
        return loop(view) + 1 if view.numbers.read("loop") else 0

    view = Table()
    view.numbers["loop"] = 1
    with pytest.raises(CycleError, match="needs itself"):
        loop(view)
    view.numbers["loop"] = 0
    assert loop(view) == 0


def test_a_value_that_needs_itself_leaves_nothing_behind() -> None:
    @derived
    def loop(view: Table) -> int:
        return total(view, "a", "b") + loop(view)

    view = Table()
    with pytest.raises(CycleError, match="needs itself"):
        loop(view)
    view.memo.collect()
    statistics = view.memo.statistics()
    assert (statistics.derived, statistics.cells) == (0, 0)


def test_a_call_that_was_interrupted_is_made_again() -> None:
    @derived
    def patient(view: Table) -> int:
        if view.numbers.read("a") == 1 and not view.calls:
            view.calls.append("interrupted")
            raise KeyboardInterrupt
        return total(view, "a")

    view = Table()
    assert patient(view) == 0
    view.calls.clear()
    view.numbers["a"] = 1
    with pytest.raises(KeyboardInterrupt):
        patient(view)
    assert patient(view) == 1
    view.numbers["a"] = 2
    assert patient(view) == 2


def test_a_value_with_many_readers_is_held_until_the_last_is_gone() -> None:
    @derived
    def reader(view: Table, number: int) -> int:
        return number + total(view, "a") if number < view.numbers.read("readers") else -1

    view = Table()
    view.numbers["readers"] = 5
    watches = [Watch(view.memo, lambda: None) for _ in range(5)]
    assert [watch.get(reader.query(number)) for number, watch in enumerate(watches)] == [0, 1, 2, 3, 4]
    assert view.memo.statistics().held == {"reader": 5, "total": 1}
    for left in (3, 1, 0):
        view.numbers["readers"] = left
        view.numbers["a"] = 1
        found = [watch.get(reader.query(number)) for number, watch in enumerate(watches)]
        assert found == [number + 1 if number < left else -1 for number in range(5)]
        view.memo.collect()
        assert view.memo.statistics().held == {"reader": 5, **({"total": 1} if left else {})}


def test_a_write_while_computing_is_refused() -> None:
    @derived
    def meddle(view: Table) -> int:
        view.numbers["a"] = view.numbers.read("a") + 1
        return 0

    with pytest.raises(RuntimeError, match="was written while"):
        meddle(Table())


def test_a_watch_is_told_once_until_it_takes() -> None:
    view = Table()
    told: list[int] = []
    watch = Watch(view.memo, lambda: told.append(1))
    watch.get(total.query("a"))
    watch.get(total.query("b"))
    view.numbers["a"] = 1
    view.numbers["b"] = 1
    assert len(told) == 1
    assert sorted(watch.take(), key=str) == [(total, ("a",)), (total, ("b",))]
    assert (watch.get(total.query("a")), watch.get(total.query("b"))) == (1, 1)
    view.numbers["a"] = 2
    assert len(told) == 2
    assert watch.take() == [(total, ("a",))]


def test_a_closed_or_dropped_watch_hears_nothing() -> None:
    view = Table()
    told: list[int] = []
    watch = Watch(view.memo, lambda: told.append(1))
    watch.get(total.query("a"))
    watch.get(total.query("b"))
    watch.drop(total.query("a"))
    view.numbers["a"] = 1
    assert told == []
    watch.close()
    view.numbers["b"] = 1
    assert told == []


def test_what_nobody_reads_is_forgotten_and_what_is_watched_stays() -> None:
    view = Table()
    watch = Watch(view.memo, lambda: None)
    watch.get(described.query("kept"))
    described(view, "dropped")
    assert view.memo.collect() == 3
    assert view.memo.statistics().derived == 3
    view.calls.clear()
    assert watch.get(described.query("kept")) == "even"
    assert view.calls == []
    watch.close()
    view.memo.collect()
    statistics = view.memo.statistics()
    assert (statistics.derived, statistics.cells) == (0, 0)


def test_a_value_can_be_explained() -> None:
    view = Table()
    watch = Watch(view.memo, lambda: None)
    watch.get(described.query("a", "b"))
    view.numbers["b"] = 1
    stale = view.memo.explain("described", containing="'b'")
    assert [(e.query, e.state, e.reads) for e in stale] == [("described('a', 'b')", "stale", ("is_even('a', 'b')",))]
    watch.get(described.query("a", "b"))
    (even,) = view.memo.explain("is_even")
    assert (even.state, even.cause, even.readers) == ("fresh", "total('a', 'b')", ("described('a', 'b')",))
    (sum_,) = view.memo.explain("total")
    assert (sum_.cause, sum_.reads) == ("<numbers['b']>", ("<numbers['a']>", "<numbers['b']>"))
    assert view.memo.explain("described")[0].readers == ("<Watch of 1 values>",)
    assert view.memo.explain("total", containing="zzz") == view.memo.explain("nothing") == []


KEYS = ("a", "b", "c", "d")


@derived
def leaf(view: Table, key: str) -> int:
    return view.numbers.read(key) // 2


@derived
def branch(view: Table, left: str, right: str) -> int:
    return leaf(view, left) if leaf(view, right) % 2 else leaf(view, right) + view.numbers.read(left)


@derived
def root(view: Table, left: str, right: str) -> tuple[int, int]:
    return (branch(view, left, right) // 3, branch(view, right, left) // 3)


def fresh(values: dict[str, int], left: str, right: str) -> tuple[int, int]:
    view = Table()
    for key, value in values.items():
        view.numbers[key] = value
    found: tuple[int, int] = root(view, left, right)
    return found


class Incremental(RuleBasedStateMachine):
    """Whatever is written, read, watched and collected in whatever order: values are those of a fresh table."""

    @initialize()
    def start(self) -> None:
        self.view = Table()
        self.values: dict[str, int] = {}
        self.told = False
        self.watch = Watch(self.view.memo, self.tell)
        self.watched: dict[tuple[str, str], tuple[int, int]] = {}

    def tell(self) -> None:
        self.told = True

    @rule(key=st.sampled_from(KEYS), value=st.integers(0, 9))
    def write(self, key: str, value: int) -> None:
        self.values[key] = value
        self.view.numbers[key] = value

    @rule(left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def read(self, left: str, right: str) -> None:
        assert root(self.view, left, right) == fresh(self.values, left, right)

    @rule(left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def look(self, left: str, right: str) -> None:
        self.watched[(left, right)] = self.watch.get(root.query(left, right))

    @rule(left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def look_away(self, left: str, right: str) -> None:
        self.watch.drop(root.query(left, right))
        self.watched.pop((left, right), None)

    @rule()
    def collect(self) -> None:
        self.view.memo.collect()

    @rule()
    def catch_up(self) -> None:
        self.told = False
        for _, args in self.watch.take():
            self.watched[args] = self.watch.get(root.query(*args))

    @invariant()
    def an_untold_watch_is_up_to_date(self) -> None:
        if not self.told:
            assert self.watched == {k: fresh(self.values, *k) for k in self.watched}


TestIncremental = Incremental.TestCase


@derived
def raising(view: Table, *keys: str) -> int:
    return 1 // total(view, *keys)


@derived
def reading_it(view: Table, *keys: str) -> int:
    try:
        raise LookupError("an earlier one")
    except LookupError:
        return raising(view, *keys)


def test_an_error_says_where_it_happened_and_keeps_no_frames() -> None:
    view = Table()
    watch = Watch(view.memo, lambda: None)
    texts = set()
    for _ in range(20):
        with pytest.raises(ZeroDivisionError) as caught:
            watch.get(reading_it.query("a"))
        error = caught.value
        assert len(list(traceback.walk_tb(error.__traceback__))) < 5, "frames do not pile up"
        (note,) = error.__notes__
        texts.add(note)
    (text,) = texts
    assert text.startswith("Traceback (most recent call last):")
    assert "in raising" in text
    assert "return 1 // total(view, *keys)" in text
    del caught
    error.__traceback__ = None
    earlier = error.__context__
    assert earlier is None or earlier.__traceback__ is None
