"""When a change of a file counts."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.events import Delete, Rejected
from mesh_pilot.sources.files.content import FileContent, Gone, Unreadable
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.waiting import FileTiming, PendingReadings
from tests.sources.test_file_index import A, B, bad, broken, content, good, key

TIMING = FileTiming()
EMPTY = FileContent((), is_empty=True)


def holding(*names: str) -> FileIndex:
    index = FileIndex("files")
    index.state.announce()
    index.update({A: content(*map(good, names))})
    return index


def test_what_adds_or_changes_counts_at_once() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    reading = content(good("x", 2), good("y"))
    waiting.add(A, reading, 0, in_place=True)
    assert waiting.due(0, index, at_rest=False) == {A: reading}
    assert len(waiting) == 0
    assert waiting.next_at(at_rest=False) == math.inf


def test_what_takes_back_waits_until_all_is_at_rest() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, Gone(), 0, in_place=False)
    assert waiting.due(1, index, at_rest=False) == {}
    assert waiting.due(1, index, at_rest=True) == {A: Gone()}


def test_where_all_is_never_at_rest_it_waits_for_the_patience() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, Gone(), 5, in_place=False)
    assert waiting.next_at(at_rest=False) == 5 + TIMING.patience_seconds
    assert waiting.due(6.9, index, at_rest=False) == {}
    assert waiting.due(7, index, at_rest=False) == {A: Gone()}


def test_what_was_written_in_place_must_have_settled_before_it_takes_back_or_refuses() -> None:
    for reading in (content(), content(bad("x")), content(broken())):
        waiting, index = PendingReadings(TIMING), holding("x")
        waiting.add(A, reading, 0, in_place=True)
        assert waiting.due(0.4, index, at_rest=True) == {}
        waiting.add(A, reading, 0.4, in_place=True)
        assert waiting.next_at(at_rest=True) == 0.4 + TIMING.settle_seconds
        assert waiting.due(0.6, index, at_rest=True) == {}
        assert waiting.due(0.9, index, at_rest=True) == {A: reading}


def test_what_is_written_in_place_and_never_settles_counts_in_the_end() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    for tenth in range(400):
        waiting.add(A, content(good("y", tenth), bad("z")), tenth / 10, in_place=True)
        if waiting.due(tenth / 10, index, at_rest=True):
            break
    assert tenth / 10 == TIMING.open_seconds


def test_what_is_being_written_waits_whatever_it_says() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, content(good("x", 2)), 0, in_place=True)
    waiting.add(B, content(good("y")), 0, in_place=False)
    assert waiting.due(100, index, at_rest=True, written={A}) == {B: content(good("y"))}
    assert waiting.next_at(at_rest=True, written={A}) == math.inf
    assert waiting.due(100, index, at_rest=True) == {A: content(good("x", 2))}


def test_a_file_that_stands_empty_keeps_its_objects_for_a_time_and_tells_so() -> None:
    waiting, index = PendingReadings(TIMING), holding("x", "y")
    waiting.add(A, EMPTY, 0, in_place=True)
    assert waiting.due(0.4, index, at_rest=True) == {}
    due = waiting.due(0.5, index, at_rest=True)
    (told,) = index.update(due)
    assert isinstance(told, Rejected)
    assert told.problems[0].reason == (
        "is empty; VirtualService/default/x, VirtualService/default/y are kept until it has been empty for 10 s: "
        "delete the file to remove them at once"
    )
    assert (len(waiting), waiting.unreported) == (1, 0)
    assert waiting.due(9.9, index, at_rest=True) == {}
    assert waiting.next_at(at_rest=True) == TIMING.empty_seconds
    due = waiting.due(10, index, at_rest=True)
    assert {event.key for event in index.update(due) if isinstance(event, Delete)} == {key("x"), key("y")}
    assert index.rejections() == ()


def test_a_file_that_stood_empty_and_is_filled_again_counts_at_once() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, EMPTY, 0, in_place=True)
    index.update(waiting.due(1, index, at_rest=True))
    waiting.add(A, content(good("x")), 1.1, in_place=True)
    index.update(waiting.due(1.1, index, at_rest=False))
    assert (len(index.items()), index.rejections(), len(waiting)) == (1, (), 0)


def test_a_file_that_stood_empty_and_is_deleted_takes_its_objects_back_without_that_wait() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, EMPTY, 0, in_place=True)
    index.update(waiting.due(1, index, at_rest=True))
    waiting.add(A, Gone(), 1.1, in_place=False)
    assert waiting.due(1.6, index, at_rest=True) == {A: Gone()}


def test_an_empty_file_that_held_nothing_is_nothing_to_wait_for() -> None:
    waiting, index = PendingReadings(TIMING), FileIndex("files")
    waiting.add(A, EMPTY, 0, in_place=False)
    assert waiting.due(0, index, at_rest=False) == {A: EMPTY}


def test_an_unreadable_file_waits_for_rest_only() -> None:
    waiting, index = PendingReadings(TIMING), holding("x")
    waiting.add(A, Unreadable("permission denied"), 0, in_place=False)
    assert waiting.due(0, index, at_rest=True) == {A: Unreadable("permission denied")}


_READINGS = st.sampled_from(
    [content(good("x", 2)), content(good("y")), content(bad("x")), content(broken()), EMPTY, Gone(), Unreadable("no")]
)


@given(st.lists(st.tuples(st.sampled_from([A, B]), _READINGS, st.booleans(), st.floats(0, 20)), max_size=10))
def test_every_change_counts_in_the_end_and_the_time_that_is_told_is_the_time_that_it_takes(steps: list) -> None:  # type: ignore[type-arg]
    waiting, index = PendingReadings(TIMING), holding("x")
    now, last = 0.0, {}
    for location, reading, in_place, seconds in steps:
        waiting.add(location, reading, now, in_place=in_place)
        last[location] = reading
        index.update(waiting.due(now, index, at_rest=False))
        now += seconds
        index.update(waiting.due(now, index, at_rest=True))
    while len(waiting):
        at = waiting.next_at(at_rest=True)
        assert at > now
        assert waiting.due(now, index, at_rest=True) == {}
        now = at
        due = waiting.due(now, index, at_rest=True)
        assert due
        index.update(due)
    for location, reading in last.items():
        assert index.update({location: reading}) == []  # what came last is what counts
    assert waiting.next_at(at_rest=False) == math.inf
