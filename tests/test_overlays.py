"""Overlays of a memo table: values as if some cells had others, shared wherever nothing differs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.engine import Index, Memo, MemoOverlay, Watch, derived


class Table:
    """A view with one index of numbers, of a memo table or of an overlay."""

    def __init__(self, layer: Memo | MemoOverlay | None = None) -> None:
        self.memo = layer or Memo()
        self.numbers: Index[str, int] = self.memo.index("numbers", 0)
        self.memo.view = self
        self.calls: list[Any] = []

    def overlay(self) -> Table:
        assert isinstance(self.memo, Memo)
        return Table(MemoOverlay(self.memo))


@derived
def total(view: Table, *keys: str) -> int:
    view.calls.append(("total", keys))
    return sum(view.numbers.read(k) for k in keys)


@derived
def doubled(view: Table, *keys: str) -> int:
    view.calls.append(("doubled", keys))
    return total(view, *keys) * 2


def test_an_overlay_without_differences_computes_nothing() -> None:
    view = Table()
    view.numbers["a"] = 1
    assert doubled(view, "a") == 2
    overlay = view.overlay()
    assert doubled(overlay, "a") == 2
    assert overlay.calls == []


def test_only_values_that_read_a_differing_cell_are_computed_for_the_overlay() -> None:
    view = Table()
    view.numbers["a"] = view.numbers["b"] = 1
    overlay = view.overlay()
    overlay.numbers["a"] = 5
    assert (doubled(view, "a"), doubled(view, "b")) == (2, 2)
    assert (doubled(overlay, "a"), doubled(overlay, "b")) == (10, 2)
    assert overlay.calls == [("doubled", ("a",)), ("total", ("a",))]


def test_a_difference_that_ends_gives_the_value_of_the_table_back() -> None:
    view = Table()
    overlay = view.overlay()
    overlay.numbers["a"] = 5
    assert doubled(overlay, "a") == 10
    view.numbers["a"] = 5
    overlay.calls.clear()
    assert doubled(overlay, "a") == 10
    assert overlay.calls == []


def test_without_an_overlay_a_change_computes_what_it_always_did() -> None:
    view = Table()
    doubled(view, "a")
    overlay = view.overlay()
    overlay.numbers["a"] = 5
    doubled(overlay, "a")
    overlay.memo.close()
    doubled(view, "a")
    view.calls.clear()
    view.numbers["a"] = 3
    assert doubled(view, "a") == 6
    assert view.calls == [("total", ("a",)), ("doubled", ("a",))]
    assert view.memo.statistics().derived == 2


def test_a_reader_of_an_overlay_that_has_ended_gets_the_values_of_the_table() -> None:
    view = Table()
    overlay = view.overlay()
    overlay.numbers["a"] = 5
    told: list[bool] = []
    watch = Watch(overlay.memo, lambda: told.append(True))
    assert watch.get(doubled.query("a")) == 10
    overlay.memo.close()
    assert told == [True]
    assert [watch.get(query) for query in watch.take()] == [0]
    view.numbers["a"] = 2
    assert [watch.get(query) for query in watch.take()] == [4]
    watch.close()
    view.memo.collect()
    assert view.memo.statistics().derived == 0


KEYS = ("a", "b", "c")


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


class Layer:
    """The table or an overlay, next to what it should hold."""

    def __init__(self, view: Table, values: dict[str, int]) -> None:
        self.view = view
        self.values = values
        self.own: dict[str, int] = {}
        """The cells that are not those of the table."""
        self.told = False
        self.watched: dict[tuple[str, str], tuple[int, int]] = {}
        self.watch = Watch(view.memo, self.tell)

    def tell(self) -> None:
        self.told = True

    def catch_up(self) -> None:
        self.told = False
        for _, args in self.watch.take():
            self.watched[args] = self.watch.get(root.query(*args))


class Layered(RuleBasedStateMachine):
    """Whatever is written, read and watched in whatever layer: values are those of a fresh table with its cells."""

    @initialize()
    def start(self) -> None:
        self.base = Layer(Table(), {})
        self.overlays: list[Layer] = []

    def layer(self, number: int) -> Layer:
        return [self.base, *self.overlays][number % (len(self.overlays) + 1)]

    @rule()
    def open(self) -> None:
        if len(self.overlays) < 3:
            self.overlays.append(Layer(self.base.view.overlay(), dict(self.base.values)))

    @rule(number=st.integers(0, 2))
    def close(self, number: int) -> None:
        if self.overlays:
            layer = self.overlays.pop(number % len(self.overlays))
            assert isinstance(layer.view.memo, MemoOverlay)
            layer.view.memo.close()
            layer.watch.close()

    @rule(key=st.sampled_from(KEYS), value=st.integers(0, 9))
    def write(self, key: str, value: int) -> None:
        for layer in (self.base, *self.overlays):
            if key not in layer.own:
                layer.values[key] = value
                layer.view.numbers[key] = value

    @rule(number=st.integers(0, 2), key=st.sampled_from(KEYS), value=st.integers(0, 9))
    def differ(self, number: int, key: str, value: int) -> None:
        if self.overlays:
            layer = self.overlays[number % len(self.overlays)]
            layer.own[key] = layer.values[key] = value
            layer.view.numbers[key] = value

    @rule(number=st.integers(0, 2), key=st.sampled_from(KEYS))
    def agree(self, number: int, key: str) -> None:
        if self.overlays:
            layer = self.overlays[number % len(self.overlays)]
            layer.own.pop(key, None)
            layer.values[key] = self.base.values.get(key, 0)
            layer.view.numbers[key] = layer.values[key]

    @rule(number=st.integers(0, 3), left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def read(self, number: int, left: str, right: str) -> None:
        layer = self.layer(number)
        assert root(layer.view, left, right) == fresh(layer.values, left, right)

    @rule(number=st.integers(0, 3), left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def look(self, number: int, left: str, right: str) -> None:
        layer = self.layer(number)
        layer.watched[(left, right)] = layer.watch.get(root.query(left, right))

    @rule(number=st.integers(0, 3), left=st.sampled_from(KEYS), right=st.sampled_from(KEYS))
    def look_away(self, number: int, left: str, right: str) -> None:
        layer = self.layer(number)
        layer.watch.drop(root.query(left, right))
        layer.watched.pop((left, right), None)

    @rule()
    def collect(self) -> None:
        assert isinstance(self.base.view.memo, Memo)
        self.base.view.memo.collect()

    @rule(number=st.integers(0, 3))
    def catch_up(self, number: int) -> None:
        self.layer(number).catch_up()

    @invariant()
    def an_untold_watch_is_up_to_date(self) -> None:
        for layer in (self.base, *self.overlays):
            if not layer.told:
                assert layer.watched == {k: fresh(layer.values, *k) for k in layer.watched}


TestLayered = Layered.TestCase
