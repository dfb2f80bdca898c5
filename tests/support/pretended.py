"""Envoys without a process, for tests of those who start them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.agent.envoy import envoys as envoys_module
from mesh_pilot.agent.envoy import runner as runner_module
from mesh_pilot.agent.envoy.binary import EnvoyBinary
from mesh_pilot.agent.envoy.child import ChildFacts


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
        if self.ended.is_set():
            return
        try:
            with trio.CancelScope(shield=True):
                with trio.move_on_after(0.2):
                    await self._signalled.wait()
                if not self._signalled.is_set():
                    self.why_not_ready = ""
                    self._ready.set()
                    self._changed(self)
                await self._signalled.wait()
        finally:
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


def pretend_envoys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runners start such Envoys for the length of a test."""

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
