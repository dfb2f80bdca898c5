"""A token bucket: whether somebody is too fast, and how long they have to wait. No clock and no I/O of its own."""

from __future__ import annotations

from attrs import define, field

__all__ = ["TokenBucket"]


@define
class TokenBucket:
    """``burst`` tokens, refilled at ``rate`` a second; a rate of 0 is no limit. Times are monotonic seconds."""

    rate: float
    burst: float
    tokens: float = field(init=False)
    _at: float | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    def _refill(self, now: float) -> None:
        if self._at is not None and self.tokens < self.burst:
            self.tokens = min(self.burst, self.tokens + (now - self._at) * self.rate)
        self._at = now

    def take(self, tokens: float, now: float) -> bool:
        """Take ``tokens`` if there are so many."""
        if not self.rate:
            return True
        if self.tokens < tokens or self._at is None:
            self._refill(now)
            if self.tokens < tokens:
                return False
        self.tokens -= tokens
        return True

    def reserve(self, tokens: float, now: float) -> float:
        """Take ``tokens`` in any case; return how many seconds to wait before they are there, 0 when they are."""
        if not self.rate:
            return 0.0
        self._refill(now)
        self.tokens -= tokens
        return max(0.0, -self.tokens / self.rate)
