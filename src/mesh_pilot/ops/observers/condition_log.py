"""Logs the conditions of objects of the Gateway API that say that something is wrong, a line each at a change."""

from __future__ import annotations

import structlog

from mesh_pilot.istio.gateway_api.statuses import FailedCondition, failed_conditions
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published

log = structlog.get_logger(scope="world")

LINES = 20
"""The most lines of one revision."""


class ConditionLog:
    """Observes the reducer: pass ``published`` to its ``on_publish``. State: what it has said of each object."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: set[ConfigKey] = set()
        """Objects with a new status since before all sources were there."""
        self._said: dict[ConfigKey, frozenset[FailedCondition]] = {}

    def published(self, published: Published) -> None:
        """Log what is new of the objects whose status has changed, once all sources are there."""
        if not published.revision.statuses and not self._waiting:
            return
        self._waiting |= published.revision.statuses
        if self._world.unsynced():
            return
        lines = 0
        for key in sorted(self._waiting):
            status = self._world.object_status(key)
            found = frozenset(failed_conditions(status)) if status is not None else frozenset()
            before = self._said.pop(key, frozenset())
            if found:
                self._said[key] = found
            for failed in sorted(found - before, key=str):
                lines += 1
                if lines <= LINES:
                    self._log(key, failed)
            if before and not found and status is not None:
                log.info("object accepted", object=str(key))
        if lines > LINES:
            log.warning("more objects not accepted", lines=lines - LINES, see="/debug/rejections, list conditions")
        self._waiting.clear()

    def _log(self, key: ConfigKey, failed: FailedCondition) -> None:
        config = self._world.config.peek(key)
        log.warning(
            "object not accepted" if failed.type == "Accepted" else "object has a fault",
            object=str(key),
            where=str(config.origin) if config is not None else "",
            about=failed.about,
            condition=failed.type,
            reason=failed.reason,
            message=failed.message,
        )
