"""A task that fails is restarted, a call that fails is logged, and nothing else notices."""

from __future__ import annotations

import itertools

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.agent.settings import AgentError
from mesh_pilot.base.containment import LONGEST_DELAY, Contained, PartSupervisor


async def test_a_part_that_fails_is_started_again_ever_later(autojump_clock: MockClock) -> None:
    upkeep = PartSupervisor("the agent", AgentError)
    starts: list[float] = []

    async def part() -> None:
        starts.append(trio.current_time())
        raise (ValueError("a bug"), AgentError("a reason"))[len(starts) % 2]

    with capture_logs() as logs, trio.move_on_after(600):
        await upkeep.keep("part", part)
    assert 20 < len(starts) < 60
    assert starts[1] - starts[0] <= 1
    assert max(later - earlier for earlier, later in itertools.pairwise(starts)) <= LONGEST_DELAY
    assert upkeep.statistics() == {"failures_total": {"part": len(starts)}}
    assert {line["event"] for line in logs} == {"a part of the agent failed; restarting it"}
    assert {line.get("reason") for line in logs} == {None, "a reason"}


async def test_a_part_that_ran_well_for_a_while_is_started_again_soon(autojump_clock: MockClock) -> None:
    ends: list[float] = []
    starts: list[float] = []

    async def part() -> None:
        starts.append(trio.current_time())
        await trio.sleep(100)
        ends.append(trio.current_time())

    with capture_logs(), trio.move_on_after(2000):
        await PartSupervisor("the agent", AgentError).keep("part", part)
    assert all(start - end <= 1 for end, start in zip(ends, starts[1:], strict=False))


async def test_what_keeps_a_part_from_its_first_start_is_said_and_nothing_later_is(autojump_clock: MockClock) -> None:
    upkeep = PartSupervisor("the agent", AgentError)
    runs = 0

    async def taken(task_status: trio.TaskStatus[None]) -> None:
        raise AgentError("the port is taken")

    async def once_taken(task_status: trio.TaskStatus[None]) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise AgentError("the port is taken")
        task_status.started()
        await trio.sleep(10)

    with capture_logs() as logs:
        with pytest.RaisesGroup(pytest.RaisesExc(AgentError, match="taken"), flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await nursery.start(upkeep.start, "port", taken)
        with trio.move_on_after(100):
            async with trio.open_nursery() as nursery:
                await nursery.start(upkeep.start, "port", once_taken)
    assert runs > 3
    assert "the port is taken" in {line.get("reason") for line in logs}


async def test_a_part_that_fails_while_all_end_keeps_nothing_from_ending() -> None:
    async def part() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise OSError("the disk is full")

    upkeep = PartSupervisor("the agent", AgentError)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upkeep.keep, "part", part)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [line["event"] for line in logs] == ["a part of the agent failed while it was stopping"]
    assert upkeep.statistics() == {"failures_total": {"part": 1}}


def test_a_call_that_fails_is_logged_and_its_caller_goes_on() -> None:
    values = ["the last one"]
    with capture_logs() as logs, Contained(structlog.get_logger(), "cannot look", group="a") as looked:
        values = [str(1 // 0)]
    assert values == ["the last one"] and isinstance(looked.error, ZeroDivisionError)
    assert [(line["event"], line["group"]) for line in logs] == [("cannot look", "a")]
    with looked:
        values = ["a new one"]
    assert values == ["a new one"] and looked.error is None, "an error is that of the last time"


def test_what_ends_the_process_is_not_contained() -> None:
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        with Contained(structlog.get_logger(), "cannot look", is_logged=lambda: False):
            raise ValueError("nobody is told")
        with Contained(structlog.get_logger(), "cannot look"):
            raise KeyboardInterrupt
    assert logs == []
