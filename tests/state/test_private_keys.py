"""Private keys in the state: encrypted, or not there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from mesh_pilot.identity.authority import encryption
from mesh_pilot.model.events import Item, KeySet, Replace, Secret, Synced
from mesh_pilot.safety.state.recorder import Recorder
from mesh_pilot.safety.state.settings import HistoryBounds
from mesh_pilot.world import World
from mesh_pilot.world.intake import Intake
from tests.state.fakes import FakeSource
from tests.state.test_store import change, found, store, whole

MARK = b"-----BEGIN PRIVATE KEY-----\nTHE-MARKED-KEY\n"
PRIVATE = Secret("edge", "shop", b"THE-CHAIN", MARK)
PUBLIC = Secret("ca", "shop", ca_certificates=b"roots")
OTHER = KeySet("", "1", "x")
ITEMS: list[Item] = [PRIVATE, PUBLIC, OTHER]


def key_file(folder: Path, *keys: str, mode: int = 0o600) -> Path:
    file = folder / f"keys-{len([*folder.iterdir()])}"
    file.write_text("\n".join(key * 32 for key in keys))
    file.chmod(mode)
    return file


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@contextmanager
def recording(folder: Path, key_file: Path | None) -> Iterator[Recorder]:
    """A control plane on the folder, without tasks, whose source has not answered yet."""
    opened = store(folder, key_file=key_file, history=HistoryBounds(revisions=0))
    world = World()
    world.expect("a")
    intake = Intake(world)
    reducer: Any = SimpleNamespace(intake=intake)
    for picture in opened.pictures():
        world.apply(intake.restored(picture.source, picture.items, picture.confirmed_at))
    yield Recorder(opened, world, reducer, [FakeSource("a")])
    opened.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def kept(folder: Path, *items: Item, **more: object) -> None:
    one = store(folder, **more)
    one.pictures()
    one.write(whole("a", [*items]))
    assert MARK not in contents(folder)
    one.write(change("a", *items))
    assert MARK not in contents(folder)
    one.close()


def test_without_a_key_they_are_not_kept(folder: Path) -> None:
    kept(folder, *ITEMS)
    assert b"THE-CHAIN" not in contents(folder)
    assert found(folder) == {"a": {PUBLIC, OTHER}}


def test_with_a_key_they_are_kept_encrypted(folder: Path, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "ab")
    kept(folder, *ITEMS, key_file=keys)
    assert MARK not in contents(folder)
    assert found(folder, key_file=keys) == {"a": {*ITEMS}}


@pytest.mark.parametrize("keys", [["cd"], []], ids=["another key", "no key"])
def test_what_cannot_be_decrypted_is_left_out_alone_and_said(folder: Path, tmp_path: Path, keys: list[str]) -> None:
    kept(folder, *ITEMS, key_file=key_file(tmp_path, "ab"))
    more = {"key_file": key_file(tmp_path, *keys)} if keys else {}
    one = store(folder, **more)
    with capture_logs() as logs:
        (picture,) = one.pictures()
    assert {*picture.items} == {PUBLIC, OTHER}
    assert [(line["event"], line["source"], line["count"]) for line in logs] == [
        ("private keys in a last picture are not used", "a", 1)
    ]
    assert one.current == frozenset(), "it is written whole once its source has answered, without what is stale in it"
    one.close()


def test_a_key_is_replaced_by_one_before_it(folder: Path, tmp_path: Path) -> None:
    kept(folder, *ITEMS, key_file=key_file(tmp_path, "ab"))
    both = key_file(tmp_path, "cd", "ab")
    assert found(folder, key_file=both) == {"a": {*ITEMS}}
    kept(folder, *ITEMS, key_file=both)
    assert found(folder, key_file=key_file(tmp_path, "cd")) == {"a": {*ITEMS}}


def test_a_restart_with_both_keys_encrypts_everything_with_the_new_one(folder: Path, tmp_path: Path) -> None:
    """Though its sources have nothing new to say, or do not answer."""
    kept(folder, *ITEMS, key_file=key_file(tmp_path, "ab"))
    with recording(folder, key_file(tmp_path, "cd", "ab")) as recorder:
        recorder.store.write(recorder._batch())
    assert found(folder, key_file=key_file(tmp_path, "cd")) == {"a": {*ITEMS}}


@pytest.mark.parametrize("wrong", [["cd"], []], ids=["another key", "no key"])
def test_a_start_without_the_key_destroys_nothing_that_its_source_has_not_replaced(
    folder: Path, tmp_path: Path, wrong: list[str]
) -> None:
    right = key_file(tmp_path, "ab")
    kept(folder, *ITEMS, key_file=right)
    with recording(folder, key_file(tmp_path, *wrong) if wrong else None) as recorder:
        assert {*recorder._world.items_of("a").values()} == {PUBLIC, OTHER}
        recorder.store.write(recorder._batch())
    assert found(folder, key_file=right) == {"a": {*ITEMS}}
    with recording(folder, None) as recorder:
        source = recorder._sources["a"]
        assert isinstance(source, FakeSource)
        source.synced = True
        admitted = recorder._reducer.intake.admit([Replace("a", (), (OTHER,)), Synced("a")], 0.0)
        recorder._world.apply(admitted.events)
        recorder.store.write(recorder._batch())
    assert found(folder, key_file=right) == {"a": {OTHER}}


def test_an_encrypted_key_is_that_of_its_name_only(folder: Path, tmp_path: Path) -> None:
    keys = key_file(tmp_path, "ab")
    one = Secret("one", "shop", private_key=MARK)
    two = Secret("two", "shop", private_key=b"other")
    opened = store(folder, key_file=keys)
    opened.pictures()
    opened.write(whole("a", [one, two]))
    database = opened._database
    assert database is not None
    with database.transaction() as connection:
        values = connection.execute("SELECT rowid, key, value FROM items ORDER BY key").fetchall()
        for (rowid, key, _), (_, _, value) in zip(values, reversed(values), strict=True):
            checksum = zlib.crc32(value, zlib.crc32(key.encode()))
            connection.execute("UPDATE items SET value = ?, checksum = ? WHERE rowid = ?", (value, checksum, rowid))
    opened.close()
    assert found(folder, key_file=keys) == {}


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("ab" * 32, 0o644, "chmod 600"),
        ("short", 0o600, "32 bytes"),
        ("", 0o600, "32 bytes"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_key_file_that_is_none_is_said_and_nothing_private_kept(
    folder: Path, tmp_path: Path, text: str | None, mode: int, reason: str
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with capture_logs() as logs:
        kept(folder, *ITEMS, key_file=file)
    (line,) = logs
    assert line["event"] == "private keys are not kept in the state"
    assert reason in line["reason"]
    assert text is None or not text or text not in line["reason"]
    assert found(folder) == {"a": {PUBLIC, OTHER}}


def test_the_ca_reads_the_same_files_of_keys(tmp_path: Path) -> None:
    assert encryption.read_keys(key_file(tmp_path, "ab", "cd")) == (bytes.fromhex("ab" * 32), bytes.fromhex("cd" * 32))
