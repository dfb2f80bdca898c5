from __future__ import annotations

import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.identity.authority import folder as folder_module
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.store import StoreConflict, StoredFiles, StoreError
from tests.support.authorities import set_mode

EMPTY = StoredFiles().version
FILES = {"ca-cert.pem": b"certificate", "ca-key.pem": b"secret", "root-cert.pem": b"root"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ca"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_what_is_written_is_read_and_keys_are_for_their_owner(folder: Path) -> None:
    store = FolderStore(folder)
    assert (await store.read()).files == {}
    await store.write(FILES, EMPTY)
    assert (await store.read()).files == FILES
    assert (mode(folder), mode(folder / "ca-key.pem"), mode(folder / "ca-cert.pem")) == (0o700, 0o600, 0o644)
    assert names_in(folder) == [".lock", "ca-cert.pem", "ca-key.pem", "root-cert.pem"]


async def test_files_that_are_not_written_again_are_removed_and_those_of_others_stay(folder: Path) -> None:
    store = FolderStore(folder)
    await store.write(FILES, EMPTY)
    (folder / "tokens.json").write_text("{}")
    await store.write({"root-cert.pem": b"new"}, (await store.read()).version)
    assert (await store.read()).files == {"root-cert.pem": b"new"}
    assert (folder / "tokens.json").exists()


async def test_of_two_who_write_at_once_one_wins(folder: Path) -> None:
    won: list[int] = []
    have_read: list[int] = []
    all_have_read = trio.Event()

    async def replica(number: int) -> None:
        store = FolderStore(folder)
        version = (await store.read()).version
        have_read.append(number)
        if len(have_read) == 8:
            all_have_read.set()
        await all_have_read.wait()
        try:
            await store.write({"root-cert.pem": b"%d" % number}, version)
        except StoreConflict:
            return
        won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(replica, number)
    (winner,) = won
    assert (await FolderStore(folder).read()).files == {"root-cert.pem": b"%d" % winner}


@pytest.mark.parametrize("files_moved", [0, 1, 2, 3])
async def test_a_writer_that_dies_amid_a_change_has_made_all_of_it(
    folder: Path, files_moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(folder)
    await store.write(FILES, EMPTY)
    version = (await store.read()).version
    new = {"ca-cert.pem": b"C", "ca-key.pem": b"K", "root-cert.pem": b"R"}
    moved = 0
    replace = Path.replace

    def die(path: Path, target: Path) -> Path:
        nonlocal moved
        if moved == files_moved:
            raise KeyboardInterrupt
        moved += 1
        return replace(path, target)

    with monkeypatch.context() as dying:
        dying.setattr(Path, "replace", die)
        dying.setattr(folder_module.shutil, "rmtree", lambda *_, **__: die(folder, folder))
        with pytest.raises(KeyboardInterrupt):
            await store.write(new, version)
    assert (await FolderStore(folder).read()).files == new


async def test_a_writer_that_dies_before_that_has_made_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(folder)
    await store.write(FILES, EMPTY)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            await store.write({"root-cert.pem": b"new"}, (await store.read()).version)
    assert (await FolderStore(folder).read()).files == FILES


@pytest.mark.parametrize("given", [0o604, 0o620, 0o602, 0o666])
async def test_a_key_that_others_may_use_is_refused(folder: Path, given: int) -> None:
    await FolderStore(folder).write(FILES, EMPTY)
    (folder / "ca-key.pem").chmod(given)
    with pytest.raises(StoreError, match=r"ca-key.pem: other users may read or change.*chmod 600"):
        await FolderStore(folder).read()


async def test_a_folder_that_everybody_may_write_is_refused(folder: Path) -> None:
    await FolderStore(folder).write(FILES, EMPTY)
    set_mode(folder, 0o777)
    with pytest.raises(StoreError, match="every user may replace the files"):
        await FolderStore(folder).read()


async def test_links_are_followed_by_reading_and_replaced_by_writing(folder: Path, tmp_path: Path) -> None:
    """As Kubernetes mounts secrets."""
    data = folder / "..data"
    data.mkdir(parents=True)
    (data / "root-cert.pem").write_bytes(b"mounted")
    (folder / "root-cert.pem").symlink_to(data / "root-cert.pem")
    store = FolderStore(folder)
    stored = await store.read()
    assert stored.files == {"root-cert.pem": b"mounted"}
    await store.write({"root-cert.pem": b"new"}, stored.version)
    assert (data / "root-cert.pem").read_bytes() == b"mounted"
    assert not (folder / "root-cert.pem").is_symlink()


async def test_a_pipe_in_place_of_a_file_is_refused_at_once(folder: Path) -> None:
    await FolderStore(folder).write({}, EMPTY)
    os.mkfifo(folder / "ca-cert.pem")
    with trio.fail_after(5), pytest.raises(StoreError, match="is not a file"):
        await FolderStore(folder).read()


async def test_a_change_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "POLL_SECONDS", 0.0)
    store = FolderStore(folder)
    await store.write(FILES, EMPTY)
    version = (await store.read()).version
    looks = 0
    look = store._stamps

    def stamps() -> object:
        nonlocal looks
        looks += 1
        if looks == 20:
            (folder / "root-cert.pem").write_bytes(b"another")
        return look()

    monkeypatch.setattr(store, "_stamps", stamps)
    with trio.fail_after(60):
        await store.changed(version)
    assert looks == 20


async def test_a_file_system_that_hangs_holds_up_nothing_else_and_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    store = FolderStore(folder)
    await store.write(FILES, EMPTY)
    version = (await store.read()).version
    hangs, begun, asked = threading.Event(), threading.Event(), 0
    look = store._stamps

    def stamps() -> object:
        nonlocal asked
        asked += 1
        begun.set()
        hangs.wait(60)
        return look()

    async def twelve_seconds() -> None:
        for second in range(12):
            await wait_all_tasks_blocked()
            mock_clock.jump(1.0)
            if second == 0:
                await wait_all_tasks_blocked()
                await trio.to_thread.run_sync(begun.wait, 60)

    monkeypatch.setattr(store, "_stamps", stamps)
    try:
        for wait in (partial(store.changed, version), store.read, partial(store.write, {}, version)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(twelve_seconds)
                with pytest.raises(StoreError, match="ca: its file system has not answered within 10 s"):
                    await wait()
        assert asked == 1, "one thread hangs, and no other is started"
    finally:
        hangs.set()
    assert (await store.read()).files == FILES


def test_no_content_is_in_the_representation() -> None:
    assert "secret" not in repr(StoredFiles(FILES))
