"""The waits of a session by the clock, which its stream does not have."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import trio

from mesh_pilot.xds.ads.status import StatusRegistry
from mesh_pilot.xds.ads.stream import Stream

_NONE: frozenset[str] = frozenset()


class NackPauses:
    """Pauses of types that the client keeps refusing. State: for each how often in a row, and until when it waits."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._in_a_row: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def refused(self, type_url: str) -> int:
        """The number of refusals in a row, with this one."""
        count = self._in_a_row[type_url] = self._in_a_row.get(type_url, 0) + 1
        return count

    def pause(self, type_url: str, count: int) -> None:
        """Wait before the type is sent again, from its second refusal in a row on."""
        if count > 1:
            seconds = min(self._first * 2 ** min(count - 2, 30), self._longest)
            self._until[type_url] = trio.current_time() + seconds * random.uniform(0.5, 1)

    def accepted(self, type_url: str) -> None:
        self._in_a_row.pop(type_url, None)

    def end(self) -> None:
        self._in_a_row.clear()
        self._until.clear()

    def on_hold(self) -> frozenset[str]:
        """The types that wait now."""
        if not self._until:
            return _NONE
        now = trio.current_time()
        self._until = {type_url: until for type_url, until in self._until.items() if until > now}
        return frozenset(self._until)

    @property
    def deadline(self) -> float:
        """When the first of them is over."""
        return min(self._until.values()) if self._until else inf


class Patience:
    """The patience with what a client should request and may never do. State: until when it lasts."""

    def __init__(self, warming_seconds: float, grace_seconds: float) -> None:
        self._warming_seconds, self._grace_seconds = warming_seconds, grace_seconds
        self._warming_until: float | None = None
        self._grace_until: float | None = None

    def deadline(self, stream: Stream, now: float, *, is_tried: bool) -> float:
        """When to go on without it; call it when there is nothing to send. ``is_tried``: the stream awaits requests."""
        if not is_tried:
            self._warming_until = self._grace_until = None  # what is waited for is here, or needed no more
            return inf
        waiting = stream.waiting_for()
        in_grace = waiting.referrers or waiting.clusters
        self._warming_until = self._warming_until or now + self._warming_seconds if waiting.endpoints else None
        self._grace_until = self._grace_until or now + self._grace_seconds if in_grace else None
        return min(self._warming_until or inf, self._grace_until or inf)

    def end(self, stream: Stream) -> bool:
        """Go on where it is over. True if the client has not requested the endpoints of new clusters."""
        now = trio.current_time()
        is_cold = self._warming_until is not None and now >= self._warming_until
        if is_cold:
            stream.end_warming()
        if self._grace_until is not None and now >= self._grace_until:
            stream.end_reconnect_grace()
        return is_cold


class Convergence:
    """The way of a change to one client, for the histograms.

    State: since when the stream is woken, when the change that it is sent was published, whether any of it was sent.
    """

    def __init__(self, registry: StatusRegistry) -> None:
        self._registry = registry
        self._woken_at: float | None = None
        self._changed_at: float | None = None
        self._has_sent = False

    @property
    def is_open(self) -> bool:
        """True while a change has not been accepted."""
        return self._changed_at is not None

    def woken(self, since: Callable[[], float]) -> None:
        """There may be news, as ``since`` says from when on."""
        if self._woken_at is None:
            self._woken_at = since()

    def looked(self, now: float) -> bool:
        """The stream looks for news; False if nothing has woken it."""
        if self._woken_at is None:
            return False
        self._registry.times.waited(now - self._woken_at)
        self._woken_at = None
        if self._changed_at is None:
            self._changed_at = self._registry.published_at
        return True

    def sending(self) -> None:
        self._has_sent = self._changed_at is not None

    def accepted(self, now: float, *, counts: bool) -> None:
        """The client has accepted everything. An agent's stream does not count."""
        if self._has_sent and counts and self._changed_at is not None:
            self._registry.times.converged(now - self._changed_at)
        self._changed_at, self._has_sent = None, False

    def refused(self) -> None:
        """The change will not be accepted, so it never converges."""
        self._changed_at = None
