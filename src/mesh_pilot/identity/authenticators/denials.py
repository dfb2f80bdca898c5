"""Denials: callers and signing requests that were refused, counted by reason, the latest of them for pages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime

import attrs

LATEST = 100
MAX_TEXT = 300
"""Characters of a reason on pages: it may quote what the caller sent."""


@attrs.frozen
class Denial:
    """One refusal. Holds no evidence itself: no token, no key."""

    at: datetime
    peer: str
    """``host:port`` or ``unix:///path``."""
    authenticator: str
    """The authenticator that refused the evidence; ``none`` where none was shown, ``csr`` for a signing request."""
    reason: str
    """The stable code, which is the label of the metric."""
    text: str


class Denials:
    """All denials of a control plane. Mutable state: the counts, and the latest denials."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self.counts: Counter[tuple[str, str]] = Counter()
        """Counts by authenticator and reason."""
        self.latest: deque[Denial] = deque(maxlen=LATEST)

    def note(self, peer: str, authenticator: str, reason: str, text: str) -> None:
        self.counts[authenticator, reason] += 1
        self.latest.append(Denial(self._now(), peer, authenticator, reason, text[:MAX_TEXT]))
