"""The task that keeps the memory: on disk over restarts, else in memory, with the minutes of other workers."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.traffic import Counter
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.traffic.file import NAME, TrafficFile
from mesh_pilot.traffic.keeper import TrafficKeeper
from mesh_pilot.traffic.memory import FoldedMinutes, MeshTraffic, TrafficMemory
from mesh_pilot.traffic.spans import HOUR, MINUTE, TrafficSpan
from mesh_pilot.traffic.table import TrafficTable
from tests.support.envoy import eventually
from tests.support.planes import running_plane
from tests.support.traffic_counts import reporting, row

WEB = "outbound|80||web.shop"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def mesh_traffic(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> MeshTraffic:
    return MeshTraffic(TrafficTable(), TrafficMemory(now=now))


def loaded(folder: Path) -> list[TrafficSpan]:
    file = TrafficFile(folder)
    try:
        return file.load()
    finally:
        file.close()


def wall_clock() -> Callable[[], datetime]:
    """A wall clock that goes with that of Trio."""
    begin, noon = trio.current_time(), datetime(2026, 11, 29, 12, tzinfo=UTC)
    return lambda: noon + timedelta(seconds=trio.current_time() - begin)


def report(traffic: MeshTraffic, requests: int) -> None:
    traffic.table.add(reporting(), [row(WEB, requests=requests)], of_agent=True)


def requests(traffic: MeshTraffic) -> int:
    return sum(each.counts[Counter.REQUESTS] for each in traffic.memory.hours(LONG_AGO))


@asynccontextmanager
async def running(keeper: TrafficKeeper, *, has_file: bool = True) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        if has_file:
            await keeper.restored.wait()
        else:
            await wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


async def test_what_was_counted_outlives_a_restart_to_the_last_slot(tmp_path: Path) -> None:
    for run in range(1, 4):
        traffic = mesh_traffic()
        async with running(TrafficKeeper(traffic, tmp_path)):
            assert requests(traffic) == run - 1
            report(traffic, 1)
        assert requests(traffic) == run
    assert modes_in(tmp_path) == {NAME: 0o600}


def modes_in(folder: Path) -> Mapping[str, int]:
    return {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}


async def test_without_a_folder_it_is_in_memory_only() -> None:
    traffic = mesh_traffic()
    async with running(TrafficKeeper(traffic), has_file=False):
        report(traffic, 1)
    assert requests(traffic) == 1


async def test_minutes_are_folded_as_they_end(autojump_clock: MockClock) -> None:
    traffic = mesh_traffic(wall_clock())
    async with running(TrafficKeeper(traffic), has_file=False):
        report(traffic, 3)
        await trio.sleep(100)
        assert requests(traffic) == 3
        await trio.sleep(7200)
        assert traffic.memory.statistics().hours == 2
        assert requests(traffic) == 3


async def test_a_garbled_file_makes_way_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    traffic = mesh_traffic()
    with capture_logs() as logs:
        async with running(TrafficKeeper(traffic, tmp_path)):
            report(traffic, 2)
    assert [each["event"] for each in logs] == ["file of traffic is unusable and was moved aside"]
    assert sum(span.slots for span in loaded(tmp_path)) > 0
    assert (tmp_path / f"{NAME}.unusable").exists()


def test_a_garbled_span_is_left_out_and_said(tmp_path: Path) -> None:
    file = TrafficFile(tmp_path)
    spans = [TrafficSpan(minute * MINUTE, MINUTE, 6, data=b"some bytes") for minute in range(3)]
    file.write({each.key: each for each in spans})
    file.close()
    connection = sqlite3.connect(tmp_path / NAME)
    with connection:
        connection.execute("UPDATE spans SET data = ? WHERE begin = 60", (b"other bytes",))
        connection.execute("UPDATE spans SET slots = ? WHERE begin = 120", ("many",))
    connection.close()
    with capture_logs() as logs:
        assert loaded(tmp_path) == spans[:1]
    assert [each["spans"] for each in logs] == [2]


def test_spans_are_replaced_and_deleted(tmp_path: Path) -> None:
    file = TrafficFile(tmp_path)
    first, second = TrafficSpan(0, MINUTE, 6), TrafficSpan(0, HOUR, 360, has_gap=True, left_out=3, data=b"rows")
    file.write({first.key: first, second.key: second})
    file.write({first.key: None})
    assert file.load() == [second]
    file.close()


def test_a_file_is_of_one_process_at_a_time(tmp_path: Path) -> None:
    file, other = TrafficFile(tmp_path), TrafficFile(tmp_path)
    file.write({})
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.load()
    file.close()
    assert other.load() == []
    other.close()


def lose_file(folder: Path) -> None:
    """The file is gone, and as others may write into the folder, none is made."""
    (folder / NAME).unlink()
    folder.chmod(0o777)


def make_own(folder: Path) -> None:
    folder.chmod(0o700)


async def test_a_disk_that_takes_nothing_is_said_once_and_all_is_written_later(tmp_path: Path) -> None:
    traffic = mesh_traffic()
    keeper = TrafficKeeper(traffic, tmp_path)
    async with running(keeper):
        lose_file(tmp_path)
        with capture_logs() as logs:
            for begin in (-3600, -60):
                traffic.memory.add(TrafficSpan(int(traffic.memory.now().timestamp()) // 60 * 60 + begin, MINUTE, 6))
                await keeper.fold()
        make_own(tmp_path)
    assert [each["event"][:28] for each in logs] == ["traffic is not kept on disk;"]
    kept = loaded(tmp_path)
    assert {each.key for each in kept} >= {each.key for each in traffic.memory.spans()}


async def test_minutes_of_other_workers_are_had_once_and_what_is_missing_is_a_gap(autojump_clock: MockClock) -> None:
    now = wall_clock()
    first, second = mesh_traffic(now), mesh_traffic(now)
    is_away = False

    async def ask(had: Mapping[str, int]) -> Mapping[int, object]:
        answer = second.memory.offered(had.get(second.memory.process, 0))
        return {} if is_away else {2: answer}

    keeper, other = TrafficKeeper(first, ask=ask), TrafficKeeper(second, leads=False)

    async def minute() -> None:
        await trio.sleep(120)
        await other.fold()
        await keeper.fold()

    report(second, 1)
    await minute()
    report(second, 10)
    await minute()
    assert requests(first) == 11
    is_away = True
    report(second, 100)
    await minute()
    is_away = False
    assert requests(first) == 11
    await minute()
    assert requests(first) == 111
    assert [*second.memory.hours(LONG_AGO)] == []


@pytest.mark.parametrize("is_other", [False, True])
async def test_a_worker_that_was_started_again_leaves_a_gap(is_other: bool, autojump_clock: MockClock) -> None:
    traffic = mesh_traffic()
    minute = int((datetime.now(UTC) - timedelta(minutes=2)).timestamp()) // 60 * 60
    spans = tuple(TrafficSpan(minute + 60 * number, MINUTE, 0) for number in range(2))
    answers = [FoldedMinutes("a", 0, spans[:1]), FoldedMinutes("b" if is_other else "a", 1, spans[1:])]

    async def ask(_: Mapping[str, int]) -> Mapping[int, object]:
        return {2: answers.pop(0), 3: None}

    keeper = TrafficKeeper(traffic, ask=ask)
    await keeper.fold()
    await keeper.fold()
    kept = traffic.memory.take_unsaved()
    assert [each.has_gap for each in kept.values() if each is not None and each.seconds == MINUTE] == [False, is_other]


async def test_a_proxy_that_comes_is_not_a_gap(autojump_clock: MockClock) -> None:
    traffic = mesh_traffic(wall_clock())
    async with running(TrafficKeeper(traffic), has_file=False):
        for gap in (False, True):
            await trio.sleep(125)
            traffic.table.add(reporting(f"web-{gap}.shop"), [row(WEB, requests=1)], of_agent=True, follows_gap=gap)
            await trio.sleep(3600)
            (edge,) = traffic.memory.hours(LONG_AGO if gap else traffic.memory.now() - timedelta(minutes=55))
            assert edge.counts.is_complete is not gap


def has_requests(traffic: MeshTraffic, count: int) -> bool:
    return requests(traffic) == count


@pytest.mark.plane
async def test_a_plane_that_is_started_again_remembers(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    state = StateSettings(folder=tmp_path / "state")
    for run in range(3):
        async with running_plane(tmp_path / "config", state=state) as plane:
            traffic = plane.state.traffic
            assert traffic is not None
            await eventually(partial(has_requests, traffic, run))
            report(traffic, 1)
    assert {each.seconds for each in loaded(state.folder)} <= {MINUTE, HOUR}


def test_a_file_that_is_lost_or_garbled_while_it_is_open_is_written_whole_again(tmp_path: Path) -> None:
    file = TrafficFile(tmp_path)
    first, second, third = (TrafficSpan(minute * MINUTE, MINUTE, 6) for minute in range(3))
    file.write({first.key: first}, [first])
    (tmp_path / NAME).unlink()
    file.write({second.key: second}, [first, second])
    file.close()
    assert loaded(tmp_path) == [first, second]
    (tmp_path / NAME).write_bytes(b"garbled" * 1000)
    with capture_logs() as logs:
        file.write({third.key: third}, [first, second, third])
    assert [each["log_level"] for each in logs] == ["error"]
    assert file.load() == [first, second, third]
    file.close()


async def test_what_another_process_still_has_open_is_taken_once_that_is_gone(tmp_path: Path) -> None:
    """As while a control plane takes over from one that drains."""
    old = TrafficFile(tmp_path)
    traffic = mesh_traffic()
    keeper = TrafficKeeper(traffic, tmp_path)
    hour = int(traffic.memory.now().timestamp()) // HOUR * HOUR - HOUR
    older = [TrafficSpan(hour + MINUTE * number, MINUTE, 6) for number in range(3)]
    old.write({each.key: each for each in older})
    traffic.memory.add(TrafficSpan(hour + 2 * MINUTE, MINUTE, 3))
    traffic.memory.add(TrafficSpan(hour + 3 * MINUTE, MINUTE, 6))
    with capture_logs() as logs:
        await keeper.fold()
        assert not keeper.restored.is_set()
        old.close()
        await keeper.fold()
    assert [each["event"][:28] for each in logs] == ["traffic is not kept on disk;", "traffic is kept again"]
    assert {each.key: each.slots for each in traffic.memory.spans()}[HOUR, hour] == 6 + 6 + (6 + 3) + 6
    async with running(keeper):
        pass
    assert {each.key: each for each in loaded(tmp_path)} == {each.key: each for each in traffic.memory.spans()}
