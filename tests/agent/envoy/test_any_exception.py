"""An exception at any await of Envoy's part of the agent: Envoy serves on, or another one does soon."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports
from mesh_pilot.base.containment import PartSupervisor
from tests.support.injected import PART, Injected, Injector
from tests.support.pretended import PretendEnvoy, pretend_envoys

SOON_SECONDS = 30.0


def bootstrap(number: int) -> dict[str, Any]:
    return {"node": {"id": str(number)}}


async def life(folder: Path, injector: Injector) -> str:
    """An Envoy that is started, dies, is replaced on another bootstrap, and dies again; what is wrong in the end."""
    settings = EnvoySettings(parent_shutdown_seconds=2.0)
    runner = EnvoyRunner(settings, Ports(), AgentFolders(folder, folder / "run"))
    wanted: Observable[Any] = Observable(bootstrap(1))
    upkeep = PartSupervisor("the agent")
    before = len(PretendEnvoy.all)

    async def part() -> None:
        await upkeep.keep("envoy", partial(runner.run, wanted), fatal=lambda: not runner.has_started)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(part, name=PART)
        await trio.sleep(5)
        for child in PretendEnvoy.all[-1:]:
            child.send_signal(signal.SIGKILL)
        await trio.sleep(20)
        wanted.set(bootstrap(2))
        await trio.sleep(SOON_SECONDS)
        for child in PretendEnvoy.all[-1:]:
            child.send_signal(signal.SIGKILL)
        await trio.sleep(SOON_SECONDS)
        running = [child for child in PretendEnvoy.all[before:] if child.returncode is None]
        in_force = (folder / "run" / "envoy-bootstrap.json").read_bytes()
        wrong = []
        if not runner.ready.value:
            wrong.append(f"not ready: {runner.why_not_ready}")
        if len(running) != 1 or runner.statistics().pid != running[0].facts.pid:
            wrong.append(f"{len(running)} run")
        if b'"2"' not in in_force:
            wrong.append("the last bootstrap is not in force")
        nursery.cancel_scope.cancel()
    if running := [child for child in PretendEnvoy.all[before:] if child.returncode is None]:
        wrong.append(f"{len(running)} are left")
    return ", ".join(wrong)


def run(folder: Path, injector: Injector) -> str:
    async def bounded() -> str:
        with trio.fail_after(1000):
            return await life(folder, injector)

    with capture_logs():
        return trio.run(bounded, clock=MockClock(autojump_threshold=0), instruments=[injector])


def test_envoy_is_whole_after_an_exception_at_any_await(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_envoys(monkeypatch)
    whole = Injector(0)
    assert run(tmp_path, whole) == ""
    assert whole.count > 30
    first = 0
    for at in range(1, whole.count + 1):
        injector = Injector(at)
        try:
            assert run(tmp_path, injector) == "", injector
        except* Injected:  # before there is an Envoy, it is the agent's end: its unit starts it again
            first += 1
            assert at < 20, injector
    assert first < 5
