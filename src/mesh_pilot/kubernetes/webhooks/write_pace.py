"""The pace of writes to objects that somebody else may write as well, such as istiod or what applies a repository."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)

WRITES = 3
SECONDS = 30.0
"""An object is written so many times in so many seconds, at most: who undoes it each time is answered no faster."""


class WritePace(Generic[Key]):
    """Holds back writes. State: the times of the last writes of each object, and those that are held back."""

    def __init__(self) -> None:
        self._written: dict[Key, deque[float]] = {}
        self._due: dict[Key, float] = {}

    def clear(self) -> None:
        self._written.clear()
        self._due.clear()

    def holds(self, key: Key) -> bool:
        """True if an object is not to be written yet; it is among `due` later."""
        times = self._written.get(key, deque[float]())
        if len(times) < WRITES or trio.current_time() >= times[0] + SECONDS:
            return False
        self._due[key] = times[0] + SECONDS
        return True

    def written(self, key: Key) -> None:
        self._written.setdefault(key, deque(maxlen=WRITES)).append(trio.current_time())

    def due(self) -> set[Key]:
        """The objects whose time has come, once."""
        now = trio.current_time()
        self._written = {key: times for key, times in self._written.items() if now < times[-1] + SECONDS}
        found = {key for key, at in self._due.items() if at <= now}
        for key in found:
            del self._due[key]
        return found

    def seconds(self) -> float:
        """The time until something is due; infinite if nothing is held back."""
        return max(0.0, min(self._due.values(), default=math.inf) - trio.current_time())
