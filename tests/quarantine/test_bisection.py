from __future__ import annotations

import math
from collections.abc import Callable, Collection

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.safety.quarantine.bisection import Bisection, Key

Accepts = Callable[[Collection[Key]], bool]


def keys(count: int) -> tuple[Key, ...]:
    return tuple((str(number),) for number in range(count))


def run(search: Bisection, accepts: Accepts) -> tuple[Key, ...] | None:
    """Trials to the end, by a client that accepts what ``accepts`` says of the withheld ones."""
    while search.verdict is None and not search.is_hopeless:
        if accepts(search.withheld):
            search.accepted()
        else:
            search.refused()
        assert search.trials < 1000
    return search.verdict


def test_a_single_suspect_needs_one_trial() -> None:
    search = Bisection(keys(1))
    assert run(search, lambda withheld: len(withheld) == 1) == keys(1)
    assert search.trials == 1


def test_a_hint_that_is_right_saves_the_search() -> None:
    guilty = ("77",)
    search = Bisection(keys(100), [guilty])
    assert run(search, lambda withheld: guilty in withheld) == (guilty,)
    assert search.trials == 2


def test_it_is_hopeless_if_withholding_all_of_them_is_refused() -> None:
    search = Bisection(keys(3))
    assert run(search, lambda _: False) is None
    assert search.trials == 1


def test_suspects_that_turn_up_on_the_way_are_suspects_too() -> None:
    search = Bisection(keys(2))
    late = ("late",)
    search.refused([late])
    assert search.withheld == (*keys(2), late)
    assert run(search, lambda withheld: late in withheld) == (late,)


def test_of_two_that_are_refused_together_the_last_is_guilty() -> None:
    pair = {("1",), ("6",)}
    assert run(Bisection(keys(8)), lambda withheld: bool(pair & {*withheld})) == (("6",),)


@given(st.data())
def test_exactly_the_guilty_are_found_in_a_number_of_trials_that_is_bounded(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 200))
    guilty = data.draw(st.sets(st.sampled_from(keys(count)), min_size=1, max_size=8))
    hinted = data.draw(st.sets(st.sampled_from(keys(count)), max_size=8))
    search = Bisection(keys(count), hinted)
    found = run(search, lambda withheld: guilty <= {*withheld})
    assert found is not None and {*found} == guilty
    assert search.trials <= 4 + 2 * len(guilty) * (math.ceil(math.log2(count)) + 1)
