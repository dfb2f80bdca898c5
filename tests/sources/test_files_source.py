"""Real folders, really watched."""

# ruff: noqa: ASYNC240 (a test may touch a small file without a thread)

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, Rejected
from mesh_pilot.sources.files import FileSource, FileTiming, file_source
from tests.sources.conformance import Follower, running
from tests.sources.files_feed import bad_text, text, version


def key(name: str) -> tuple[str, ...]:
    return ("config", "VirtualService", "default", name)


def names(follower: Follower) -> set[str]:
    return {item.name for item in follower.picture.items.values() if isinstance(item, Config)}


def versions(follower: Follower) -> dict[str, int]:
    return {item.name: version(item) for item in follower.picture.items.values() if isinstance(item, Config)}


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")


async def eventually(is_so: Callable[[], bool]) -> None:
    """Let others run until something is so; pytest's time-out ends a wait in vain."""
    while not is_so():
        await trio.lowlevel.checkpoint()


async def at_rest(source: FileSource, *, reads: int) -> None:
    """Until it only looks when it is told: it has read everything, and once more when nothing changed any more."""
    await eventually(lambda: source.statistics().reads == reads)


def replace(file: Path, content: str) -> None:
    """As careful programs write: aside, then renamed."""
    aside = file.with_name(f".{file.name}.tmp")
    aside.write_text(content)
    aside.rename(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    folder.mkdir()
    return folder


@pytest.fixture
def source(folder: Path) -> FileSource:
    return file_source([str(folder)])


# What is read.


async def test_files_of_all_endings_are_read_at_any_depth(folder: Path, source: FileSource) -> None:
    (folder / "team" / "shop").mkdir(parents=True)
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}---\n")
    (folder / "team" / "b.yml").write_text(text("three", 1))
    (folder / "team" / "shop" / "c.json").write_text(
        json.dumps(
            {
                "apiVersion": "networking.istio.io/v1",
                "kind": "VirtualService",
                "metadata": {"name": "four"},
                "spec": {"hosts": ["four"], "http": [{"route": [{"destination": {"host": "four"}}]}]},
            },
            indent="\t",
        )
    )
    (folder / "list.yaml").write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        + "".join("- " + text(name, 1).replace("\n", "\n  ").rstrip() + "\n" for name in ("five", "six"))
    )
    async with running(source) as follower:
        await follower.until_synced()
        assert follower.picture.rejected == {}
        assert names(follower) == {"one", "two", "three", "four", "five", "six"}


async def test_hidden_files_backups_and_other_files_are_passed_over(folder: Path, source: FileSource) -> None:
    for name in (".hidden.yaml", ".a.yaml.swp", "a.yaml~", "#a.yaml#", "a.yaml.bak", "README.md", ".git/a.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no: [yaml")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        assert follower.picture.rejected == {}
        assert names(follower) == {"one"}


async def test_kinds_that_are_not_istios_are_ignored_with_one_line_a_kind_and_file(
    folder: Path, source: FileSource
) -> None:
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n---\n"
    (folder / "a.yaml").write_text(deployment * 3 + text("one", 1))
    with capture_logs() as logs:
        async with running(source) as follower:
            await follower.until_synced()
            (folder / "a.yaml").write_text(deployment * 2 + text("one", 2))
            await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
    ignored = [entry for entry in logs if "ignored" in entry["event"]]
    told = [(Path(entry["file"]).name, entry["api_version"], entry["kind"], entry["log_level"]) for entry in ignored]
    assert told == [("a.yaml", "apps/v1", "Deployment", "info")]
    assert follower.picture.rejected == {}


async def test_ignored_kinds_that_one_may_rely_on_are_a_warning_with_the_reason(
    folder: Path, source: FileSource
) -> None:
    (folder / "a.yaml").write_text("apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: web}\n")
    with capture_logs() as logs:
        async with running(source) as follower:
            await follower.until_synced()
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert warning["reason"] == "Kubernetes removed this version; write networking.k8s.io/v1"


