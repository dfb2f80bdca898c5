"""Rate limits: a token bucket, and a limiter of log lines. The caller brings the time; no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from attrs import define, field

__all__ = ["KeyedBuckets", "LogLimiter", "TokenBucket"]

MAX_SUBJECTS = 10_000
"""Subjects of log lines that are remembered; for others a line is written as if it were the first."""


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


class LogLimiter:
    """Admits the first line about a subject, then one in ``seconds``, and only so many lines about all subjects.

    Mutable state: for each subject, least recently written first, when its last line was written and how many were
    suppressed since; how many lines of all there may still be; the total of suppressed lines.
    """

    def __init__(self, *, seconds: float = 60.0, rate: float = 10.0, burst: float = 200.0) -> None:
        """``rate`` and ``burst`` bound the lines of all subjects together, per second and at once."""
        self._seconds = seconds
        self._all = TokenBucket(rate, burst)
        self._written: OrderedDict[Hashable, float] = OrderedDict()
        self._suppressed: dict[Hashable, int] = {}
        self.suppressed = 0
        """Lines suppressed since the start."""

    def __repr__(self) -> str:
        return f"<LogLimiter {len(self._written)} subjects, {self.suppressed} suppressed>"

    def admit(self, subject: Hashable, now: float) -> int | None:
        """The number of lines about a subject suppressed since the last one; None to suppress this one too."""
        written = self._written.get(subject)
        is_due = written is None or now >= written + self._seconds
        if not is_due or not self._all.take(1, now):
            self.suppressed += 1
            if written is not None:
                self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return None
        self._written[subject] = now
        self._written.move_to_end(subject)
        if len(self._written) > MAX_SUBJECTS:
            oldest, _ = self._written.popitem(last=False)
            self._suppressed.pop(oldest, None)
        return self._suppressed.pop(subject, 0)


class KeyedBuckets:
    """A token bucket for each subject. Mutable state: the buckets, least recently used first.

    Only the latest subjects are remembered; one that was forgotten starts with a full bucket.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __repr__(self) -> str:
        return f"<KeyedBuckets {len(self._buckets)} subjects, {self._rate:g} a second>"

    def take(self, subject: Hashable, now: float) -> bool:
        """Take a token of a subject's if there is one; False otherwise."""
        bucket = self._buckets.get(subject)
        if bucket is None:
            bucket = self._buckets[subject] = TokenBucket(self._rate, self._burst)
            if len(self._buckets) > MAX_SUBJECTS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(subject)
        return bucket.take(1, now)
