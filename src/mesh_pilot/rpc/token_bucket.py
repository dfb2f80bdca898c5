"""A token bucket for rate limits. The caller brings the time; no I/O."""

from __future__ import annotations

from attrs import define, field

__all__ = ["TokenBucket"]


@define
class TokenBucket:
    """``burst`` tokens, refilled at ``rate`` per second. A rate of 0 means no limit. Times are monotonic seconds."""

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
        """Take ``tokens`` if available; False otherwise."""
        if not self.rate:
            return True
        if self.tokens < tokens or self._at is None:
            self._refill(now)
            if self.tokens < tokens:
                return False
        self.tokens -= tokens
        return True

    def reserve(self, tokens: float, now: float) -> float:
        """Take ``tokens``, into debt if necessary; returns the seconds until the debt is paid, 0 without one."""
        if not self.rate:
            return 0.0
        self._refill(now)
        self.tokens -= tokens
        return max(0.0, -self.tokens / self.rate)
