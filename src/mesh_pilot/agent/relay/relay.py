"""Envoy's ADS, passed through as bytes while a control plane is connected, answered from disk while none is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.rpc import Handler


class Relay:
    """The AggregatedDiscoveryService that Envoy is told of, SotW and Delta."""

    def __init__(self, planes: Planes, answers: Path) -> None:
        """``answers``: file of the last good answers."""

    def __mapping__(self) -> Mapping[str, Handler]:
        raise NotImplementedError

    async def run(self) -> None:
        """Write what Envoy has accepted to disk, off the path of the answers."""
        raise NotImplementedError
