"""Histograms: how often something took how long, or was how large."""

from __future__ import annotations

from bisect import bisect_left

import attrs


@attrs.frozen
class HistogramState:
    """A histogram at one time."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than bounds: how many were at most that much, the last for the rest. Not cumulative."""
    sum: float


class Histogram:
    """Counts observations by bucket. State: a counter for each bucket (the last one is unbounded) and the sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {sum(self._counts)}, sum {self._sum:.3f}>"

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def state(self) -> HistogramState:
        return HistogramState(self._bounds, tuple(self._counts), self._sum)
