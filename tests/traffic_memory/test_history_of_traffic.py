"""From what proxies count to ``mesh-pilot history``: a revision after which calls fail is marked, over restarts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.model.history import EdgeOutcome, RevisionTraffic
from mesh_pilot.ops.observers.outcome_watch import OutcomeWatch
from mesh_pilot.safety.state.reader import HistoryReader
from mesh_pilot.traffic.keeper import TrafficKeeper
from mesh_pilot.traffic.memory import MeshTraffic, TrafficMemory
from mesh_pilot.traffic.table import TrafficTable
from mesh_pilot.world.reducer import Published
from tests.state.test_history import SOURCES, Run, entry, running
from tests.support.command import mesh_pilot
from tests.support.traffic_counts import reporting, row

CLUSTER = "outbound|80||s1.test"


def watched(run: Run, traffic: MeshTraffic, monkeypatch: pytest.MonkeyPatch) -> OutcomeWatch:
    """A watch on the revisions of a run, which writes what it finds."""
    watch = OutcomeWatch(run.world, traffic.memory)
    watch.told.append(run.log.judged)
    log = run.log.published

    def published(of: Published) -> None:
        log(of)
        watch.published(of)

    monkeypatch.setattr(run.log, "published", published)
    return watch


def wall_clock() -> Callable[[], datetime]:
    begin, noon = trio.current_time(), datetime(2026, 11, 29, 12, tzinfo=UTC)
    return lambda: noon + timedelta(seconds=trio.current_time() - begin)


async def test_history_says_after_which_revision_calls_fail(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = MeshTraffic(TrafficTable(), TrafficMemory(now=wall_clock()))
    errors = 0

    async def report() -> None:
        while True:
            traffic.table.add(reporting(), [row(CLUSTER, requests=50, errors=errors)], of_agent=True)
            await trio.sleep(10)

    with running(tmp_path) as run:
        watch = watched(run, traffic, monkeypatch)
        judged = trio.Event()
        watch.told.append(lambda outcome: judged.set() if outcome.revision == 3 else None)
        for name in SOURCES:
            run.say(Synced(name))
        run.say(Upsert("files", entry(1, 0)))
        run.write()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report)
            nursery.start_soon(TrafficKeeper(traffic).run)
            nursery.start_soon(watch.run)
            await trio.sleep(1000)
            run.say(Upsert("files", entry(2, 0)))  # of a host that nobody calls
            run.say(Upsert("files", entry(1, 1)))
            errors = 5
            await judged.wait()
            nursery.cancel_scope.cancel()
        run.write()

    done = await trio.to_thread.run_sync(partial(mesh_pilot, "history", "--state-dir", str(tmp_path)))
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "worse: web.shop to s1.test:80" in lines["3"]
    assert "too little traffic" in lines["2"] and "worse" not in lines["1"]
    shown = (
        await trio.to_thread.run_sync(partial(mesh_pilot, "history", "show", "3", "--state-dir", str(tmp_path)))
    ).out
    assert "traffic that it touches: worse on 1 of 1 edge; 0 of 3,000 failed (0.0%) in 10 minutes before" in shown
    assert "  web.shop to s1.test:80: 0 of 3,000 failed (0.0%) before, 300 of 3,000 failed (10.0%) after" in shown
    arguments = ("history", "show", "3", "--state-dir", str(tmp_path), "-o", "json")
    told = json.loads((await trio.to_thread.run_sync(partial(mesh_pilot, *arguments))).out)["traffic"]
    assert (told["verdict"], told["worse"][0]["failures_after"], told["is_complete"]) == ("worse", 300, True)


def outcome(revision: int) -> RevisionTraffic:
    edge = EdgeOutcome("web", "shop", "s1.test:80", "requests", 1, 0, 2, 1, "worse")
    return RevisionTraffic(revision, "worse", 1, (edge,), 1, 1, 0, 2, 1, 10, 3, revision + 1, True)


def test_outcomes_outlive_restarts_and_go_with_their_revisions(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        for name in SOURCES:
            run.say(Synced(name))
        for edit in range(3):
            run.say(Upsert("files", entry(1, edit)))
            run.write()
        run.log.judged(outcome(2))
        run.log.judged(outcome(99))
        batch = run.log.take(0.0)
        run.log.give_back(batch)  # it could not be written, and returns
        run.write()
    with running(tmp_path) as run, HistoryReader.open(tmp_path) as history:
        assert [each.traffic for each in history.revisions()] == [None, outcome(2), None]
        assert history.revision(2).traffic == outcome(2)


def test_a_file_of_before_there_were_outcomes_is_read_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        for name in SOURCES:
            run.say(Synced(name))
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("DROP TABLE outcomes")
    with HistoryReader.open(tmp_path) as history:
        assert [each.traffic for each in history.revisions()] == [None]
    with running(tmp_path) as run:
        run.log.judged(outcome(1))
        run.write()
    with HistoryReader.open(tmp_path) as history:
        assert history.revision(1).traffic == outcome(1)


@pytest.mark.parametrize("text", ["{}", "garbled", '{"revision": "one"}'])
def test_an_outcome_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    with running(tmp_path) as run:
        for name in SOURCES:
            run.say(Synced(name))
        run.say(Upsert("files", entry(1, 0)))
        run.write()
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        connection.execute("INSERT INTO outcomes VALUES (1, ?)", (text,))
        connection.commit()
    with HistoryReader.open(tmp_path) as history:
        assert history.revision(1).traffic is None
