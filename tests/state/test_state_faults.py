"""A state folder that is damaged, taken away or forbidden, under ``mesh-pilot discovery`` as people run it.

In each case the mesh that is served is right, the log has one clear line about the state, and the process continues.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.state.planes import complaints, plane
from tests.support.disks import fill, is_root, mounted
from tests.support.pilot import served, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NOBODY = 65534


def run_once(folder: Path, port: int, *, how: signal.Signals = signal.SIGTERM) -> None:
    """A plane that has served these services, and written them down, is ended."""
    with plane(folder, port=port) as pilot:
        until(lambda: served(pilot.grpc_port) == port, 60, "served")
        until(lambda: is_written(folder), 60, "the state is written")
        pilot.process.send_signal(how)
        pilot.process.wait(60)


def is_written(folder: Path) -> bool:
    """True if something of the services is in the state's files."""
    files = (folder / "state" / name for name in ("state.db", "state.db-wal"))
    return any(file.is_file() and b"s7.test" in file.read_bytes() for file in files)


def truncated(share: float) -> Callable[[Path], None]:
    def fault(state: Path) -> None:
        os.truncate(state / "state.db", int((state / "state.db").stat().st_size * share))

    return fault


def garbled(seed: int, *, first: int = 0) -> Callable[[Path], None]:
    def fault(state: Path) -> None:
        pick, file = random.Random(seed), state / "state.db"
        content = bytearray(file.read_bytes())
        for _ in range(40):
            content[pick.randrange(first, len(content))] ^= 1 << pick.randrange(8)
        file.write_bytes(content)

    return fault


def not_sqlite(state: Path) -> None:
    (state / "state.db").write_text("hello\n" * 1000)


def a_folder(state: Path) -> None:
    (state / "state.db").unlink()
    (state / "state.db").mkdir()
    (state / "state.db" / "keep").write_text("mine")


def another_format(state: Path) -> None:
    database = sqlite3.connect(state / "state.db")
    database.execute("PRAGMA user_version = 4711")
    database.commit()
    database.close()


OFFLINE = {
    "empty": truncated(0),
    "one byte": truncated(0.0001),
    "a third": truncated(0.33),
    "nearly whole": truncated(0.97),
    "header garbled": garbled(1),
    "pages garbled": garbled(2, first=100),
    "more pages garbled": garbled(3, first=4096),
    "not SQLite": not_sqlite,
    "a folder": a_folder,
    "another format": another_format,
}


def said_of(line: str) -> str:
    """A complaint without its time: what is said, and of which source's picture or of the file."""
    return line.partition(" level=")[2]


@pytest.mark.parametrize("fault", OFFLINE)
def test_a_damaged_file_costs_the_memory_and_nothing_else(tmp_path: Path, fault: str) -> None:
    """It is set aside with one line, or the pictures of single sources are, with a line each; nothing is said twice;
    and the next start has a memory again."""
    run_once(tmp_path, 80)
    OFFLINE[fault](tmp_path / "state")
    with plane(tmp_path, port=81) as pilot:
        until(lambda: served(pilot.grpc_port) == 81, 60, "the files are served")
        said = complaints(pilot)
        assert all("state.db" in line for line in said), said
        assert len({said_of(line) for line in said}) == len(said), said
        until(lambda: is_written(tmp_path), 60, "the state is written again")
        pilot.process.terminate()
        pilot.process.wait(60)
    with plane(tmp_path, port=None) as pilot:
        assert served(pilot.grpc_port) == 81
        assert complaints(pilot) == []


@pytest.mark.parametrize("name", ["state.db-wal", "state.db-shm"])
@pytest.mark.parametrize("how", ["deleted", "garbled", "half"])
def test_files_beside_the_database_are_lost_after_a_crash(tmp_path: Path, name: str, how: str) -> None:
    run_once(tmp_path, 80, how=signal.SIGKILL)
    file = tmp_path / "state" / name
    if how == "deleted":
        file.unlink(missing_ok=True)
    elif file.exists():
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if how == "half" else random.Random(5).randbytes(len(content)))
    with plane(tmp_path, port=81) as pilot:
        until(lambda: served(pilot.grpc_port) == 81, 60, "the files are served")
        assert len(complaints(pilot)) <= 1


def test_a_link_in_place_of_the_database_is_not_followed(tmp_path: Path) -> None:
    run_once(tmp_path, 80)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "state" / "state.db").unlink()
    (tmp_path / "state" / "state.db").symlink_to(victim)
    with plane(tmp_path, port=81) as pilot:
        until(lambda: served(pilot.grpc_port) == 81, 60, "the files are served")
        assert len(complaints(pilot)) == 1
    assert victim.read_text() == "precious"


