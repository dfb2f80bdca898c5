"""What went over a source's streams of MCP, counted as Istio's own sinks count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import trio

SIZES = tuple(4**power for power in range(16))
"""Upper bounds in bytes of the classes in which responses are counted; the last class has none."""


@attrs.frozen
class Traffic:
    """Since the start, over all streams."""

    acks: Mapping[str, int]
    """Responses that were taken as a whole, by collection."""
    nacks: Mapping[str, int]
    """Responses that were refused, for some of their objects or as a whole, by collection."""
    sizes: tuple[int, ...]
    """Responses by their size: one number for each of ``SIZES``, and one for what is larger."""
    bytes_received: int
    last_response_seconds: float | None
    """How long ago a response came last; None: never."""
    failures: Mapping[str, int]
    """Streams that ended with an error, by its gRPC status."""


class TrafficCounter:
    """State: the counts, and when a response came last."""

    def __init__(self) -> None:
        self._acks: Counter[str] = Counter()
        self._nacks: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._sizes = [0] * (len(SIZES) + 1)
        self._bytes = 0
        self._last: float | None = None

    def __repr__(self) -> str:
        return f"<TrafficCounter {self._acks.total()} ACKs, {self._nacks.total()} NACKs>"

    def received(self, size: int) -> None:
        self._sizes[next((index for index, bound in enumerate(SIZES) if size <= bound), len(SIZES))] += 1
        self._bytes += size
        self._last = trio.current_time()

    def answered(self, collection: str, *, refused: bool) -> None:
        (self._nacks if refused else self._acks)[collection] += 1

    def failed(self, status: str) -> None:
        self._failures[status] += 1

    def statistics(self) -> Traffic:
        return Traffic(
            acks=dict(self._acks),
            nacks=dict(self._nacks),
            sizes=tuple(self._sizes),
            bytes_received=self._bytes,
            last_response_seconds=None if self._last is None else trio.current_time() - self._last,
            failures=dict(self._failures),
        )
