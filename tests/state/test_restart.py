"""A control plane over restarts: what its sources had is in force at once, and until they say something else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.events import Event, EventSender, Replace, Synced
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.sources.files import FileSourceStatistics
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, control_plane, running_plane, settings
from tests.support.worlds import configs

pytestmark = pytest.mark.plane


class Told:
    """A source that says what it is told to."""

    name = "told"

    def __init__(self, *says: Event, place: str = "here") -> None:
        self.place = place
        self.says = list(says)
        self.more = trio.Event()
        self.synced = False

    def say(self, *events: Event) -> None:
        self.says += events
        self.more.set()

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        while True:
            self.more = trio.Event()
            while self.says:
                event = self.says.pop(0)
                await events.send(event)
                self.synced = self.synced or isinstance(event, Synced)
            await self.more.wait()

    def statistics(self) -> FileSourceStatistics:
        return FileSourceStatistics(0, 0, self.synced, "" if self.synced else "silence", 0, 0, 0, 0, "")


def entry(name: str) -> Sequence[object]:
    return configs(SERVICE.replace("reviews", name))


def picture(*names: str) -> list[Event]:
    return [Replace("told", (), tuple(item for name in names for item in entry(name))), Synced("told")]  # type: ignore[misc]


@pytest.fixture
def state(tmp_path: Path) -> StateSettings:
    return StateSettings(folder=tmp_path / "state")


def names(plane: ControlPlane) -> set[str]:
    return {key[-1] for key in plane.state.world.items_of("told")}


async def kept(plane: ControlPlane, source: str = "told") -> None:
    recorder = plane.state.recorder
    assert recorder is not None
    await eventually(lambda: source in recorder.store.current)


async def test_what_a_source_had_is_served_while_it_does_not_answer(state: StateSettings) -> None:
    async with control_plane(settings(state=state), more_sources=[Told(*picture("a", "b"))]) as plane:
        await kept(plane)
    source = Told()
    async with control_plane(settings(state=state), more_sources=[source]) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        assert names(plane) == {"a", "b"}
        await eventually(lambda: set(plane.state.reducer.intake.stale()) == {"told"})
        source.say(*picture("b", "c"))
        await eventually(lambda: names(plane) == {"b", "c"})
        await eventually(lambda: not plane.state.reducer.intake.stale())
    async with control_plane(settings(state=state), more_sources=[Told()]) as plane:
        assert names(plane) == {"b", "c"}


async def test_a_picture_of_another_place_is_not_used(state: StateSettings) -> None:
    async with control_plane(settings(state=state), more_sources=[Told(*picture("a"))]) as plane:
        await kept(plane)
    async with control_plane(settings(state=state), more_sources=[Told(place="elsewhere")]) as plane:
        assert names(plane) == set()
        assert "told" in plane.state.unsynced()
    async with control_plane(settings(state=state), more_sources=[Told()]) as plane:
        assert names(plane) == {"a"}


async def test_a_picture_that_is_not_full_is_not_kept(state: StateSettings) -> None:
    async with control_plane(settings(state=state), more_sources=[Told(*picture("a")[:1])]) as plane:
        await kept(plane, "mesh")
        await eventually(lambda: names(plane) == {"a"})
    async with control_plane(settings(state=state), more_sources=[Told()]) as plane:
        assert names(plane) == set()


async def test_a_second_plane_on_the_folder_serves_without(state: StateSettings, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    async with running_plane(config, state=state), running_plane(config, state=state) as second:
        assert second.state.world.statistics().services == 1
        assert second.state.recorder is not None
        assert "another mesh-pilot uses this folder" in second.state.recorder.statistics().trouble