def test_the_folder_may_be_reached_by_a_link(tmp_path: Path) -> None:
    """As with systemd's DynamicUser."""
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "private")
    run_once(tmp_path, 80)
    assert (tmp_path / "private" / "state.db").is_file()
    with plane(tmp_path, port=None) as pilot:
        assert complaints(pilot) == []


def test_a_second_process_on_the_folder_goes_on_without(tmp_path: Path) -> None:
    with plane(tmp_path, port=80) as first:
        until(lambda: is_written(tmp_path), 60, "the state is written")
        other = tmp_path / "other"
        other.mkdir()
        with plane(other, port=90, state=tmp_path / "state") as second:
            assert served(second.grpc_port) == 90
            (said,) = complaints(second)
            assert str(tmp_path / "state") in said
        first.write(81)
        until(lambda: served(first.grpc_port) == 81, 60, "the first follows")
        assert complaints(first) == []
        first.process.terminate()
        first.process.wait(60)
    with away(tmp_path / "config"), plane(tmp_path, port=None) as pilot:
        assert served(pilot.grpc_port) == 81, "the second has left the first's memory alone"


@pytest.mark.parametrize("what", ["folder", "database"])
def test_the_folder_is_deleted_while_the_plane_runs(tmp_path: Path, what: str) -> None:
    with plane(tmp_path, port=80) as pilot:
        until(lambda: is_written(tmp_path), 60, "the state is written")
        if what == "folder":
            shutil.rmtree(tmp_path / "state")
        else:
            for file in (tmp_path / "state").glob("state.db*"):
                file.unlink()
        for port in range(81, 90):
            pilot.write(port)
            until(lambda port=port: served(pilot.grpc_port) == port, 60, "it follows")
        until(lambda: bool(complaints(pilot)), 60, "it is said")
        pilot.process.terminate()
        assert pilot.process.wait(60) == 0
        assert len(complaints(pilot)) <= 2, complaints(pilot)
    with plane(tmp_path, port=None) as pilot:
        assert served(pilot.grpc_port) == 89
        assert complaints(pilot) == []


def small_files() -> None:
    """No file that this process writes may be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))


def test_files_may_not_grow(tmp_path: Path) -> None:
    with plane(tmp_path, port=80, preexec_fn=small_files) as pilot:
        for port in range(81, 86):
            pilot.write(port)
            until(lambda port=port: served(pilot.grpc_port) == port, 60, "it follows")
        until(lambda: bool(complaints(pilot)), 60, "it is said")
        assert len(complaints(pilot)) == 1, complaints(pilot)
        pilot.process.terminate()
        assert pilot.process.wait(60) == 0
    with plane(tmp_path, port=None) as pilot:
        assert served(pilot.grpc_port) == 85


@is_root
def test_a_full_disk_is_said_once_and_so_is_that_there_is_room_again(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "size=600k"), plane(tmp_path, port=80) as pilot:
        until(lambda: is_written(tmp_path), 60, "the state is written")
        ballast = tmp_path / "state" / "ballast"
        fill(ballast)
        for port in range(81, 100):
            pilot.write(port)
            until(lambda port=port: served(pilot.grpc_port) == port, 60, "it follows")
        until(lambda: bool(complaints(pilot)), 60, "it is said")
        assert len(complaints(pilot)) == 1, complaints(pilot)
        before = len(pilot.log())
        ballast.unlink()
        until(lambda: "scope=state" in pilot.log()[before:], 90, "it works again, and that is said")
        pilot.process.kill()
        pilot.process.wait()
        with away(tmp_path / "config"), plane(tmp_path, port=None) as again:
            assert served(again.grpc_port) == 99, "nothing is lost meanwhile"


@is_root
def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with mounted(state, "size=2m"):
        run_once(tmp_path, 80)
        subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        with plane(tmp_path, port=81) as pilot:
            until(lambda: served(pilot.grpc_port) == 81, 60, "the files are served")
            assert len(complaints(pilot)) == 1, complaints(pilot)


@is_root
def test_the_folder_is_another_users(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    with plane(tmp_path, port=80) as pilot:
        assert served(pilot.grpc_port) == 80
        (said,) = complaints(pilot)
        assert str(state) in said and str(NOBODY) in said


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A folder that is not there for the length of the block."""
    elsewhere = folder.with_name("elsewhere")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)
