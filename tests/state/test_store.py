"""The store: pictures outlive anything that happens to the process, the file or the disk, or are not there at all."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.model.events import Item, KeySet, item_key
from mesh_pilot.safety.state.database import ASIDE, FORMAT, KEPT_ASIDE, StateError, StateFault
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.safety.state.store import Batch, Store
from tests.support.sample import examples

PLACES = {"a": "place a", "b": "place b"}
NOW = datetime.now(UTC).replace(microsecond=0)


def store(folder: Path, places: Mapping[str, str] = PLACES, **more: object) -> Store:
    return Store(StateSettings(folder=folder, **more), places)  # type: ignore[arg-type]


def keys(*urls: str, text: str = "") -> list[Item]:
    return [KeySet("", url, text) for url in urls]


def whole(source: str, items: list[Item], at: datetime = NOW, revision: int = 1) -> Batch:
    return Batch(revision, [(source, item_key(item), item) for item in items], {source: at}, frozenset((source,)))


def change(source: str, *items: Item, gone: tuple[Item, ...] = (), revision: int = 2) -> Batch:
    changes: list[tuple[str, tuple[str, ...], Item | None]] = [(source, item_key(item), item) for item in items]
    changes += [(source, item_key(item), None) for item in gone]
    return Batch(revision, changes, {})


def found(folder: Path, places: Mapping[str, str] = PLACES, **more: object) -> dict[str, set[Item]]:
    """The pictures that another process finds in the folder."""
    opened = store(folder, places, **more)
    try:
        return {picture.source: set(picture.items) for picture in opened.pictures()}
    finally:
        opened.close()


def filled(folder: Path) -> None:
    one = store(folder)
    assert one.pictures() == []
    one.write(whole("a", keys("1", "2", "3")))
    one.write(whole("b", keys("4")))
    one.close()


FILLED = {"a": {*keys("1", "2", "3")}, "b": {*keys("4")}}


def test_pictures_are_found_again(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.pictures()
    one.write(whole("a", keys("1", "2", "3")))
    one.write(change("a", *keys("2", text="new"), gone=(*keys("1"), *keys("not there"))))
    one.write(whole("b", []))
    one.close()
    again = store(tmp_path)
    pictures = {picture.source: picture for picture in again.pictures()}
    assert {*pictures["a"].items} == {*keys("2", text="new"), *keys("3")}
    assert pictures["b"].items == ()
    assert pictures["a"].confirmed_at == NOW
    assert again.revision == 1
    assert again.current == {"a", "b"}
    again.close()


def test_a_confirmation_alone_is_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    one = store(tmp_path)
    one.pictures()
    later = NOW + timedelta(seconds=10)
    one.write(Batch(5, [], {"a": later}))
    one.close()
    one = store(tmp_path)
    assert {p.source: p.confirmed_at for p in one.pictures()} == {"a": later, "b": NOW}
    assert one.revision == 5
    one.close()


def test_a_picture_begins_with_all_that_its_source_has(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.pictures()
    with pytest.raises(StateError, match="no picture of a yet"):
        one.write(change("a", *keys("1")))
    one.close()
    assert found(tmp_path) == {}


def test_pictures_belong_to_a_place(tmp_path: Path) -> None:
    filled(tmp_path)
    assert found(tmp_path, {"a": "elsewhere", "b": "place b"}) == {"b": FILLED["b"]}
    assert found(tmp_path) == FILLED


def test_a_picture_of_a_place_that_is_not_read_any_more_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr("mesh_pilot.safety.state.store.FORGOTTEN_SECONDS", -1.0)
    one = store(tmp_path, {"a": "elsewhere", "b": "place b"})
    one.pictures()
    one.write(whole("a", keys("9")))
    one.close()
    monkeypatch.undo()
    assert found(tmp_path) == {"b": FILLED["b"]}


def test_a_control_plane_that_was_away_for_months_finds_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr("mesh_pilot.safety.state.store.FORGOTTEN_SECONDS", -1.0)
    assert found(tmp_path, {"a": "place a"}) == {"a": FILLED["a"]}, "one source alone, as of the mesh config at a start"
    one = store(tmp_path)
    assert len(one.pictures()) == 2
    one.write(Batch(2, [], {"a": NOW}))
    one.close()
    assert found(tmp_path) == FILLED


def test_a_picture_that_is_too_old_is_not_used_and_stays(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.pictures()
    one.write(whole("a", keys("1"), NOW - timedelta(hours=2)))
    one.write(whole("b", keys("4"), NOW - timedelta(hours=2)))
    one.close()
    with capture_logs() as logs:
        assert found(tmp_path, max_ages={"a": 3600.0}) == {"b": FILLED["b"]}
    assert [(line["source"], line["event"]) for line in logs] == [("a", "last picture of a source is not used")]
    assert found(tmp_path, max_age=3600.0, max_ages={"a": 9999999.0}) == {"a": {*keys("1")}}
    assert found(tmp_path).keys() == {"a", "b"}


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    before = os.umask(0)
    try:
        one = store(folder)
        one.pictures()
        one.write(whole("a", keys("1")))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm", "state.lock"), 0o600)
        one.close()
    finally:
        os.umask(before)


def test_a_folder_that_is_a_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    filled(tmp_path / "link")
    assert found(tmp_path / "real") == FILLED


def test_a_folder_into_which_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StateError, match="others may write into the folder"):
        store(tmp_path).pictures()
    assert [*tmp_path.iterdir()] == []


def test_one_process_has_a_folder(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.pictures()
    with pytest.raises(StateError, match=rf"another mesh-pilot uses this folder \(process {os.getpid()}\)"):
        store(tmp_path).pictures()
    one.write(whole("a", keys("1")))
    one.close()
    other = store(tmp_path)
    assert len(other.pictures()) == 1
    other.close()


# -- faults


def _garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


def _other_database(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE shopping (list)")
    other.close()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {FORMAT + 1}")
    other.close()


def _half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    path.rename(path.with_name("victim"))
    path.symlink_to("victim")


def _hard_link(path: Path) -> None:
    os.link(path, path.with_name("victim"))


def _lost_table(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE items")
    other.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_garbage, "not a database"),
        (_other_database, "something else"),
        (_newer, f"format {FORMAT + 1}"),
        (_half, "malformed|garbled"),
        (_folder, "not a file of its owner's alone"),
        (_link, "not a file of its owner's alone"),
        (_hard_link, "not a file of its owner's alone"),
        (_lost_table, "no such table"),
    ],
)
def test_a_file_that_cannot_be_used_is_moved_aside(tmp_path: Path, fault: Callable[[Path], None], reason: str) -> None:
    filled(tmp_path)
    fault(tmp_path / "state.db")
    victim = (tmp_path / "victim").read_bytes() if (tmp_path / "victim").exists() else b""
    one = store(tmp_path)
    with capture_logs() as logs:
        assert one.pictures() == []
    assert [line["event"] for line in logs] == ["state file is unusable and was moved aside"]
    assert re.search(reason, logs[0]["reason"])
    assert (tmp_path / logs[0]["to"]).exists()
    one.write(whole("a", keys("new")))
    one.close()
    assert found(tmp_path) == {"a": {*keys("new")}}
    if victim:
        assert (tmp_path / "victim").read_bytes() == victim


def test_few_files_that_were_moved_aside_are_kept(tmp_path: Path) -> None:
    for _ in range(KEPT_ASIDE + 3):
        filled(tmp_path)
        _garbage(tmp_path / "state.db")
        found(tmp_path)
        (tmp_path / "state.db").unlink()
    assert len([*tmp_path.glob(f"state.db{ASIDE}*")]) == KEPT_ASIDE


def test_a_row_that_is_garbled_costs_the_picture_of_its_source(tmp_path: Path) -> None:
    filled(tmp_path)
    with sqlite3.connect(tmp_path / "state.db") as other:
        other.execute("UPDATE items SET value = x'00' WHERE key LIKE '%\"2\"%'")
    other.close()
    with capture_logs() as logs:
        assert found(tmp_path) == {"b": FILLED["b"]}
    assert [(line["event"], line["source"]) for line in logs] == [("last picture of a source is not used", "a")]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM items WHERE key LIKE '%\"2\"%'",
        "UPDATE pictures SET confirmed_at = confirmed_at + 1 WHERE source = 'a'",
        "UPDATE pictures SET items = 2 WHERE source = 'a'",
        "UPDATE items SET key = replace(key, '2', '9')",
    ],
)
def test_a_picture_that_is_not_whole_is_not_used(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    with sqlite3.connect(tmp_path / "state.db") as other:
        other.execute(damage)
    other.close()
    assert found(tmp_path) == {"b": FILLED["b"]}


def test_a_file_that_is_deleted_while_it_is_open_is_begun_anew(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.pictures()
    one.write(whole("a", keys("1")))
    shutil.rmtree(tmp_path)
    with pytest.raises(StateError, match="moved or deleted"):
        one.write(change("a", *keys("2")))
    assert one.current == {"a"} or one.current == frozenset()
    with pytest.raises(StateError, match="no picture of a yet"):
        one.write(change("a", *keys("2")))
    assert one.current == frozenset()
    one.write(whole("a", keys("1", "2")))
    one.close()
    assert found(tmp_path) == {"a": {*keys("1", "2")}}


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = store(tmp_path)
    one.pictures()
    one.write(whole("a", keys("1")))
    with monkeypatch.context() as patched:
        patched.setattr("mesh_pilot.safety.state.store.save_row", _disk_full)
        with pytest.raises(StateError, match="disk is full"):
            one.write(change("a", *keys("2", "3")))
    one.write(change("a", *keys("4")))
    one.close()
    assert found(tmp_path) == {"a": {*keys("1", "4")}}


def test_a_disk_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = store(tmp_path)
    one.pictures()
    one.write(whole("a", keys("1", "2", "3")))
    one.write(whole("b", keys("4")))  # is in the log next to the file only
    crashed = tmp_path / "crashed"
    crashed.mkdir(mode=0o700)
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    one.close()
    connected = sqlite3.connect

    def connect(path: Path, **more: object) -> sqlite3.Connection:
        if crashed in path.parents:
            _disk_full()
        return connected(path, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("sqlite3.connect", connect)
    again = store(crashed)
    with pytest.raises(StateFault, match="disk is full"):
        again.pictures()
    assert {picture.source: {*picture.items} for picture in again.pictures_of_copy()} == FILLED
    assert again.current == frozenset(), "nothing can be written there yet"
    monkeypatch.undo()
    again.write(whole("a", keys("9")))
    again.close()
    assert found(crashed) == {**FILLED, "a": {*keys("9")}}


def _disk_full(*_: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


# -- crashes and damage, anywhere

urls = st.sampled_from(["1", "2", "3", "4", "5"])
pictures = st.dictionaries(urls, st.text(max_size=300), max_size=5)


@settings(max_examples=examples(25), deadline=None)
@given(
    writes=st.lists(st.tuples(st.sampled_from("ab"), pictures), min_size=1, max_size=6),
    cut=st.floats(0, 1),
)
def test_after_a_crash_within_any_write_there_is_the_last_or_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, dict[str, str]]], cut: float
) -> None:
    """A crash is a copy of the files whose log ends somewhere, as that of a process that was killed does."""
    folder = tmp_path_factory.mktemp("state")
    one = store(folder)
    one.pictures()
    states: list[dict[str, set[Item]]] = [{}]
    logs = [0]
    current: dict[str, dict[str, str]] = {}
    for source, new in writes:
        old = current.get(source)
        items = [KeySet("", url, text) for url, text in new.items()]
        if old is None:
            one.write(whole(source, list(items)))
        else:
            one.write(change(source, *items, gone=tuple(KeySet("", url) for url in old.keys() - new.keys())))
        current[source] = new
        states.append({name: {KeySet("", u, t) for u, t in has.items()} for name, has in current.items()})
        logs.append((folder / "state.db-wal").stat().st_size)
    copy = tmp_path_factory.mktemp("copy")
    for name in ("state.db", "state.db-wal"):
        shutil.copy(folder / name, copy / name)
    length = round(logs[-1] * cut)
    os.truncate(copy / "state.db-wal", length)
    one.close()
    after = found(copy)
    possible = [state for state, log in zip(states, logs, strict=True) if log <= length]
    assert after == possible[-1]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_damage_costs_pictures_but_never_makes_a_wrong_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("state")
    one = store(folder)
    one.pictures()
    expected = {
        "a": {KeySet("", str(n), "text" * n) for n in range(30)},
        "b": {KeySet("", str(n), "other" * 500) for n in range(5)},
    }
    for source, items in expected.items():
        one.write(whole(source, list(items)))
    one.close()
    file = folder / "state.db"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    file.write_bytes(content)
    after = found(folder)
    for source, items in after.items():
        assert items == expected[source]


@pytest.mark.parametrize("seed", range(30))
def test_a_picture_that_is_written_after_damage_has_none_of_the_old_items(tmp_path: Path, seed: int) -> None:
    """Pages that are garbled may hide rows from what deletes them, and show them again later."""
    old, new = (keys(*(f"https://{name}{i}.test" for i in range(12)), text="k" * 200) for name in "ab")
    first = store(tmp_path)
    first.pictures()
    first.write(whole("a", old))
    first.close()
    pick, file = random.Random(seed), tmp_path / "state.db"
    content = bytearray(file.read_bytes())
    for _ in range(40):
        content[pick.randrange(4096, len(content))] ^= 1 << pick.randrange(8)
    file.write_bytes(content)
    second = store(tmp_path)
    found = second.pictures()
    if "a" not in second.current:
        for _ in range(3):
            with suppress(StateError):  # the file makes way, and the next write begins another
                second.write(whole("a", new))
                break
    second.close()
    kept = {item_key(item) for picture in store(tmp_path).pictures() for item in picture.items}
    assert kept == {item_key(item) for item in (old if found else new)}
