"""The index of files: what is in force, and how changes of files become events."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import Accepted, Delete, Item, Rejected, Upsert, item_key
from mesh_pilot.sources.base.published import InvalidObject, ValidObject
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, Gone, ParsedObject, Unreadable
from mesh_pilot.sources.files.index import FileIndex
from tests.sources.conformance import Picture

A, B, C = FileLocation(0, "a.yaml"), FileLocation(0, "b.yaml"), FileLocation(1, "more/a.yaml")


def config(name: str, version: int = 1, location: FileLocation = A, line: int = 1) -> Config:
    return Config(ConfigKey("VirtualService", "default", name), version, origin=Origin("files", location.path, line))


def good(name: str, version: int = 1, location: FileLocation = A, line: int = 1) -> ValidObject:
    item = config(name, version, location, line)
    return ValidObject(item_key(item), item, line)


def bad(name: str, reason: str = "weights are wrong", line: int = 1) -> InvalidObject:
    return InvalidObject((Problem("spec.http", reason, line=line + 1),), key(name), line)


def broken(line: int = 1) -> InvalidObject:
    return InvalidObject((Problem("", "not valid YAML", line=line),), None, line)


def key(name: str) -> tuple[str, ...]:
    return ("config", "VirtualService", "default", name)


def content(*entries: ParsedObject) -> FileContent:
    return FileContent(entries)


def new_index() -> FileIndex:
    index = FileIndex("files")
    index.state.announce()
    return index


def versions(index: FileIndex) -> dict[str, int]:
    return {item.name: item.spec for item in index.items() if isinstance(item, Config)}


def test_objects_that_come_change_and_go_are_told_one_by_one() -> None:
    index = new_index()
    assert index.update({A: content(good("x"), good("y"))}) == [
        Upsert("files", config("x")),
        Upsert("files", config("y")),
    ]
    assert index.update({A: content(good("x"), good("y", 2))}) == [Upsert("files", config("y", 2))]
    assert index.update({A: content(good("y", 2))}) == [Delete("files", key("x"))]
    assert index.update({A: Gone()}) == [Delete("files", key("y"))]
    assert repr(index) == "<FileIndex: 0 files, 0 items, 0 rejected>"


def test_an_object_that_only_moves_to_another_line_is_no_change() -> None:
    index = new_index()
    index.update({A: content(good("x", line=1))})
    assert index.update({A: content(good("x", line=7))}) == []


def test_an_object_that_moves_between_files_is_upserted_and_never_deleted() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    (event,) = index.update({A: Gone(), B: content(good("x", location=B))})
    assert isinstance(event, Upsert)
    assert isinstance(event.item, Config)
    assert event.item.origin.location == "b.yaml"


def test_a_bad_object_is_rejected_while_its_last_good_version_and_its_neighbours_stay_in_force() -> None:
    index = new_index()
    index.update({A: content(good("x"), good("y"))})
    events = index.update({A: content(bad("x", line=3), good("y", 2))})
    assert events == [
        Upsert("files", config("y", 2)),
        Rejected("files", Origin("files", "a.yaml", 3), (Problem("spec.http", "weights are wrong", line=4),), key("x")),
    ]
    assert versions(index) == {"x": 1, "y": 2}


def test_a_bad_object_that_becomes_good_is_upserted_and_accepted() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    index.update({A: content(bad("x"))})
    assert index.update({A: content(good("x", 2))}) == [Upsert("files", config("x", 2)), Accepted("files", "a.yaml")]
    assert index.rejections() == ()


def test_a_bad_object_that_is_removed_takes_its_last_good_version_along() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    index.update({A: content(bad("x"))})
    assert index.update({A: content()}) == [Delete("files", key("x")), Accepted("files", "a.yaml")]


def test_what_still_stands_at_a_location_is_told_again_after_something_there_is_accepted() -> None:
    index = new_index()
    _, stands = index.update({A: content(bad("x"), bad("y", line=9))})
    events = index.update({A: content(good("x"), bad("y", line=9))})
    assert events == [Upsert("files", config("x")), Accepted("files", "a.yaml"), stands]


def test_a_file_that_is_broken_in_part_keeps_the_objects_that_can_not_be_found_in_it() -> None:
    index = new_index()
    index.update({A: content(good("x"), good("y"), good("z"))})
    (rejected,) = index.update({A: content(good("x"), broken(5), good("z"))})
    assert isinstance(rejected, Rejected)
    assert (rejected.key, str(rejected.origin)) == (None, "a.yaml:5")
    assert [(problem.line, problem.reason) for problem in rejected.problems] == [
        (5, "not valid YAML"),
        (
            5,
            "not found in the file now: VirtualService/default/y; what was read before is kept until the "
            "file is good (fix the broken document, or remove it)",
        ),
    ]
    assert versions(index) == {"x": 1, "y": 1, "z": 1}
    assert index.update({A: content(good("x"), good("z"))}) == [Delete("files", key("y")), Accepted("files", "a.yaml")]


def test_a_bad_object_under_a_name_that_the_file_did_not_have_holds_what_is_missing() -> None:
    index = new_index()
    index.update({A: content(good("web"), good("y"))})
    for _ in range(2):
        index.update({A: content(bad("we", line=3))})  # cut in the middle of its name
        assert versions(index) == {"web": 1, "y": 1}
    told = {str(rejected.origin): rejected.problems[-1].reason for rejected in index.rejections()}
    assert "VirtualService/default/web, VirtualService/default/y; what was read before is kept" in told["a.yaml:3"]
    index.update({A: content(good("y"))})
    assert versions(index) == {"y": 1}
    assert index.rejections() == ()


def test_beside_an_object_that_was_bad_all_along_others_can_be_removed() -> None:
    index = new_index()
    index.update({A: content(good("x"), bad("y"))})
    index.update({A: content(bad("y"))})
    assert versions(index) == {}


def test_only_some_of_many_missing_objects_are_named() -> None:
    index = new_index()
    index.update({A: content(*(good(f"o{number}") for number in range(9)))})
    (rejected,) = index.update({A: content(broken())})
    assert isinstance(rejected, Rejected)
    assert "VirtualService/default/o4 and 4 more;" in rejected.problems[-1].reason


def test_a_file_that_can_not_be_read_keeps_all_its_objects() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    assert index.update({A: Unreadable("permission denied")}) == [
        Rejected("files", Origin("files", "a.yaml"), (Problem("", "permission denied"),)),
    ]
    assert index.update({A: content(good("x"))}) == [Accepted("files", "a.yaml")]


def test_the_second_of_two_files_with_the_same_object_is_refused_until_the_first_goes() -> None:
    index = new_index()
    index.update({A: content(good("x", 1, A, 4))})
    (rejected,) = index.update({B: content(good("x", 2, B, 8))})
    assert isinstance(rejected, Rejected)
    assert str(rejected.origin) == "b.yaml:8"
    assert rejected.problems[0].reason == (
        "VirtualService/default/x is already defined at a.yaml:4; this one is ignored until that one goes"
    )
    assert index.update({A: Gone()}) == [Upsert("files", config("x", 2)), Accepted("files", "b.yaml")]


def test_an_object_that_goes_bad_does_not_give_way_to_a_second_definition_of_it() -> None:
    index = new_index()
    index.update({A: content(good("x", 1)), B: content(good("x", 2, B))})
    index.update({A: content(bad("x"))})
    assert versions(index) == {"x": 1}
    index.update({A: Gone()})
    assert versions(index) == {"x": 2}


def test_the_first_file_wins_even_when_it_comes_later() -> None:
    index = new_index()
    index.update({C: content(good("x", 2, C))})
    index.update({A: content(good("x", 1, A))})
    assert versions(index) == {"x": 1}


def test_a_rejection_of_an_object_is_told_again_after_an_upsert_of_it() -> None:
    index = new_index()
    index.update({B: content(good("x"))})
    _, rejected = index.update({A: content(bad("x"))}), index.rejections()[0]
    assert index.update({B: content(good("x", 2))}) == [Upsert("files", config("x", 2)), rejected]


def test_an_object_that_is_given_twice_in_a_file_counts_the_first_time() -> None:
    index = new_index()
    upsert, rejected = index.update({A: content(good("x", 1, A, 1), good("x", 2, A, 9))})
    assert upsert == Upsert("files", config("x", 1))
    assert isinstance(rejected, Rejected)
    assert "already defined at line 1" in rejected.problems[0].reason


def test_an_object_that_is_broken_where_it_moves_to_stays_as_it_was() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    events = index.update({A: Gone(), B: content(bad("x"))})
    assert [type(event) for event in events] == [Rejected]
    assert versions(index) == {"x": 1}


def test_only_additions_and_changes_are_harmless() -> None:
    index = new_index()
    index.update({A: content(good("x"))})
    assert index.is_harmless(A, content(good("x", 2), good("y")))
    assert index.is_harmless(B, content(good("y")))
    assert index.is_harmless(B, Gone())
    assert not index.is_harmless(A, content())
    assert not index.is_harmless(A, Gone())
    assert not index.is_harmless(A, content(good("x"), broken()))
    assert not index.is_harmless(A, content(good("x"), bad("y")))
    assert not index.is_harmless(A, content(good("x"), good("y"), good("y")))
    assert not index.is_harmless(A, Unreadable("gone wrong"))
    assert not index.is_harmless(B, content(good("x")))


# Any sequence of edits.

_names = st.sampled_from("xyz")
_entries = st.one_of(
    st.builds(good, _names, st.integers(1, 3), line=st.integers(1, 9)),
    st.builds(bad, _names, line=st.integers(1, 9)),
    st.builds(broken, st.integers(1, 9)),
)
_readings = st.one_of(
    st.lists(_entries, max_size=4).map(lambda entries: FileContent(tuple(entries))),
    st.just(Gone()),
    st.just(Unreadable("permission denied")),
)
_edits = st.lists(st.dictionaries(st.sampled_from([A, B, C]), _readings, min_size=1), max_size=8)
_good_contents = st.lists(st.builds(good, _names, st.integers(1, 3)), max_size=4).map(lambda e: FileContent(tuple(e)))


def fresh(files: Mapping[FileLocation, FileReading]) -> FileIndex:
    index = new_index()
    index.update(files)
    return index


@given(_edits)
def test_events_lead_to_what_the_index_holds(edits: list[dict[FileLocation, FileReading]]) -> None:
    index, picture = new_index(), Picture()
    for edit in edits:
        for event in index.update(edit):
            picture.apply(event)
        assert set(picture.items.values()) == set(index.items())
        assert sorted(map(str, picture.rejected.values())) == sorted(map(str, index.rejections()))


@given(_edits, st.dictionaries(st.sampled_from([A, B, C]), _good_contents))
def test_any_edits_that_end_well_end_as_a_fresh_scan_does(
    edits: list[dict[FileLocation, FileReading]], final: dict[FileLocation, FileReading]
) -> None:
    index = new_index()
    for edit in edits:
        index.update(edit)
    index.update({location: Gone() for location in (A, B, C)} | final)
    assert set(index.items()) == set(fresh(final).items())
    assert sorted(map(str, index.rejections())) == sorted(map(str, fresh(final).rejections()))


@given(_edits)
def test_broken_files_hold_on_to_what_was_good_and_to_nothing_else(
    edits: list[dict[FileLocation, FileReading]],
) -> None:
    index = new_index()
    files: dict[FileLocation, FileContent] = {}
    unreadable: set[FileLocation] = set()
    ever_good: set[Item] = set()
    for edit in edits:
        before = {item_key(item): item for item in index.items()}
        index.update(edit)
        for location, reading in edit.items():
            match reading:
                case FileContent():
                    files[location] = reading
                    unreadable.discard(location)
                case Gone():
                    files.pop(location, None)
                    unreadable.discard(location)
                case Unreadable():
                    unreadable.add(location)
        entries = [entry for reading in files.values() for entry in reading.entries]
        ever_good |= {entry.item for entry in entries if isinstance(entry, ValidObject)}
        after = {item_key(item): item for item in index.items()}
        assert set(after.values()) <= ever_good
        all_readable = not unreadable and all(isinstance(entry, ValidObject) for entry in entries)
        for name in "xyz":
            mentioned = [entry for entry in entries if entry.key == key(name)]
            if not mentioned and all_readable:
                assert key(name) not in after
            elif mentioned and key(name) in before:
                assert key(name) in after
            if mentioned and all_readable and all(isinstance(entry, ValidObject) for entry in mentioned):
                first = min(
                    location for location, reading in files.items() if any(e in mentioned for e in reading.entries)
                )
                wins = next(entry for entry in files[first].entries if entry in mentioned)
                assert isinstance(wins, ValidObject)
                assert after[key(name)] == wins.item


@given(_edits)
def test_saying_the_same_again_says_nothing(edits: list[dict[FileLocation, FileReading]]) -> None:
    index = new_index()
    for edit in edits:
        index.update(edit)
        assert index.update(edit) == []


@given(_edits, st.sampled_from([A, B, C]), _readings)
def test_what_is_harmless_deletes_and_refuses_nothing(
    edits: list[dict[FileLocation, FileReading]], location: FileLocation, reading: FileReading
) -> None:
    index = new_index()
    for edit in edits:
        index.update(edit)
    before = set(index.rejections())
    if index.is_harmless(location, reading):
        events = index.update({location: reading})
        assert not any(isinstance(event, Delete) for event in events)
        assert set(index.rejections()) <= before
