"""When a watcher tells, on real folders. Trio's clock stands still unless a test moves it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.sources.files import inotify
from mesh_pilot.sources.files.watch import Watched, Watcher
from mesh_pilot.sources.files.writers import Writers

OPEN_SECONDS = 30

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")


class Told:
    """How often the watcher said that something may have changed."""

    def __init__(self) -> None:
        self.count = 0
        self._event = trio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[tuple[Watcher, Told, Watched]]:
    told = Told()
    watched = Watched.over([str(folder)], [str(folder)])
    async with trio.open_nursery() as nursery:
        watcher = Watcher(nursery, told, 30, Writers(OPEN_SECONDS))
        assert await watcher.over(watched)
        assert not await watcher.over(watched)
        yield watcher, told, watched
        nursery.cancel_scope.cancel()


async def turns(count: int = 20) -> None:
    """Let the operating system and the other tasks have their say."""
    for _ in range(count):
        await trio.lowlevel.checkpoint()


@linux_only
async def test_a_file_that_is_moved_into_its_place_is_told_without_any_waiting(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (tmp_path / "aside").write_text("x")
    async with watching(folder) as (_, told, _):
        (tmp_path / "aside").rename(folder / "a.yaml")
        await told.wait()
        (folder / "a.yaml").unlink()
        await told.wait()


@linux_only
async def test_a_file_that_is_being_written_is_told_once_it_is_closed(tmp_path: Path, mock_clock: MockClock) -> None:
    async with watching(tmp_path) as (_, told, _):
        with (tmp_path / "a.yaml").open("w") as file:
            for _ in range(3):
                file.write("half")
                file.flush()
                await turns()
            assert told.count == 0
        await told.wait()
        await turns()
        assert told.count == 1


@linux_only
async def test_a_file_that_stays_open_is_told_once_it_is_overdue_and_logged(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    with capture_logs() as logs:
        async with watching(tmp_path) as (_, told, _):
            with (tmp_path / "a.yaml").open("w") as file:
                file.write("all of it")
                file.flush()
                await turns()
                mock_clock.jump(1)
                await turns()
                told.count = 0
                mock_clock.jump(OPEN_SECONDS)
                await told.wait()
                await turns()
                assert told.count == 1
                file.write("and more")
                file.flush()
                await turns()
                mock_clock.jump(1)
                await told.wait()
    assert [entry["event"] for entry in logs] == ["file is still open for writing; it counts as it stands from now on"]


@linux_only
@pytest.mark.parametrize(
    ("name", "is_waited_for"), [("plane.log", False), ("mesh", True), ("b.yml", True), ("tls.key", True)]
)
async def test_only_a_file_that_may_be_read_is_waited_for(tmp_path: Path, name: str, is_waited_for: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "mesh")
    writers = Writers(OPEN_SECONDS)
    async with trio.open_nursery() as nursery:
        watcher = Watcher(nursery, lambda: None, 1, writers)
        await watcher.over(Watched.over([str(tmp_path)], [str(tmp_path / "link")]))
        with (tmp_path / name).open("w") as file:
            file.write("a line")
            file.flush()
            watcher.catch_up()
            assert (str(tmp_path / name) in writers.open) is is_waited_for
        nursery.cancel_scope.cancel()


@linux_only
async def test_a_link_that_comes_is_told(tmp_path: Path, mock_clock: MockClock) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (tmp_path / "aside.yaml").write_text("x")
    async with watching(folder) as (_, told, _):
        for make in ((folder / "soft.yaml").symlink_to, (folder / "hard.yaml").hardlink_to):
            make(tmp_path / "aside.yaml")
            await turns()
            mock_clock.jump(1)
            await told.wait()


@linux_only
async def test_a_writer_is_known_whatever_folders_come_and_go_meanwhile(tmp_path: Path, mock_clock: MockClock) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    writers = Writers(OPEN_SECONDS)
    async with trio.open_nursery() as nursery:
        told = Told()
        watcher = Watcher(nursery, told, 30, writers)
        assert await watcher.over(Watched(frozenset({str(tmp_path / "one")})))
        with (tmp_path / "one" / "a.yaml").open("w") as file:
            file.write("half")
            file.flush()
            watcher.catch_up()
            assert writers.open == {str(tmp_path / "one" / "a.yaml")}
            assert await watcher.over(Watched(frozenset({str(tmp_path / "one"), str(tmp_path / "two")})))
        (tmp_path / "two" / "b.yaml").write_text("x")
        watcher.catch_up()
        assert writers.open == frozenset()
        assert writers.modified == {str(tmp_path / "one" / "a.yaml"), str(tmp_path / "two" / "b.yaml")}
        assert await watcher.over(Watched(frozenset({str(tmp_path / "two")})))
        await turns()
        told.count = 0
        (tmp_path / "one" / "a.yaml").write_text("x")
        await turns()
        assert told.count == 0
        nursery.cancel_scope.cancel()


@linux_only
async def test_a_folder_that_was_replaced_is_watched_anew(tmp_path: Path, mock_clock: MockClock) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    async with watching(folder) as (watcher, told, watched):
        folder.rename(tmp_path / "before")
        folder.mkdir()
        await told.wait()
        await turns()
        assert await watcher.over(watched)
        told.count = 0
        (folder / "a.yaml").write_text("x")
        await told.wait()


async def test_what_does_not_matter_is_not_told(tmp_path: Path, mock_clock: MockClock) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    async with watching(folder) as (_, told, _):
        (tmp_path / "next to").write_text("x")
        await turns()
        (folder / "a.yaml").write_text("x")
        await told.wait()
        assert told.count == 1


async def test_without_inotify_a_thread_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "is_there", lambda: False)
    async with watching(tmp_path) as (_, told, _):
        (tmp_path / "a.yaml").write_text("x")
        await told.wait()


@linux_only
async def test_a_folder_that_is_not_there_is_a_failure_with_its_name(tmp_path: Path) -> None:
    told = Told()
    async with trio.open_nursery() as nursery:
        watcher = Watcher(nursery, told, 30, Writers(OPEN_SECONDS))
        await watcher.over(Watched(frozenset({str(tmp_path / "nowhere")})))
        assert "nowhere" in watcher.failure
        assert told.count == 1
