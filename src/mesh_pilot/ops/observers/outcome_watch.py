"""The watch on revisions that have been published: ten minutes later it says what came of each in traffic."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import trio

from mesh_pilot.base.offload import offload
from mesh_pilot.model.history import RevisionTraffic
from mesh_pilot.traffic.memory import TrafficMemory
from mesh_pilot.traffic.outcomes import MINUTE, WaitingRevisions, outcomes_of
from mesh_pilot.traffic.touched import touched_by
from mesh_pilot.world import World
from mesh_pilot.world.reducer import Published

LOOK_SECONDS = 20.0
"""The interval at which the watch looks for revisions whose time is over."""

AT_ONCE = 20
"""Revisions that are judged together, so that each minute is read once for all of them."""


class OutcomeWatch:
    """Mutable state: the revisions that wait. Pass ``published`` to the reducer's ``on_publish``."""

    def __init__(self, world: World, memory: TrafficMemory, *, settle: timedelta = timedelta()) -> None:
        """``settle``: the time within which the minutes of other workers come."""
        self._world = world
        self._memory = memory
        self._settle = settle
        self._waiting = WaitingRevisions()
        self.told: list[Callable[[RevisionTraffic], None]] = []
        """The functions that are told of each outcome."""

    def __repr__(self) -> str:
        return f"<OutcomeWatch {self._waiting}>"

    def published(self, published: Published) -> None:
        if not published.revision.changed:
            return
        items = [item for change in published.changes for item in (change.before, change.after)]
        root_namespace = self._world.mesh.peek(()).root_namespace
        touched = touched_by(items, self._world.full_host, root_namespace)
        self._waiting.published(published.revision.number, self._memory.now(), touched)

    async def run(self) -> None:
        """Judge until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Judge the revisions whose time is over. If cancelled, those that were begun are not judged."""
        if (until := self._memory.counted_until) is None:
            return
        due = self._waiting.due(until - self._settle)
        for start in range(0, len(due), AT_ONCE):
            some = due[start : start + AT_ONCE]
            wanted = sorted({minute for each in some for minute in each.minutes()})
            minutes = {minute: self._memory.minutes(minute, minute + MINUTE) for minute in wanted}
            for outcome in await offload(True, partial(outcomes_of, some, minutes)):
                for tell in self.told:
                    tell(outcome)
