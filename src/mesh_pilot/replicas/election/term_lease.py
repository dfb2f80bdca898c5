"""The time that a term of leadership surely lasts: a pure state machine, with the times of this replica's clock.

A lock that was granted or renewed lasts for its TTL at the server, counted from when the server did it. That was not
before we sent the request, so the time of sending plus the TTL is a bound that needs no clock but ours. A margin covers
the difference in speed between clocks.
"""

from __future__ import annotations

import attrs

MARGIN = 0.2
"""The share of the TTL by which a term ends before the lock can be another's."""


@attrs.define
class TermLease:
    """State: the term that runs, and its end. Times are in seconds of one clock that never stops."""

    ttl_seconds: float
    term: int | None = None
    """The number of the term; None if this replica does not lead, as far as it has noticed."""
    ends_at: float = float("-inf")

    def begin(self, term: int, sent_at: float, now: float) -> bool:
        """Begin a term that was granted on a request; False if it would be over by now."""
        if self.leads(now):
            raise ValueError(f"term {self.term} has not ended")
        self.term, self.ends_at = term, self._end_of(sent_at)
        return self.leads(now)

    def renew(self, sent_at: float, now: float) -> bool:
        """Prolong the term by a renewal that succeeded; False if it came too late: the term stays over."""
        if not self.leads(now):
            self.end()
            return False
        self.ends_at = max(self.ends_at, self._end_of(sent_at))
        return True

    def end(self) -> None:
        """End the term now."""
        self.term, self.ends_at = None, float("-inf")

    def leads(self, now: float) -> bool:
        """True while this replica may act."""
        return self.term is not None and now < self.ends_at

    def remaining_seconds(self, now: float) -> float:
        """The time that is left without a renewal; 0 if the term is over."""
        return max(0.0, self.ends_at - now) if self.term is not None else 0.0

    def _end_of(self, sent_at: float) -> float:
        return sent_at + self.ttl_seconds * (1 - MARGIN)
