"""The published state of a source: whatever is read in whatever order, its events lead to what it holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import Accepted, Delete, Event, Item, Rejected, Replace, Secret, Upsert, item_key
from mesh_pilot.sources.base.published import (
    InvalidObject,
    Key,
    LocationContent,
    Precedence,
    PublishedState,
    UnseenObject,
    ValidObject,
)
from mesh_pilot.world import World
from tests.sources.conformance import Picture
from tests.support.sample import examples

PROBLEM = Problem("spec", "is wrong")


def secret(name: str, version: int = 1) -> Secret:
    return Secret(name, "", bytes([version]))


def key(name: str) -> Key:
    return item_key(secret(name))


def rejected(location: str, *problems: Problem, named: str = "") -> Rejected:
    return Rejected("test", Origin("test", location), problems or (PROBLEM,), key(named) if named else None)


@pytest.fixture
def state() -> PublishedState[str]:
    return announced(Precedence.FIRST)


def announced(precedence: Precedence) -> PublishedState[str]:
    state = PublishedState[str]("test", precedence)
    assert state.announce() == [Replace("test", (), ())]
    return state


# -- the life of a location


def test_only_what_differs_is_told(state: PublishedState[str]) -> None:
    assert state.put("a", [secret("x"), secret("y")]) == [Upsert("test", secret("x")), Upsert("test", secret("y"))]
    assert state.put("a", [secret("x"), secret("y")]) == []
    assert state.put("a", [secret("y", 2)]) == [Upsert("test", secret("y", 2)), Delete("test", key("x"))]
    assert state.drop("a") == [Delete("test", key("y"))]
    assert state.drop("a") == []
    assert repr(state) == "<PublishedState of test: 0 items, 0 rejected, announced>"


def test_items_go_in_the_reverse_of_the_order_in_which_they_came(state: PublishedState[str]) -> None:
    state.put("a", [secret("x"), secret("y")])
    assert state.drop("a") == [Delete("test", key("y")), Delete("test", key("x"))]


def test_a_location_that_is_refused_keeps_its_items_until_it_is_good_or_gone(state: PublishedState[str]) -> None:
    state.put("a", [secret("x")])
    assert state.refuse("a", [PROBLEM]) == [rejected("a")]
    assert state.refuse("a", [PROBLEM]) == []
    assert state.items() == (secret("x"),)
    assert state.put("a", [secret("x", 2)]) == [Upsert("test", secret("x", 2)), Accepted("test", "a")]
    state.refuse("a", [PROBLEM])
    assert state.drop("a") == [Delete("test", key("x")), Accepted("test", "a")]


def test_an_object_that_is_refused_by_name_is_rejected_under_its_key(state: PublishedState[str]) -> None:
    state.put("a", [secret("x")])
    assert state.refuse("a", [PROBLEM], key=key("x")) == [rejected("a", named="x")]
    assert state.items() == (secret("x"),)
    assert state.put("a", [secret("x")]) == [Accepted("test", "a")]
    assert state.refuse("b", [PROBLEM], key=key("y")) == [rejected("b", named="y")]
    assert state.drop("b") == [Accepted("test", "b")]


def test_an_item_that_has_problems_is_in_force_nevertheless(state: PublishedState[str]) -> None:
    assert state.put("a", [secret("x")], [PROBLEM]) == [Upsert("test", secret("x")), rejected("a")]
    assert state.put("a", [secret("x")]) == [Accepted("test", "a")]


def test_an_item_that_is_read_at_another_location_is_told_again(state: PublishedState[str]) -> None:
    def config(location: str) -> Config:
        return Config(ConfigKey("VirtualService", "shop", "web"), None, origin=Origin("test", location, 1))

    state.put("a", [config("a")])
    (event,) = state.update({"a": None, "b": LocationContent({k: ValidObject(k, i) for k, i in [pair(config("b"))]})})
    assert isinstance(event, Upsert)
    assert isinstance(event.item, Config)
    assert event.item.origin.location == "b"


# -- several locations


def test_the_first_location_to_hold_an_item_wins_and_the_next_takes_over(state: PublishedState[str]) -> None:
    state.put("b", [secret("x", 1)])
    (event,) = state.put("a", [secret("x", 2)])
    assert isinstance(event, Rejected)
    assert event.problems[0].reason == "/x is already defined at b; this one is ignored until that one goes"
    assert state.put("b", [secret("x", 3)]) == [Upsert("test", secret("x", 3))]
    assert state.drop("b") == [Upsert("test", secret("x", 2)), Accepted("test", "a")]


def test_the_lowest_location_wins_even_when_it_comes_later() -> None:
    state = announced(Precedence.LOWEST)
    state.put("b", [secret("x", 1)])
    events = state.put("a", [secret("x", 2)])
    assert [type(event) for event in events] == [Upsert, Rejected]
    assert state.items() == (secret("x", 2),)


def test_the_location_that_was_read_last_wins_and_nobody_is_a_duplicate() -> None:
    state = announced(Precedence.LATEST)
    state.put("a", [secret("x", 1)])
    assert state.put("b", [secret("x", 2)]) == [Upsert("test", secret("x", 2))]
    assert state.put("a", [secret("x", 3)]) == [Upsert("test", secret("x", 3))]
    assert state.refuse("b", [PROBLEM], key=key("x")) == [rejected("b", named="x")]
    assert state.drop("b") == [Accepted("test", "b")]
    assert state.items() == (secret("x", 3),)


def test_a_location_that_is_refused_keeps_its_rank() -> None:
    state = announced(Precedence.LATEST)
    state.put("a", [secret("x", 1)])
    state.put("b", [secret("x", 2)])
    assert state.refuse("a", [PROBLEM]) == [rejected("a")]


def test_an_object_that_goes_bad_does_not_give_way_to_another_of_its_key(state: PublishedState[str]) -> None:
    state.put("a", [secret("x", 1)])
    state.put("b", [secret("x", 2)])
    state.refuse("a", [PROBLEM], key=key("x"))
    assert state.items() == (secret("x", 1),)
    state.drop("a")
    assert state.items() == (secret("x", 2),)


def test_of_two_bad_objects_of_a_key_the_second_is_a_problem_of_its_location(state: PublishedState[str]) -> None:
    state.refuse("a", [PROBLEM], key=key("x"))
    assert state.refuse("b", [PROBLEM], key=key("x")) == [rejected("b")]
    assert state.drop("a") == [Accepted("test", "a"), Accepted("test", "b"), rejected("b", named="x")]


def test_locations_of_one_description_are_one_to_people() -> None:
    state = PublishedState[tuple[int, str]]("test", Precedence.LATEST, describe=lambda location: location[1])
    state.announce()
    state.refuse((1, "a"), [PROBLEM])
    assert state.refuse((2, "a"), [PROBLEM]) == []
    assert state.rejections() == (rejected("a"),)
    assert state.put((1, "a"), []) == []
    assert state.put((2, "a"), []) == [Accepted("test", "a")]


def test_an_unseen_object_stays_in_force(state: PublishedState[str]) -> None:
    state.put("a", [secret("x")])
    assert state.update({"a": LocationContent({key("x"): UnseenObject()}, (PROBLEM,))}) == [rejected("a")]
    assert state.put("a", [secret("x")]) == [Accepted("test", "a")]


# -- the first picture


def test_nothing_is_told_before_it_is_announced() -> None:
    state = PublishedState[str]("test", Precedence.FIRST)
    assert state.put("a", [secret("x")]) == []
    assert state.refuse("b", [PROBLEM]) == []
    assert state.announce() == [Replace("test", (), (secret("x"),)), rejected("b")]
    state.restart()
    assert state.drop("b") == []
    assert state.announce() == [Replace("test", (), (secret("x"),))]


def pair(item: Item) -> tuple[Key, Item]:
    return item_key(item), item


# -- any sequence of readings

NAMES, LOCATIONS = "xy", "abc"

_objects = st.one_of(
    st.builds(secret, st.sampled_from(NAMES), st.integers(1, 3)),
    st.builds(lambda name: InvalidObject((PROBLEM,), key(name)), st.sampled_from(NAMES)),
    st.builds(lambda name: (key(name), UnseenObject()), st.sampled_from(NAMES)),
)
_some_problems = st.sampled_from([(PROBLEM,), (Problem("", "is broken"),)])
_problems = st.just(()) | _some_problems


def content(
    found: Sequence[Secret | InvalidObject | tuple[Key, UnseenObject]], problems: tuple[Problem, ...]
) -> LocationContent:
    objects: dict[Key, ValidObject | InvalidObject | UnseenObject] = {}
    for each in found:
        match each:
            case Secret():
                objects[item_key(each)] = ValidObject(item_key(each), each)
            case InvalidObject():
                assert each.key is not None
                objects[each.key] = each
            case (named, unseen):
                objects[named] = unseen
    return LocationContent(objects, problems)


_contents = st.builds(content, st.lists(_objects, max_size=3), _problems)
_readings = st.dictionaries(st.sampled_from(LOCATIONS), st.none() | _contents, min_size=1, max_size=3)


class Readings(RuleBasedStateMachine):
    """Any readings; their events are applied to an empty model, and to a World."""

    @initialize(precedence=st.sampled_from(Precedence))
    def start(self, precedence: Precedence) -> None:
        self.precedence = precedence
        self.state = PublishedState[str]("test", precedence, describe=self.describe)
        self.model = Picture()
        self.world = World()
        self.contents: dict[str, LocationContent] = {}
        self.read_at: dict[tuple[Key, str], int] = {}
        """When each location last had a good object of a key; before that, when it first held one."""
        self.clock = 0
        self.take(self.state.announce())

    def describe(self, location: str) -> str:
        """Locations of which the latest wins may be one to people."""
        return "ab" if location in "ab" and self.precedence is Precedence.LATEST else location

    @rule(readings=_readings)
    def update(self, readings: dict[str, LocationContent | None]) -> None:
        before = dict(self.model.items)
        self.note(readings)
        events = self.state.update(readings)
        self.check_that_each_says_something(events)
        self.take(events)
        self.check_that_a_bad_reading_keeps_the_last_good_one(before)
        assert self.state.update(readings) == []

    @rule(location=st.sampled_from(LOCATIONS), problems=_some_problems)
    def refuse(self, location: str, problems: tuple[Problem, ...]) -> None:
        before = dict(self.model.items)
        self.note({location: LocationContent(self.state.content(location).objects, problems)}, is_read=False)
        self.take(self.state.refuse(location, problems))
        assert self.model.items == before

    @rule(readings=_readings)
    def run_again(self, readings: dict[str, LocationContent | None]) -> None:
        self.state.restart()
        self.note(readings)
        assert self.state.update(readings) == []
        self.take(self.state.announce())

    def note(self, readings: dict[str, LocationContent | None], *, is_read: bool = True) -> None:
        for location, found in readings.items():
            self.clock += 1
            for name in NAMES:
                held = found.objects.get(key(name)) if found else None
                if held is None:
                    self.read_at.pop((key(name), location), None)
                elif isinstance(held, ValidObject) and is_read and self.precedence is Precedence.LATEST:
                    self.read_at[key(name), location] = self.clock
                else:
                    self.read_at.setdefault((key(name), location), self.clock)
            if found is None:
                self.contents.pop(location, None)
            else:
                self.contents[location] = found

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self.model.apply(event)
        self.world.apply(events)

    def check_that_each_says_something(self, events: Sequence[Event]) -> None:
        """No event is redundant: leaving it out would leave the model behind."""
        keys = [item_key(e.item) if isinstance(e, Upsert) else e.key for e in events if isinstance(e, Upsert | Delete)]
        assert len(keys) == len(set(keys))
        over = {e.location for e in events if isinstance(e, Accepted)}
        for event in events:
            match event:
                case Upsert(_, item):
                    assert self.model.items.get(item_key(item)) != item
                case Delete(_, named):
                    assert named in self.model.items
                case Accepted(_, location):
                    assert any(r.origin.location == location for r in self.model.rejected.values())
                case Rejected(_, origin, _, named):
                    is_news = self.model.rejected.get(named or origin.location) != event
                    assert is_news or origin.location in over or named in keys

    def check_that_a_bad_reading_keeps_the_last_good_one(self, before: dict[Key, Item]) -> None:
        for named, item in before.items():
            held = [found.objects[named] for found in self.contents.values() if named in found.objects]
            if held and not any(isinstance(each, ValidObject) for each in held):
                assert self.model.items[named] == item
            if not held:
                assert named not in self.model.items

    @invariant()
    def events_lead_to_what_it_holds(self) -> None:
        assert self.model.items == {item_key(item): item for item in self.state.items()} == self.world.items_of("test")
        assert set(self.model.rejected.values()) == set(self.state.rejections()) == set(self.world.rejections())
        assert len(self.state) == len(self.model.items)

    @invariant()
    def where_all_is_good_the_last_reading_is_in_force(self) -> None:
        for name in NAMES:
            held = {location: c.objects[key(name)] for location, c in self.contents.items() if key(name) in c.objects}
            if held and all(isinstance(each, ValidObject) for each in held.values()):
                winner = self.winner(key(name), list(held))
                assert self.model.items[key(name)] == held[winner].item  # type: ignore[union-attr]

    @invariant()
    def where_all_is_good_it_is_as_if_all_had_been_read_at_once(self) -> None:
        objects = [each for found in self.contents.values() for each in found.objects.values()]
        if self.precedence is Precedence.LOWEST and all(isinstance(each, ValidObject) for each in objects):
            fresh = PublishedState[str]("test", self.precedence)
            fresh.update(self.contents)
            assert set(self.state.rejections()) == set(fresh.rejections())

    def winner(self, named: Key, holders: list[str]) -> str:
        match self.precedence:
            case Precedence.FIRST:
                return min(holders, key=lambda location: self.read_at[named, location])
            case Precedence.LATEST:
                return max(holders, key=lambda location: self.read_at[named, location])
            case Precedence.LOWEST:
                return min(holders)


TestReadings = Readings.TestCase
TestReadings.settings = settings(max_examples=examples(200), stateful_step_count=10, deadline=None)


def test_events_have_the_cause_of_the_reading() -> None:
    state = PublishedState[str]("test", Precedence.FIRST)
    state.announce()
    events = [*state.put("a", [secret("x")], cause="index 1"), *state.put("a", [], cause="index 2")]
    assert [event.cause for event in events if isinstance(event, Upsert | Delete)] == ["index 1", "index 2"]
