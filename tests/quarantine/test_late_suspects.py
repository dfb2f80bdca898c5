"""Objects that break while quarantine searches: they are found, and what was good before is not blamed for them."""

from __future__ import annotations

import pytest

from mesh_pilot.safety.quarantine.bisection import Bisection, Key

SUSPECTS: tuple[Key, ...] = tuple((str(number),) for number in range(8))
LATE: Key = ("late",)


@pytest.mark.parametrize("trials_before", range(1, 5))
def test_an_object_that_breaks_during_a_search_is_found_beside_the_first(trials_before: int) -> None:
    search, guilty = Bisection(SUSPECTS), {SUSPECTS[5]}
    while search.verdict is None:
        is_broken = search.trials == trials_before
        if is_broken:
            guilty.add(LATE)
        if guilty <= {*search.withheld}:
            search.accepted()
        else:
            search.refused([LATE] if is_broken else [])
        assert search.trials < 50 and not search.is_hopeless
    assert {*search.verdict} == guilty
