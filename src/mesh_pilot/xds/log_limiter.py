"""Bounds what clients can make us write to the log. No clock and no I/O of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from mesh_pilot.rpc.token_bucket import TokenBucket

KEYS_KEPT = 10_000
"""Subjects of log lines that are remembered; of others a line is written as if it were the first."""


class LogLimiter:
    """Lets the first line about a subject through, then one in ``seconds``, and of all subjects only so many.

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
        """Whether to write a line about a subject at this time: None for no, else the number of lines about it that
        were suppressed since the last."""
        written = self._written.get(subject)
        is_due = written is None or now >= written + self._seconds
        if not is_due or not self._all.take(1, now):
            self.suppressed += 1
            if written is not None:
                self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return None
        self._written[subject] = now
        self._written.move_to_end(subject)
        if len(self._written) > KEYS_KEPT:
            gone, _ = self._written.popitem(last=False)
            self._suppressed.pop(gone, None)
        return self._suppressed.pop(subject, 0)
