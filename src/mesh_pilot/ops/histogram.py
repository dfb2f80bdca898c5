"""A histogram of seconds that is added to, and read as ``Durations``."""

from __future__ import annotations

from bisect import bisect_left

from mesh_pilot.xds.status import Durations


class Histogram:
    """Counts observations by bucket. State: one counter a bucket (the last one is for all that is larger), the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram of {sum(self._counts)}, sum {self._sum:.3f}>"

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def durations(self) -> Durations:
        return Durations(self._bounds, tuple(self._counts), self._sum)
