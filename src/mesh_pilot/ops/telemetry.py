"""Providers for traces and logs that are named and can't be used: for the debug page and the log."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from mesh_pilot.envoy.telemetry.problems import KIND, default_provider_problems, telemetry_problems
from mesh_pilot.model.events import MeshConfigValue
from mesh_pilot.ops.changes import name_of_item, warning_line
from mesh_pilot.world import World

log = structlog.get_logger(scope="config")


def provider_warnings(world: World) -> Iterator[dict[str, str]]:
    """For each such provider: ``where`` it is named, ``object``, ``field`` and ``reason``."""
    view = world.view
    for settings in world.mesh_settings():
        if isinstance(settings, MeshConfigValue):
            for problem in default_provider_problems(view):
                yield warning_line(settings.origin, name_of_item(settings), problem)
    for config in sorted(world.configs_of.peek(KIND), key=lambda config: config.key):
        for problem in telemetry_problems(view, config.key):
            yield warning_line(config.origin, name_of_item(config), problem)


class ProviderReports:
    """Logs such providers, once. State: what was told and still is so."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: set[tuple[str, ...]] = set()

    def tell(self) -> None:
        """Look at all that name a provider; to be called now and then."""
        now = {tuple(line.values()): line for line in provider_warnings(self._world)}
        for identity, line in now.items():
            if identity not in self._told:
                log.warning("in force, but a provider can't be used", **line)
        self._told = set(now)
