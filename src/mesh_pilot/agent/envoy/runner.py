"""Runs one Envoy at a time, or two during a hot restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import AgentFolders, EnvoySettings, Ports


class EnvoyRunner:
    """``ready`` is true while Envoy is live and has its first configuration."""

    def __init__(self, settings: EnvoySettings, ports: Ports, folders: AgentFolders) -> None:
        self.ready: Observable[bool] = Observable(False)

    async def run(self, bootstrap: Observable[Mapping[str, Any]]) -> None:
        """Run Envoy on the bootstrap until cancelled, restart it when it dies, hot restart it when that changes."""
        raise NotImplementedError

    async def drain(self, seconds: float) -> None:
        """Let connections end: for ``seconds``, or until there are none."""
        raise NotImplementedError
