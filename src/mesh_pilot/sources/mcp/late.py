"""Refusals that are held back, because the other side answers each with what was refused.

The oldest servers of ``AggregatedMeshConfigService`` compare a request's version with theirs, whether it refuses or
accepts: what is refused comes again at once. Refused as fast, it would go round for ever.
"""

from __future__ import annotations

import math
from collections import Counter

import trio

from mesh_pilot.sources.mcp.messages import Request

FIRST_SECONDS = 1.0
LIMIT_SECONDS = 30.0


class LateAnswers:
    """Of one stream. State: answers by when they are due, and how often each collection repeated itself."""

    def __init__(self) -> None:
        self._held: list[tuple[float, Request]] = []
        self._repeats: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<LateAnswers {len(self._held)} held>"

    @property
    def due_at(self) -> float:
        """When the next one is due, of Trio's clock; infinity where there is none."""
        return min((at for at, _ in self._held), default=math.inf)

    def news(self, collection: str) -> None:
        """A response brought something: its answer is not held back, nor is the next one for long."""
        self._repeats.pop(collection, None)

    def hold(self, answer: Request) -> None:
        """A response brought nothing but what stands refused: answer it the later the more often that happened."""
        seconds = min(LIMIT_SECONDS, FIRST_SECONDS * 2.0 ** min(self._repeats[answer.collection], 10))
        self._repeats[answer.collection] += 1
        self._held.append((trio.current_time() + seconds, answer))

    def take_due(self) -> Request | None:
        """An answer whose time has come; None where there is none."""
        for held in self._held:
            if held[0] <= trio.current_time():
                self._held.remove(held)
                return held[1]
        return None
