"""The latest revisions of this run, for a control plane that keeps no state, and for what was last."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import attrs

from mesh_pilot.model.history import RevisionTraffic
from mesh_pilot.safety.quarantine.verdicts import SOURCE as QUARANTINE
from mesh_pilot.safety.state.history_tables import CAUSES, cause_of, objects_of
from mesh_pilot.safety.state.reader import name_of
from mesh_pilot.world.reducer import Published

KEPT = 1000
"""Revisions that are remembered."""

NAMES_KEPT = 50
"""Objects of a revision whose names are remembered."""


@attrs.frozen
class RememberedRevision:
    """A revision of this run."""

    number: int
    at: datetime
    causes: Sequence[str]
    """The first of them."""
    more_causes: int
    names: Sequence[str]
    """The names of the first objects that it changed."""
    objects: int
    is_trial: bool
    """True if only quarantine changed something."""


class RevisionMemory:
    """State: the latest revisions, the newest last. Pass ``published`` to the reducer's ``on_publish``."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self.revisions: deque[RememberedRevision] = deque(maxlen=KEPT)
        self.traffic: dict[int, RevisionTraffic] = {}
        """The outcomes in traffic, by revision, of those that were judged."""

    def __repr__(self) -> str:
        return f"<RevisionMemory {len(self.revisions)}>"

    def judged(self, outcome: RevisionTraffic) -> None:
        """A revision was judged by its traffic."""
        self.traffic[outcome.revision] = outcome
        while len(self.traffic) > KEPT:
            del self.traffic[next(iter(self.traffic))]

    def published(self, published: Published) -> None:
        changed = published.revision.changed
        if not changed:
            return
        causes = list(dict.fromkeys(filter(None, map(cause_of, published.changes))))
        objects = objects_of(changed)
        names = heapq.nsmallest(NAMES_KEPT, map(name_of, objects))
        self.revisions.append(
            RememberedRevision(
                published.revision.number,
                self._now(),
                causes[:CAUSES],
                max(0, len(causes) - CAUSES),
                names,
                len(objects),
                all(key[0] == QUARANTINE for key in changed),
            )
        )
