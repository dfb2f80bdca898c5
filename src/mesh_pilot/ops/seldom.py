"""Logging of what may happen with every request or look: the first time, and then once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

EVERY_SECONDS = 60.0
KEYS_KEPT = 100


class Seldom:
    """State: when each key came up last, of the latest keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[Hashable, float] = {}

    def due(self, key: Hashable) -> bool:
        """Whether to log what is known by this key now; if so, not again for a minute."""
        now = self._clock()
        last = self._last.get(key)
        if last is not None and now - last < EVERY_SECONDS:
            return False
        self._last.pop(key, None)
        self._last[key] = now
        if len(self._last) > KEYS_KEPT:
            del self._last[next(iter(self._last))]
        return True