async def test_a_slip_in_the_group_is_a_rejection(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1).replace("networking.istio.io", "network.istio.io"))
    async with running(source) as follower:
        await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert (str(rejected.origin), rejected.problems[0].path) == (f"{folder}/a.yaml:1", "apiVersion")
        assert "did you mean networking.istio.io/v1?" in rejected.problems[0].reason


async def test_kinds_that_one_may_expect_to_be_read_are_counted_with_the_first_place_and_what_to_write(
    folder: Path, source: FileSource
) -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n---\n"
    (folder / "a.yaml").write_text(text("one", 1) + "---\n" + service * 2)
    (folder / "b.yaml").write_text(service + "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n")
    with capture_logs() as logs:
        async with running(source) as follower:
            await follower.until_synced()
            found = {kind.kind: kind for kind in source.statistics().ignored}
            assert (found["Service"].count, found["Service"].first) == (3, f"{folder}/a.yaml:13")
            assert "write a ServiceEntry" in found["Service"].reason
            assert found["Deployment"].reason == ""
            (folder / "b.yaml").unlink()
            await eventually(lambda: [kind.count for kind in source.statistics().ignored] == [2])
    warned = [(entry["first"], entry["count"]) for entry in logs if entry["log_level"] == "warning"]
    assert warned == [(f"{folder}/a.yaml:13", 2), (f"{folder}/b.yaml:1", 1)]


