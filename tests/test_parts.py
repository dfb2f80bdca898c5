"""Each part of a control plane alone: it starts without the others, and ends when it is cancelled."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.app.control_plane import parts_of_every_worker, parts_of_the_first
from mesh_pilot.app.first_worker import first_worker
from mesh_pilot.app.parts import PlanePart, start
from mesh_pilot.ops.tracing.settings import TraceSettings
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.planes import settings

pytestmark = pytest.mark.plane


async def test_each_part_starts_and_ends_without_the_others(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    state = StateSettings(folder=tmp_path / "state")
    given = settings(tmp_path / "config", state=state, traces=TraceSettings("http://127.0.0.1:1/v1/traces"))
    names = []
    for number in range(100):
        with ExitStack() as stack:
            plane, core, first = await first_worker(given, [], stack)
            parts = [*parts_of_the_first(plane, core, first), *parts_of_every_worker(plane, core)]
            if number == len(parts):
                break
            names.append(parts[number].name)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    start([parts[number]], nursery)
                    await wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
    assert len(names) == len(set(names))
    assert {"reducer", "source files", "proxies", "quarantine", "rollouts", "state", "traces", "web"} <= set(names)


async def test_a_part_that_serves_nobody_is_run_again_and_another_ends_the_process(
    autojump_clock: MockClock,
) -> None:
    runs = 0

    async def fail() -> None:
        nonlocal runs
        runs += 1
        raise ValueError("broken")

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            start([PlanePart("reports", fail, is_vital=False)], nursery)
    assert runs > 1
    with pytest.RaisesGroup(ValueError):
        async with trio.open_nursery() as nursery:
            start([PlanePart("reducer", fail)], nursery)
