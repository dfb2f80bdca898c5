"""A Lease that others wrote with another duration: the longer of theirs and ours counts."""

from __future__ import annotations

import pytest

from mesh_pilot.kubernetes.election.lease_record import LeaseObserver, LeaseRecord


@pytest.mark.parametrize(("theirs", "counts"), [(0.0, 15.0), (1.0, 15.0), (15.0, 15.0), (60.0, 60.0)])
def test_a_lease_is_free_once_the_longer_duration_is_over(theirs: float, counts: float) -> None:
    observer, record = LeaseObserver(15.0), LeaseRecord("7", "replica-2", duration_seconds=theirs)
    assert not observer.is_free(record, now=100.0)
    assert not observer.is_free(record, now=100.0 + counts - 0.1)
    assert observer.is_free(record, now=100.0 + counts)