async def test_a_rejection_names_file_line_field_and_reason(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{bad_text('two')}")
    async with running(source) as follower:
        await follower.until(lambda picture: picture.synced > 0 and bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert str(rejected.origin) == f"{folder}/a.yaml:13"
        assert (rejected.problems[0].path, rejected.problems[0].line) == ("spec.nonsense", 19)
        assert rejected.key == key("two")


async def test_text_that_is_not_utf_8_is_rejected_with_its_line(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_bytes(b"kind: x\nname: \xff\n")
    async with running(source) as follower:
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert rejected.origin.line == 2
        assert "UTF-8" in rejected.problems[0].reason


async def test_names_that_are_not_utf_8_are_read_and_told_as_escapes(folder: Path, source: FileSource) -> None:
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/sub\xff\n"))
    odd.mkdir()
    (odd / os.fsdecode(b"\xfe.yaml")).write_text(f"{text('one', 1)}---\n{bad_text('two')}---\n{bad_text('two')}")
    async with running(source) as follower:
        await follower.until_synced()
        assert names(follower) == {"one"}
        await follower.until(lambda picture: len(picture.rejected) == 2)
        location = f"{folder}/sub\\xff\\n/\\xfe.yaml"
        (config,) = follower.picture.items.values()
        assert isinstance(config, Config)
        assert config.origin.location == location
        assert {r.origin.location for r in follower.picture.rejected.values()} == {location}
        (odd / os.fsdecode(b"\xfe.yaml")).write_text(text("one", 2))
        await follower.until(lambda picture: not picture.rejected and version(picture.items[key("one")]) == 2)


async def test_an_internal_error_costs_one_object(
    folder: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(document: Document, **arguments: Any) -> Config:
        if "'two'" in str(document.data):
            raise ZeroDivisionError("oops")
        return decode_document(document, **arguments)

    monkeypatch.setattr("mesh_pilot.sources.files.objects.decode_document", decode)
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}---\n{text('three', 1)}")
    with capture_logs() as logs:
        async with running(source) as follower:
            await follower.until_synced()
    assert names(follower) == {"one", "three"}
    (rejected,) = follower.picture.rejected.values()
    assert "ZeroDivisionError: oops" in rejected.problems[0].reason
    assert [entry["line"] for entry in logs if entry["log_level"] == "error"] == [13]


async def test_of_a_file_of_many_objects_only_those_that_changed_are_read_again(
    folder: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, int] = {}

    def decode(document: Document, **arguments: Any) -> Config:
        config = decode_document(document, **arguments)
        read[config.name] = config.origin.line
        return config

    monkeypatch.setattr("mesh_pilot.sources.files.objects.decode_document", decode)
    objects = {f"o{number}": text(f"o{number}", 1) for number in range(20)}
    file = folder / "a.yaml"
    file.write_text("---\n".join(objects.values()))
    async with running(source) as follower:
        await follower.until_synced()
        assert len(read) == 20
        read.clear()
        objects["o7"] = text("o7", 2)
        file.write_text("---\n".join(objects.values()))
        key = ("config", "VirtualService", "default", "o7")
        await follower.until(lambda picture: version(picture.items[key]) == 2)
        assert list(read) == ["o7"]
        read.clear()
        del objects["o17"]
        file.write_text("---\n".join(objects.values()))
        await follower.until(lambda picture: len(picture.items) == 19)
        # Those that stand on other lines now are read as well.
        lines = file.read_text().splitlines()
        assert {name: lines[line + 2] == f"  name: {name}" for name, line in read.items()} == {"o18": True, "o19": True}


async def test_the_same_object_in_two_folders_is_the_earlier_folders(tmp_path: Path) -> None:
    for name, value in (("z-first", 1), ("a-second", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").write_text(text("one", value))
    source = file_source([str(tmp_path / "z-first"), str(tmp_path / "a-second")])
    async with running(source) as follower:
        await follower.until_synced()
        assert versions(follower) == {"one": 1}
        (tmp_path / "z-first" / "x.yaml").unlink()
        await follower.until(lambda picture: not picture.rejected)
        assert versions(follower) == {"one": 2}


async def test_a_folder_within_another_is_read_once(folder: Path, tmp_path: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.yaml").write_text(text("one", 1))
    (folder / "again").symlink_to(folder / "sub")
    (folder / "sub" / "loop").symlink_to(folder)
    async with running(file_source([str(folder), str(folder / "sub")])) as follower:
        await follower.until_synced()
        assert follower.picture.rejected == {}
        assert names(follower) == {"one"}


# How it changes.


async def test_files_replaced_by_a_rename_are_read_again(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        for number in range(2, 12):
            replace(folder / "a.yaml", text("one", number))
            await follower.until(lambda picture, number=number: version(picture.items[key("one")]) == number)  # type: ignore[misc]
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)


async def test_new_folders_are_watched_too(folder: Path, source: FileSource) -> None:
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "new" / "deep").mkdir(parents=True)
        (folder / "new" / "deep" / "a.yaml").write_text(text("one", 1))
        await follower.until(lambda picture: key("one") in picture.items)
        (folder / "new" / "deep" / "a.yaml").write_text(text("one", 2))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        (folder / "new").rename(folder / "renamed")
        (folder / "renamed" / "deep" / "b.yaml").write_text(text("two", 1))
        await follower.until(lambda picture: key("two") in picture.items)
        assert not any(isinstance(event, Delete) for event in follower.events)


async def test_a_mounted_config_map_is_read_through_its_links_and_swapped_whole(
    folder: Path, source: FileSource
) -> None:
    def mount(number: int) -> None:
        """As the kubelet does: a new hidden folder, and a link that is swapped to it."""
        data = folder / f"..2024_{number}"
        data.mkdir()
        (data / "a.yaml").write_text(text("one", number))
        (data / "b.yaml").write_text(text("two", number))
        (folder / "..data_tmp").symlink_to(data.name)
        (folder / "..data_tmp").rename(folder / "..data")

    mount(1)
    for name in ("a.yaml", "b.yaml"):
        (folder / name).symlink_to(f"..data/{name}")
    async with running(source) as follower:
        await follower.until_synced()
        assert versions(follower) == {"one": 1, "two": 1}
        for number in (2, 3, 4):
            mount(number)
            for file in (folder / f"..2024_{number - 1}").iterdir():
                file.unlink()
            (folder / f"..2024_{number - 1}").rmdir()
            await follower.until(lambda picture: all(version(i) == number for i in picture.items.values()))  # noqa: B023
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)


async def test_a_folder_that_is_a_link_is_followed_when_the_link_is_changed(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"release-{number}" / "config").mkdir(parents=True)
        (tmp_path / f"release-{number}" / "config" / "a.yaml").write_text(text("one", number))
    current = tmp_path / "current"
    current.symlink_to("release-1")
    source = file_source([str(current / "config")])
    async with running(source) as follower:
        await follower.until_synced()
        await at_rest(source, reads=2)
        (tmp_path / "next").symlink_to("release-2")
        (tmp_path / "next").rename(current)
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        await at_rest(source, reads=4)
        (tmp_path / "release-2" / "config" / "a.yaml").write_text(text("one", 3))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 3)


async def test_a_file_that_is_a_link_is_followed_when_its_target_changes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.yaml").write_text(text("one", 1))
    (folder / "a.yaml").symlink_to(tmp_path / "elsewhere" / "x.yaml")
    source = file_source([str(folder)])
    async with running(source) as follower:
        await follower.until_synced()
        await at_rest(source, reads=2)
        (tmp_path / "elsewhere" / "x.yaml").write_text(text("one", 2))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)


async def test_only_files_that_changed_are_read_and_only_objects_that_changed_are_told(
    folder: Path, source: FileSource
) -> None:
    for number in range(50):
        (folder / f"{number}.yaml").write_text(f"{text(f'a{number}', 1)}---\n{text(f'b{number}', 1)}")
    async with running(source) as follower:
        await follower.until_synced()
        await at_rest(source, reads=100)
        follower.take_events()
        (folder / "7.yaml").write_text(f"{text('a7', 1)}---\n{text('b7', 2)}")
        await follower.until(lambda picture: version(picture.items[key("b7")]) == 2)
        assert len(follower.take_events()) == 1
        await at_rest(source, reads=102)


@linux_only
async def test_only_touched_files_are_looked_at_where_no_link_may_lead_to_others(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    for name in "abc":
        (folder / f"{name}.yaml").write_text(text(name, 1))
    async with running(source) as follower:
        await follower.until_synced()
        await watched(source)
        before = source.statistics()
        replace(folder / "a.yaml", text("a", 2))
        (folder / "b.yaml").unlink()
        await other_change(folder, follower, 1)
        mock_clock.jump(1)
        await follower.until(lambda picture: key("b") not in picture.items)
        assert versions(follower) == {"a": 2, "c": 1, "other": 1}
        assert source.statistics().looks > before.looks
        assert source.statistics().listings == before.listings
        mock_clock.jump(30)
        await eventually(lambda: source.statistics().listings == before.listings + 1)
        (folder / ".link").symlink_to(folder / "c.yaml")
        (folder / ".link").rename(folder / "link.yaml")
        await eventually(lambda: source.statistics().files == 4)
        listings = source.statistics().listings
        replace(folder / "c.yaml", text("c", 2))
        await follower.until(lambda picture: version(picture.items[key("c")]) == 2)
        assert source.statistics().listings > listings


# Half-written files, and whatever else looks like a deletion for a moment. Trio's clock stands still in these tests
# until it is told otherwise, so that the quiet time is as long as the test wants; watching continues.


async def test_a_half_written_file_is_not_rejected_until_it_had_time_to_settle(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text(text("one", 2)[:95] + ": [")
        await eventually(lambda: source.statistics().pending == 1)
        for number in range(3):
            looks = source.statistics().looks
            (folder / f"{number}.txt").touch()
            await eventually(lambda looks=looks: source.statistics().looks > looks)  # type: ignore[misc]
        assert source.statistics().pending == 1
        (folder / "a.yaml").write_text(text("one", 2))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        assert not any(isinstance(event, Rejected) for event in follower.events)
        (folder / "a.yaml").write_text(text("one", 3)[:95] + ": [")
        await eventually(lambda: source.statistics().pending == 1)
        mock_clock.jump(1)
        await follower.until(lambda picture: bool(picture.rejected))
        assert versions(follower) == {"one": 2}


async def test_a_file_that_is_emptied_or_replaced_bit_by_bit_deletes_nothing(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text("")
        await eventually(lambda: source.statistics().pending == 1)
        (folder / "a.yaml").unlink()
        looks = source.statistics().looks
        await eventually(lambda: source.statistics().looks > looks)
        (folder / "a.yaml").write_text(text("one", 2))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        assert not any(isinstance(event, Delete) for event in follower.events)


async def other_change(folder: Path, follower: Follower, number: int) -> None:
    """Another file changes, which makes the source look."""
    replace(folder / "other.yaml", text("other", number))
    other = key("other")
    await follower.until(lambda picture: other in picture.items and version(picture.items[other]) == number)


async def watched(source: FileSource) -> None:
    """Until the folders are watched: they are looked at once more then."""
    await eventually(lambda: source.statistics().looks > 1)


@linux_only
async def test_a_file_that_is_truncated_and_still_open_stands_as_it_was_until_it_is_closed(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}")
    async with running(source) as follower:
        await follower.until_synced()
        await watched(source)
        with (folder / "a.yaml").open("w") as file:
            await eventually(lambda: source.statistics().being_written == 1)
            for number in range(1, 4):
                mock_clock.jump(5)
                await other_change(folder, follower, number)
            file.write(text("one", 2))
            file.flush()
            mock_clock.jump(5)
            await other_change(folder, follower, 4)
            assert names(follower) == {"one", "two", "other"}
            assert version(follower.picture.items[key("one")]) == 1
            file.write(f"---\n{text('two', 2)}")
        await follower.until(lambda picture: version(picture.items[key("two")]) == 2)
        assert version(follower.picture.items[key("one")]) == 2
        assert source.statistics().being_written == 0
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)


@linux_only
async def test_a_link_to_a_file_that_is_being_written_stands_as_it_was(
    folder: Path, tmp_path: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.yaml").write_text(text("one", 1))
    (folder / "a.yaml").symlink_to(tmp_path / "elsewhere" / "x.yaml")
    async with running(source) as follower:
        await follower.until_synced()
        await watched(source)
        with (tmp_path / "elsewhere" / "x.yaml").open("w") as file:
            await eventually(lambda: source.statistics().being_written == 1)
            mock_clock.jump(5)
            await other_change(folder, follower, 1)
            file.write(text("one", 2))
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)


@linux_only
async def test_a_file_that_stays_open_for_too_long_counts_as_it_stands(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}")
    async with running(source) as follower:
        await follower.until_synced()
        await watched(source)
        with (folder / "a.yaml").open("w") as file:
            file.write(text("one", 2))
            file.flush()
            await eventually(lambda: source.statistics().being_written == 1)
            mock_clock.jump(FileTiming().open_seconds)
            await eventually(lambda: source.statistics().pending == 1)
            mock_clock.jump(1)
            await follower.until(lambda picture: key("two") not in picture.items)
            assert versions(follower) == {"one": 2}


async def test_a_file_that_stands_empty_keeps_its_objects_for_a_time_and_tells_so(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        for nothing in ("", "# all of it is commented out\n", "---\n", "%x\n"):
            (folder / "a.yaml").write_text(nothing)
            await eventually(lambda: source.statistics().pending == 1)
            mock_clock.jump(1)
            await follower.until(lambda picture: bool(picture.rejected))
            (rejected,) = follower.picture.rejected.values()
            assert "is empty; VirtualService/default/one are kept until" in rejected.problems[0].reason
            assert names(follower) == {"one"}
            (folder / "a.yaml").write_text(text("one", 1))
            await follower.until(lambda picture: not picture.rejected)
        (folder / "a.yaml").write_text("")
        await eventually(lambda: source.statistics().pending == 1)
        mock_clock.jump(1)
        await follower.until(lambda picture: bool(picture.rejected))
        mock_clock.jump(FileTiming().empty_seconds)
        await follower.until(lambda picture: not picture.items and not picture.rejected)


@pytest.mark.parametrize(
    "broken",
    ["hello\n", "a: 1\n", "kind: ServiceEntry\n", "apiVersion: apps/v1\nkind: Deployment\n", "[1, 2]\n"],
)
async def test_broken_text_that_is_still_yaml_takes_nothing_back(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock, broken: str
) -> None:
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}")
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text(broken)
        await eventually(lambda: source.statistics().pending == 1)
        mock_clock.jump(2.5)
        await follower.until(lambda picture: bool(picture.rejected))
        assert names(follower) == {"one", "two"}
        told = "".join(problem.reason for r in follower.picture.rejected.values() for problem in r.problems)
        assert "VirtualService/default/one, VirtualService/default/two" in told
        assert "is kept" in told
        (folder / "a.yaml").write_text(text("one", 2))
        await eventually(lambda: source.statistics().pending == 1)
        mock_clock.jump(1)
        await follower.until(lambda picture: key("two") not in picture.items and not picture.rejected)
        assert versions(follower) == {"one": 2}


async def test_an_object_that_is_moved_in_two_steps_is_never_missing(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(f"{text('one', 1)}---\n{text('two', 1)}")
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text(text("two", 1))
        await eventually(lambda: source.statistics().pending == 1)
        (folder / "b.yaml").write_text(text("one", 2))
        await eventually(lambda: source.statistics().pending == 2)
        mock_clock.jump(1)
        await follower.until(lambda picture: version(picture.items[key("one")]) == 2)
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)


async def test_what_is_good_does_not_wait_for_what_is_half_written(
    folder: Path, source: FileSource, mock_clock: trio.testing.MockClock
) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text("half: [")
        (folder / "b.yaml").write_text(text("two", 1))
        await follower.until(lambda picture: key("two") in picture.items)
        assert follower.picture.rejected == {}


async def test_files_that_never_come_to_rest_are_rejected_after_all(folder: Path) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    source = file_source([str(folder)], timing=FileTiming(quiet_seconds=1000, patience_seconds=0.01))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text("half: [")
        await eventually(lambda: source.statistics().pending == 1)
        (folder / "b.yaml").write_text("x: [")
        await follower.until(lambda picture: bool(picture.rejected))


# Folders and files that can't be read.


async def test_a_folder_that_vanishes_keeps_what_it_said_and_says_so(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").unlink()
        folder.rmdir()
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert rejected.origin.location == str(folder)
        assert "is kept" in rejected.problems[0].reason
        assert names(follower) == {"one"}
        folder.mkdir()
        (folder / "a.yaml").write_text(text("one", 2))
        await follower.until(lambda picture: not picture.rejected)
        assert versions(follower) == {"one": 2}
        assert not any(isinstance(event, Delete) for event in follower.events)


async def test_a_folder_that_is_replaced_by_an_empty_one_keeps_what_it_said(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        folder.rename(folder.with_name("away"))
        folder.mkdir()
        await follower.until(lambda picture: bool(picture.rejected))
        assert names(follower) == {"one"}
        folder.rmdir()
        folder.with_name("away").rename(folder)
        await follower.until(lambda picture: not picture.rejected)
        assert not any(isinstance(event, Delete) for event in follower.events)


async def test_a_folder_that_is_emptied_deletes_what_it_said(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").unlink()
        await follower.until(lambda picture: not picture.items)


async def test_a_file_that_can_not_be_read_keeps_what_it_said(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").unlink()
        (folder / "a.yaml").symlink_to("a.yaml")
        await follower.until(lambda picture: bool(picture.rejected))
        assert names(follower) == {"one"}
        (folder / "a.yaml").unlink()
        (folder / "a.yaml").write_text(text("one", 1))
        await follower.until(lambda picture: not picture.rejected)
        assert not any(isinstance(event, Delete) for event in follower.events)


async def test_a_link_to_nothing_keeps_what_it_said_and_going_takes_it_back(folder: Path, source: FileSource) -> None:
    (folder / ".target").write_text(text("one", 1))
    (folder / "a.yaml").symlink_to(".target")
    async with running(source) as follower:
        await follower.until_synced()
        (folder / ".target").unlink()
        await follower.until(lambda picture: bool(picture.rejected))
        assert names(follower) == {"one"}
        (folder / "a.yaml").unlink()
        await follower.until(lambda picture: not picture.rejected)
        assert names(follower) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_permissions_that_come_and_go(folder: Path, source: FileSource) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.yaml").write_text(text("one", 1))
    (folder / "b.yaml").write_text(text("two", 1))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "sub").chmod(0)
        (folder / "b.yaml").chmod(0)
        await follower.until(lambda picture: len(picture.rejected) == 2)
        assert names(follower) == {"one", "two"}
        (folder / "sub").chmod(0o755)
        (folder / "b.yaml").chmod(0o644)
        await follower.until(lambda picture: not picture.rejected)
        assert not any(isinstance(event, Delete) for event in follower.events)


# How it learns of changes.


async def test_polling_finds_changes_without_being_told(folder: Path) -> None:
    source = file_source([str(folder)], poll=True, timing=FileTiming(poll_seconds=0.01))
    async with running(source) as follower:
        await follower.until_synced()
        (folder / "a.yaml").write_text(text("one", 1))
        await follower.until(lambda picture: key("one") in picture.items)
        (folder / "a.yaml").unlink()
        await follower.until(lambda picture: key("one") not in picture.items)
        assert source.statistics().watching == "polling"


async def test_a_look_now_and_then_finds_what_was_not_told(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "config"
    folder.mkdir(parents=True)
    (folder / "x.yaml").write_text(text("one", 1))
    async with running(file_source([str(folder)], timing=FileTiming(rescan_seconds=0.05))) as follower:
        await follower.until_synced()
        # A folder further up is moved away: nobody watches that.
        (tmp_path / "a").rename(tmp_path / "z")
        await follower.until(lambda picture: bool(picture.rejected))
        assert names(follower) == {"one"}


async def test_it_looks_for_changes_where_watching_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.sources.files.watch._nearest_folder", lambda path: "/nowhere/at/all")
    source = file_source([str(folder)], timing=FileTiming(poll_seconds=0.01, rescan_seconds=0.1))
    with capture_logs() as logs:
        async with running(source) as follower:
            await follower.until_synced()
            (folder / "a.yaml").write_text(text("one", 1))
            await follower.until(lambda picture: key("one") in picture.items)
            await eventually(lambda: source.statistics().watching.startswith("polling ("))
            await eventually(lambda: source.statistics().looks > 30)
    assert len([entry for entry in logs if entry["log_level"] == "warning"]) == 1


async def test_a_folder_that_is_missing_at_the_start_is_waited_for(tmp_path: Path) -> None:
    source = file_source([str(tmp_path / "one"), str(tmp_path / "not" / "yet")])
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until(lambda picture: bool(picture.rejected))
        assert source.statistics().waiting_for == f"{tmp_path}/not/yet can't be read"
        assert names(follower) == {"one"}
        assert follower.picture.synced == 0
        (tmp_path / "not" / "yet").mkdir(parents=True)
        await follower.until_synced()
        await follower.until(lambda picture: not picture.rejected)


async def test_its_representation_tells_its_state(folder: Path, source: FileSource) -> None:
    (folder / "a.yaml").write_text(text("one", 1))
    async with running(source) as follower:
        await follower.until_synced()
        assert repr(source) == "<FileSource files: 1 files, 1 items, 0 rejected>"


async def test_without_anything_to_read_it_syncs_at_once() -> None:
    async with running(file_source([])) as follower:
        await follower.until_synced()
        assert follower.picture.items == {}
