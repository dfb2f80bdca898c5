"""Things that were made of the table of traffic, kept for others who ask.

What is told of traffic is of slots that are over, so it stands until the next one is: a page that asks every two
seconds costs one look in ten. What depends on more, such as who is connected, is made at most twice a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import trio

from mesh_pilot.ops.plane.state import PlaneState

T = TypeVar("T")

INTERVAL_SECONDS = 0.5
"""The age up to which a thing is used again, whatever has changed."""

KEPT = 12
"""Things that are kept."""


@attrs.frozen
class _Look:
    stamp: object
    at: float
    value: Any


class TrafficLooks:
    """The things, each by its key, of which there are some hundred. Mutable state: they, and a lock for each key."""

    def __init__(self) -> None:
        self._locks: dict[object, trio.Lock] = {}
        self._found: dict[object, _Look] = {}

    def __repr__(self) -> str:
        return f"<TrafficLooks {[*self._found]}>"

    @classmethod
    def of(cls, state: PlaneState) -> TrafficLooks:
        """The looks of a plane."""
        found = state.kept.get(cls)
        if not isinstance(found, TrafficLooks):
            found = state.kept[cls] = cls()
        return found

    async def get(self, key: object, stamp: object, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of a key, which stands while ``stamp`` does; None: for half a second. If cancelled, another caller
        makes it."""
        async with self._locks.setdefault(key, trio.Lock()):
            now, known = trio.current_time(), self._found.pop(key, None)
            if known is None or not self._stands(known, stamp, now):
                known = _Look(stamp, now, await make())
            self._found[key] = known  # the last used is last
            while len(self._found) > KEPT:
                del self._found[next(iter(self._found))]
            found: T = known.value
            return found

    @staticmethod
    def _stands(known: _Look, stamp: object, now: float) -> bool:
        return now - known.at < INTERVAL_SECONDS or (stamp is not None and known.stamp == stamp)
