"""Which of many like events are logged: the first, and then one a while, with how many were left out. No clock."""

from __future__ import annotations

__all__ = ["EVERY_SECONDS", "Occasional"]

EVERY_SECONDS = 10.0
_KINDS = 100


class Occasional:
    """State: when each kind of event was last logged, and how many came since. Of too many kinds all are forgotten."""

    def __init__(self, every_seconds: float = EVERY_SECONDS) -> None:
        self._every = every_seconds
        self._logged: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def due(self, kind: str, now: float) -> int | None:
        """Whether to log this event: how many before it were not, or None to leave it out as well.

        ``now`` is in seconds, of any monotonic clock.
        """
        last = self._logged.get(kind)
        if last is not None and now - last < self._every:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        if len(self._logged) >= _KINDS:
            self._logged.clear()
            self._left_out.clear()
        self._logged[kind] = now
        return self._left_out.pop(kind, 0)
