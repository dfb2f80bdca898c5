"""A token bucket: how long whoever is too fast has to wait. No clock and no I/O of its own."""

from __future__ import annotations

from math import inf


class TokenBucket:
    """Lets ``rate`` tokens a second through, and ``burst`` at once after a rest. A rate of 0 is no limit.

    Mutable state: until when what was let through is paid for. Whoever comes early is told to wait, in turn.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._paid_until = -inf

    def __repr__(self) -> str:
        return f"<TokenBucket {self._rate:g}/s, burst {self._burst:g}>"

    def take(self, now: float, tokens: float = 1.0) -> float:
        """Take tokens at this time; returns the seconds to wait before going on."""
        if not self._rate:
            return 0.0
        start = max(self._paid_until, now - self._burst / self._rate)
        self._paid_until = start + tokens / self._rate
        return max(0.0, self._paid_until - now)

    def may_take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens if they are there at this time; those that are not are not owed."""
        before = self._paid_until
        if self.take(now, tokens) <= 0:
            return True
        self._paid_until = before
        return False
