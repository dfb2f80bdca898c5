"""Counts of traffic, summed, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import attrs

from mesh_pilot.model.traffic import Counter, merged_counts


class Tries(NamedTuple):
    """Tries and failures among them: requests where they are known, else attempts, else connections."""

    number: int
    failures: int
    unit: Counter
    """``REQUESTS``, ``ATTEMPTS`` or ``CONNECTIONS``."""

    @property
    def rate(self) -> float:
        """The share of failures, from 0 to 1; 0 without a try."""
        return self.failures / self.number if self.number else 0.0


@attrs.frozen
class Counts:
    """Sums of counters over some callers and some time."""

    values: Mapping[Counter, int] = attrs.field(factory=dict)
    has_requests: bool = False
    """True if an agent counted, so that requests are known; else only attempts are, of load reports."""
    is_partial: bool = False
    """True if the requests of some of the callers are not known."""
    is_complete: bool = True
    """False if an interval of the time was lost: the counts are less than there was."""

    def __getitem__(self, counter: Counter) -> int:
        """0 for what was never counted."""
        return self.values.get(counter, 0)

    def __bool__(self) -> bool:
        return any(self.values.values())

    @property
    def requests(self) -> int | None:
        """Requests as their callers saw them; None if unknown."""
        return self[Counter.REQUESTS] if self.has_requests else None

    @property
    def errors(self) -> int | None:
        """Requests that were answered with a 5xx; None if unknown."""
        return self[Counter.ERRORS] if self.has_requests else None

    @property
    def tried(self) -> Tries:
        """Tries and failures, in the best unit that there is."""
        refused, unserved = self[Counter.CONNECT_FAILURES], self[Counter.NONE_HEALTHY]
        has_connections = self[Counter.CONNECTIONS] or refused or unserved  # unserved requests are errors as well
        if self.has_requests and (self[Counter.REQUESTS] or not has_connections):
            return Tries(self[Counter.REQUESTS], self[Counter.ERRORS], Counter.REQUESTS)
        if not self.has_requests and self[Counter.ATTEMPTS]:
            return Tries(self[Counter.ATTEMPTS], self[Counter.FAILED_ATTEMPTS], Counter.ATTEMPTS)
        tries = max(self[Counter.CONNECTIONS], refused) + unserved
        return Tries(tries, refused + unserved, Counter.CONNECTIONS)


def together(every: Iterable[Counts]) -> Counts:
    """The sum of counts of several callers, or of several times."""
    found = [each for each in every if each.values]
    has_requests = any(each.has_requests for each in found)
    return Counts(
        merged_counts(each.values for each in found),
        has_requests,
        any(each.is_partial for each in found) or (has_requests and not all(each.has_requests for each in found)),
        all(each.is_complete for each in found),
    )
