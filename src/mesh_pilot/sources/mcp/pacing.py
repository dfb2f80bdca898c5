"""When requests go out on an MCP stream: the first request of each collection, and delayed NACKs.

Times are of Trio's clock. Both classes live as long as one stream; neither waits itself.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import attrs
import trio

from mesh_pilot.xds.mcp.messages import McpRequest

PROBE_SECONDS = 3.0
"""Time that a server has to answer a collection requested alone; after that it is assumed to have the collection.

Longer than the second that Galley waits before it replaces a stream that it gave up.
"""

NACK_BACKOFF_SECONDS = 1.0
MAX_NACK_BACKOFF_SECONDS = 30.0


@attrs.define
class FirstRequests:
    """The first requests of a stream, and when they are due: all at once, or ``one_by_one``, after the answer before.

    None is due before ``start_at``, unless the server has greeted.
    """

    requests: deque[McpRequest]
    start_at: float
    one_by_one: bool
    probed: str | None = None
    """The collection that was requested alone and is not answered yet."""
    probe_until: float = math.inf
    is_greeted: bool = False
    preceded_greeting: bool = False
    """A request was sent before the server greeted, which some servers do not expect."""
    has_sent: bool = False

    @property
    def due_at(self) -> float:
        if self.probed is not None:
            return self.probe_until
        return self.start_at if self.requests else math.inf

    def take_due(self) -> McpRequest | None:
        """The next request, if it is due."""
        now = trio.current_time()
        if self.probed is not None and now >= self.probe_until:
            self.probed = None
        if not self.requests or self.probed is not None or now < self.start_at:
            return None
        request = self.requests.popleft()
        self.has_sent = True
        if self.one_by_one:
            self.probed, self.probe_until = request.collection, now + PROBE_SECONDS
        return request

    def received(self, collection: str, *, is_greeting: bool) -> None:
        """A response has come. ``is_greeting``: it is for a collection that is never requested."""
        if not self.is_greeted:
            self.is_greeted, self.start_at = True, -math.inf
            self.preceded_greeting = is_greeting and self.has_sent
        if collection == self.probed:
            self.probed = None


class NackBackoff:
    """NACKs that are delayed, because the server repeats what it is told is invalid.

    The oldest servers of ``AggregatedMeshConfigService`` answer a NACK at once with the same resources. Without a delay
    the two would exchange them in an endless loop.

    State: delayed NACKs with their times; for each collection, how often it was repeated.
    """

    def __init__(self) -> None:
        self._delayed: list[tuple[float, McpRequest]] = []
        self._repetitions: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<NackBackoff {len(self._delayed)} delayed>"

    @property
    def due_at(self) -> float:
        return min((at for at, _ in self._delayed), default=math.inf)

    def reset(self, collection: str) -> None:
        """A response brought a change: the next NACK of this collection is delayed for the shortest time again."""
        self._repetitions.pop(collection, None)

    def delay(self, nack: McpRequest) -> None:
        """Delay the NACK of a repetition, twice as long as the one before."""
        exponent = min(self._repetitions[nack.collection], 10)
        self._repetitions[nack.collection] += 1
        seconds = min(MAX_NACK_BACKOFF_SECONDS, NACK_BACKOFF_SECONDS * 2.0**exponent)
        self._delayed.append((trio.current_time() + seconds, nack))

    def take_due(self) -> McpRequest | None:
        """A NACK that is due; None if there is none."""
        for delayed in self._delayed:
            if delayed[0] <= trio.current_time():
                self._delayed.remove(delayed)
                return delayed[1]
        return None
