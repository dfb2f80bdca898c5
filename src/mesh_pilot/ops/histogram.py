"""A histogram: how many observations fell under each bound, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


class Histogram:
    """Counts observations by bucket. State: one counter a bucket (the last one is for all that is larger), the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def __repr__(self) -> str:
        return f"<Histogram of {sum(self._counts)}, sum {self.sum:.3f}>"

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Prometheus' buckets: the upper bound as text (``+Inf`` is the last), and how many were not above it."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total
