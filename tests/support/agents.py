"""Settings of an agent for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, PlaneSettings

NOWHERE = AgentFolders(Path("/nonexistent/state"), Path("/nonexistent/run"))


def agent_settings(node: EnvoyNode | None = None, **more: Any) -> AgentSettings:
    """Settings whose folders and control plane do not exist, unless ``more`` says otherwise."""
    planes = PlaneSettings((Pilot("127.0.0.1:1"),))
    return AgentSettings(**{"node": node or EnvoyNode("web-1"), "folders": NOWHERE, "planes": planes, **more})
