"""Rate limits by subject: to be one of many subjects does not give a busy one another full bucket."""

from __future__ import annotations

import pytest

from mesh_pilot.net.rpc import rate_limits
from mesh_pilot.net.rpc.rate_limits import KeyedBuckets


def test_a_busy_subject_is_remembered_whoever_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_SUBJECTS", 3)
    buckets = KeyedBuckets(rate=0.001, burst=2)
    taken = 0
    for number in range(50):
        taken += buckets.take("busy", now=0.0)
        buckets.take(f"other {number}", now=0.0)
    assert taken == 2
