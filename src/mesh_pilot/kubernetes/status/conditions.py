"""Conditions of the Gateway API's objects and of Ingresses, as the World knows them (`gateway_api`)."""

from __future__ import annotations

from collections.abc import Collection

import trio

from mesh_pilot.kubernetes.status.writer import StatusWriter
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world import World

CONDITIONS = "conditions"
"""The part of a status that has them."""


class ConditionReports:
    """Has it written what the World says of objects.

    What the World says of an object that is refused is about an older generation of it, the one in force. Nothing is
    written then: the conditions there keep their ``observedGeneration``.

    State: whether this replica leads; `_refused`, the objects that are refused.
    """

    def __init__(self, world: World, writer: StatusWriter) -> None:
        self._world = world
        self._writer = writer
        self._is_leading = False
        self._refused: frozenset[ConfigKey] = frozenset()

    def published(self, changed: Collection[ConfigKey]) -> None:
        """A revision of the World, in which the status of these objects has changed."""
        if self._is_leading:
            before, self._refused = self._refused, self._now_refused()
            for key in {*changed, *(before ^ self._refused)}:
                self._want(key)

    def _now_refused(self) -> frozenset[ConfigKey]:
        keys = (each.key for each in self._world.rejections())
        return frozenset(ConfigKey(*key[1:]) for key in keys if key is not None and key[0] == "config")

    def _want(self, key: ConfigKey) -> None:
        status = None if key in self._refused else self._world.object_status(key)
        self._writer.want(key, CONDITIONS, status)

    async def run(self, term: Term) -> None:
        """Follow the World while this replica leads."""
        self._is_leading, self._refused = True, self._now_refused()
        try:
            for key in self._world.object_statuses():
                self._want(key)
            await trio.sleep_forever()
        finally:
            self._is_leading = False
