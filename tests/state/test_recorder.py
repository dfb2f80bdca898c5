"""The recorder while writing fails, and with sources that come, change and go."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.base.containment import PartSupervisor
from mesh_pilot.model.events import Delete, Event, KeySet, Replace, SourceAdded, SourceRemoved, Synced, Upsert, item_key
from mesh_pilot.safety.state.database import StateError
from mesh_pilot.safety.state.recorder import Recorder
from mesh_pilot.safety.state.settings import HistoryBounds
from mesh_pilot.world import World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from tests.state.fakes import FakeSource
from tests.state.test_store import found, store
from tests.support.envoy import eventually
from tests.support.injected import PART, Injector


class Plane:
    """A control plane without tasks, with a source ``a`` that has answered."""

    def __init__(self, folder: Path) -> None:
        self.store = store(folder, history=HistoryBounds(revisions=0))
        self.store.pictures()
        self.world = World()
        self.world.expect("a")
        self._intake = Intake(self.world)
        reducer: Any = SimpleNamespace(intake=self._intake)
        source = FakeSource("a")
        source.synced = True
        self.recorder = Recorder(self.store, self.world, reducer, [source])
        self.say(Replace("a", (), ()), Synced("a"))

    def say(self, *events: Event) -> None:
        admitted = self._intake.admit(events, 0.0)
        self.recorder.published(Published(self.world.apply(admitted.events), 0.0, 0.0, admitted.changes))


async def test_keys_that_come_and_go_while_the_disk_is_full_cost_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.safety.state.recorder.MAX_CHANGED", 10)
    plane = Plane(tmp_path)
    stays, goes = KeySet("", "stays", "x"), KeySet("", "goes", "x")
    plane.say(Upsert("a", stays), Upsert("a", goes))
    await plane.recorder._write()
    with monkeypatch.context() as full:
        full.setattr(plane.store, "write", _disk_full)
        plane.say(Delete("a", item_key(goes)))
        for number in range(100):
            item = KeySet("", str(number), "x")
            plane.say(Upsert("a", item), Delete("a", item_key(item)))
            plane.say(Upsert("a", item))
            plane.say(Delete("a", item_key(item)))
            await plane.recorder._write()
            assert sum(map(len, plane.recorder._changed.values())) <= 11
    await plane.recorder._write()
    assert plane.recorder.statistics().trouble == ""
    plane.store.close()
    assert found(tmp_path) == {"a": {stays}}


def _disk_full(_: object) -> None:
    raise StateError("disk is full")


async def test_a_source_whose_statistics_fail_costs_the_writes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a fault of ours")

    plane = Plane(tmp_path)
    plane.say(Upsert("a", KeySet("", "stays", "x")))
    with monkeypatch.context() as faulty:
        faulty.setattr(Recorder, "_confirmed", fail)
        await plane.recorder._write()
        assert plane.recorder.statistics().trouble == "a fault of ours"
    await plane.recorder._write()
    assert plane.recorder.statistics().trouble == ""


def later(place: str, *, synced: bool) -> Any:
    source: Any = FakeSource("west")
    source.place, source.synced = place, synced
    return source


async def test_a_source_that_goes_on_elsewhere_is_kept_there_once_it_stands_by_its_picture(tmp_path: Path) -> None:
    plane = Plane(tmp_path)
    item = KeySet("", "west", "x")
    assert await plane.recorder.added(later("old", synced=True)) is None
    plane.say(SourceAdded("west"), Upsert("west", item), Synced("west"))
    await plane.recorder._write()
    confirmed = plane.recorder.statistics().confirmed["west"]
    await plane.recorder.replaced(source := later("new", synced=False))
    await plane.recorder._write()
    assert plane.recorder.statistics().confirmed["west"] == confirmed  # the source that ended has no say
    assert plane.store.picture_of("west", "new") is None
    source.synced = True
    await plane.recorder._write()
    picture = plane.store.picture_of("west", "new")
    assert picture is not None and picture.items == (item,)


async def test_a_source_that_is_no_more_leaves_no_picture(tmp_path: Path) -> None:
    plane = Plane(tmp_path)
    await plane.recorder.added(later("there", synced=True))
    plane.say(SourceAdded("west"), Upsert("west", KeySet("", "west", "x")), Synced("west"))
    await plane.recorder._write()
    await plane.recorder.removed("west")
    plane.say(SourceRemoved("west"))
    await plane.recorder._write()
    assert plane.recorder.statistics().trouble == ""
    assert await plane.recorder.added(later("there", synced=True)) is None
    await plane.recorder.removed("unknown")


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 13))
def test_changes_are_kept_after_an_exception_at_any_await(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"GATHER": 0.01, "CONFIRM": 0.2, "SETTLE": 0.05, "RETRY": 0.05}.items():
        monkeypatch.setattr(f"mesh_pilot.safety.state.recorder.{name}_SECONDS", seconds)
    injector = Injector(at)

    async def life() -> None:
        plane = Plane(tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PartSupervisor("the control plane").keep, "state", plane.recorder.run, name=PART)
            for number in range(8):
                plane.say(Upsert("a", KeySet("", str(number), "x")))
                written = plane.recorder.statistics().writes
                with trio.move_on_after(0.3):
                    await eventually(lambda written=written: plane.recorder.statistics().writes > written)
            plane.say(Upsert("a", KeySet("", "last", "x")))
            written = plane.recorder.statistics().writes
            await eventually(lambda: plane.recorder.statistics().writes > written + 1, what="it writes again")
            assert plane.recorder.statistics().trouble == ""
            assert plane.recorder.statistics().failing_since is None
            nursery.cancel_scope.cancel()

    with capture_logs() as logs:
        trio.run(life, instruments=[injector])
    assert injector.raised
    assert any(entry["log_level"] == "error" for entry in logs)
    assert found(tmp_path) == {"a": {KeySet("", each, "x") for each in (*map(str, range(8)), "last")}}
