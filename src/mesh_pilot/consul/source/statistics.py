"""The statistics of a Consul source."""

from __future__ import annotations

import attrs


@attrs.frozen
class ConsulStatistics:
    """The statistics of a Consul source."""

    items: int
    rejected: int
    synced: bool
    waiting_for: str
    services: int
    """Services followed."""
    queries: int
    """Queries sent."""
    read_bytes: int
    """The length of their answers."""
    failures: int
    """Queries that failed."""
    under_way: int
    """Queries that wait for Consul."""
    waiting: int
    """Services without their own query: they are read when they may have changed."""
    outages: int
    """The number of times that Consul did not answer at all."""
    stale_seconds: float
    """Seconds since it stopped answering; 0 while it answers."""
    trouble: str
    """The reason why it does not answer, or the query that it refuses; empty while all is well."""
    held_back: tuple[str, ...]
    """The answers in which something is missing that is kept for now."""
    blindness: str
    """The answers that the token does not see, with what to do; empty if it sees everything."""
    blind_seconds: float
    """The seconds for which it has not."""
