"""Conditions of the Gateway API's objects and of Ingresses, as the World knows them (`gateway_api`)."""

from __future__ import annotations

from collections.abc import Collection

import trio

from mesh_pilot.election.base import Term
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.status.writer import StatusWriter
from mesh_pilot.world import World

CONDITIONS = "conditions"
"""The part of a status that has them."""


class ConditionReports:
    """Has it written what the World says of objects. State: whether this replica leads."""

    def __init__(self, world: World, writer: StatusWriter) -> None:
        self._world = world
        self._writer = writer
        self._is_leading = False

    def published(self, changed: Collection[ConfigKey]) -> None:
        """A revision of the World, in which the status of these objects has changed."""
        if self._is_leading:
            for key in changed:
                self._writer.want(key, CONDITIONS, self._world.object_status(key))

    async def run(self, term: Term) -> None:
        """Follow the World while this replica leads."""
        self._is_leading = True
        try:
            for key, status in self._world.object_statuses().items():
                self._writer.want(key, CONDITIONS, status)
            await trio.sleep_forever()
        finally:
            self._is_leading = False
