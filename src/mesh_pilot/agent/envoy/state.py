"""Values of Envoy's life: its numbers, and what it is to run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mesh_pilot.agent.settings import EnvoySettings


@attrs.frozen
class EnvoyStatistics:
    """The numbers of an Envoy's life."""

    version: str
    pid: int
    """0: none runs."""
    epoch: int
    base_id: int
    """0: it runs without hot restart."""
    uptime_seconds: float
    ready: bool
    reason: str
    """Why it is not ready."""
    draining: int
    """Old Envoys whose connections still end."""
    restarts: int
    """Starts after an end that nobody asked for."""
    hot_restarts: int
    failed_hot_restarts: int
    log_lines_left_out: int


@attrs.frozen
class Wanted:
    """The bootstrap and settings that Envoy is to run on."""

    bootstrap: Mapping[str, Any]
    settings: EnvoySettings
    request: int = 0
    """Another number: a hot restart, even if nothing else differs."""
