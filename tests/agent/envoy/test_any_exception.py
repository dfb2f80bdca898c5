"""An exception at any await of Envoy's part of the agent: Envoy serves on, or another one does soon."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.agent.envoy import envoys as envoys_module
from mesh_pilot.agent.envoy import runner as runner_module
from mesh_pilot.agent.envoy.binary import EnvoyBinary
from mesh_pilot.agent.envoy.child import ChildFacts
from mesh_pilot.agent.envoy.runner import EnvoyRunner
from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports
from mesh_pilot.agent.upkeep import Upkeep
from tests.support.injected import PART, Injected, Injector

SOON_SECONDS = 30.0


class PretendEnvoy:
    """An Envoy without a process: live after a moment, ended by any signal."""

    all: list[PretendEnvoy]
    """Those that there were, oldest first."""

    def __init__(self, facts: ChildFacts, changed: Callable[[Any], None]) -> None:
        self.facts, self._changed = facts, changed
        self.ended, self._signalled, self._ready = trio.Event(), trio.Event(), trio.Event()
        self.returncode: int | None = None
        self.why_not_ready = "not yet"
        self.has_admin = True
        self.age_seconds, self.end_reason = 100.0, "killed"
        self.log = type("Log", (), {"left_out_total": 0})
        self.all.append(self)

    @property
    def is_ready(self) -> bool:
        return not self.why_not_ready and self.returncode is None

    async def tend(self) -> None:
        with trio.CancelScope(shield=True):
            with trio.move_on_after(0.2):
                await self._signalled.wait()
            if not self._signalled.is_set():
                self.why_not_ready = ""
                self._ready.set()
                self._changed(self)
            await self._signalled.wait()
        self.returncode = 0
        self.ended.set()
        self._changed(self)

    async def ready_or_ended(self) -> None:
        async with trio.open_nursery() as nursery:

            async def cancel_after(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            for event in (self._ready, self.ended):
                nursery.start_soon(cancel_after, event)

    def send_signal(self, number: int) -> None:
        self._signalled.set()

    def has_admin_file(self) -> bool:
        return True


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask_binary(path: Path) -> EnvoyBinary:
        await trio.lowlevel.checkpoint()
        return EnvoyBinary(path, "0123/1.40.0/Clean", "11.104")

    async def validate(*_: object) -> str:
        await trio.sleep(0.1)
        return ""

    pids = itertools.count(1)
    PretendEnvoy.all = []
    monkeypatch.setattr(envoys_module, "EnvoyChild", PretendEnvoy)
    monkeypatch.setattr(envoys_module, "spawn", lambda *_: (next(pids), -1, None))
    monkeypatch.setattr(runner_module, "find_envoy", lambda _: Path("/usr/bin/envoy"))
    monkeypatch.setattr(runner_module, "ask_binary", ask_binary)
    monkeypatch.setattr(runner_module, "validate", validate)


def bootstrap(number: int) -> dict[str, Any]:
    return {"node": {"id": str(number)}}


async def life(folder: Path, injector: Injector) -> str:
    """An Envoy that is started, dies, is replaced on another bootstrap, and dies again; what is wrong in the end."""
    settings = EnvoySettings(parent_shutdown_seconds=2.0)
    runner = EnvoyRunner(settings, Ports(), AgentFolders(folder, folder / "run"))
    wanted: Observable[Any] = Observable(bootstrap(1))
    upkeep = Upkeep()
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


def test_envoy_is_whole_after_an_exception_at_any_await(pretended: None, tmp_path: Path) -> None:
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
