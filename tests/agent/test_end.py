"""The end of an agent: a signal to end is not lost to one that asks for another version."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.base.handover import Handover
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.run import agent as agent_module
from mesh_pilot.agent.run.agent import ProxyAgent
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, PlaneSettings, Ports


@pytest.mark.parametrize("is_told_to_end", [False, True])
async def test_another_version_does_not_take_over_an_agent_that_was_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told_to_end: bool
) -> None:
    node = EnvoyNode("web-1", ip="127.0.0.1")
    folders = AgentFolders(tmp_path / "state", tmp_path / "run")
    settings = AgentSettings(node, folders, PlaneSettings((), plaintext=True), ports=Ports(status=0))
    agent = ProxyAgent(settings, Handover())

    async def self_test(command: Sequence[str]) -> str:
        if is_told_to_end:  # SIGTERM or /quitquitquit, while the other version is looked at
            agent._quit.set()
        await trio.lowlevel.checkpoint()
        return ""

    monkeypatch.setattr(agent_module, "self_test", self_test)
    hangup, hangups = trio.open_memory_channel[int](1)
    hangup.send_nowait(signal.SIGHUP)
    async with trio.open_nursery() as nursery:
        await agent._hand_over_at_signal(hangups, nursery)
        assert agent.is_handed_over is not is_told_to_end
        assert nursery.cancel_scope.cancel_called is not is_told_to_end
