"""When an Envoy that died is started again."""

from __future__ import annotations

from collections.abc import Callable

import attrs

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""An Envoy that lived this long begins anew."""


@attrs.define
class RestartBackoff:
    """Delays that double from 0.1 to 30 s, each less a random part of up to a half."""

    chance: Callable[[], float]
    """Random numbers from 0 to 1."""
    failures: int = 0

    def after(self, lived_seconds: float) -> float:
        """Seconds to wait, after an Envoy that lived so long."""
        if lived_seconds >= STEADY_SECONDS:
            self.failures = 0
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return longest * (1 - self.chance() / 2)
