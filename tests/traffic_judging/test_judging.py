"""Judging two groups of tries: few false alarms whatever the traffic is like, and faults found soon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

import attrs
import pytest

from mesh_pilot.model.traffic import Counter
from mesh_pilot.traffic.counts import Tries
from mesh_pilot.traffic.judging import (
    ALPHA,
    TrafficVerdict,
    TriedGroup,
    at_least,
    compare,
    dispersion_of,
    judged,
    level,
)


def tries(number: int, failures: int, unit: Counter = Counter.REQUESTS) -> Tries:
    return Tries(number, failures, unit)


@attrs.frozen(kw_only=True)
class Shape:
    """A kind of traffic, simulated by slots of ten seconds: what it is like at each proxy of an edge."""

    edges: int = 1
    canary: int = 1
    proxies: int = 4
    rate: float = 20.0
    """Requests a second of a proxy."""
    errors: float = 0.01
    common_bursts: float = 0.0
    """The share of slots in which 30 % of all fails, everywhere."""
    own_bursts: float = 0.0
    """The share of slots in which a proxy fails half of its requests."""
    is_clustered: bool = False
    """True if the rate of errors of each proxy varies from slot to slot, as a beta distribution."""
    has_flaky: bool = False
    """True if one proxy, whichever, fails 10 % of its requests all the time."""
    before: int = 30
    """Slots before the step."""
    fault: float = 0.0
    """The share of requests that fail at the canary since the step."""


class Group:
    """What a group of proxies has counted."""

    def __init__(self) -> None:
        self.proxies: dict[int, tuple[int, int]] = {}
        self.slots: list[Tries] = []

    def add(self, slot: Mapping[int, tuple[int, int]]) -> None:
        for proxy, (number, failures) in slot.items():
            numbers = self.proxies.get(proxy, (0, 0))
            self.proxies[proxy] = (numbers[0] + number, numbers[1] + failures)
        self.slots.append(tries(sum(n for n, _ in slot.values()), sum(f for _, f in slot.values())))

    def sample(self) -> TriedGroup:
        total = tries(sum(n for n, _ in self.proxies.values()), sum(f for _, f in self.proxies.values()))
        return TriedGroup(total, [tries(*each) for each in self.proxies.values()], self.slots)


def poisson(chance: Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    limit, number, product = math.exp(-mean), 0, chance.random()
    while product > limit:
        number, product = number + 1, product * chance.random()
    return number


def failures_of(chance: Random, number: int, rate: float) -> int:
    """Binomial, by its limits."""
    mean = number * rate
    drawn = poisson(chance, mean) if mean < 30 else round(chance.gauss(mean, math.sqrt(mean * (1 - rate))))
    return min(number, max(0, drawn))


def slot_of(chance: Random, shape: Shape, flaky: int, *, is_burst: bool, fault: float) -> dict[int, tuple[int, int]]:
    found = {}
    for proxy in range(shape.proxies):
        errors = shape.errors
        if shape.is_clustered:
            errors = chance.betavariate(errors * 30, (1 - errors) * 30)
        if proxy == flaky:
            errors = max(errors, 0.1)
        if is_burst:
            errors = max(errors, 0.3)
        if shape.own_bursts and chance.random() < shape.own_bursts:
            errors = 0.5
        if proxy < shape.canary:
            errors += fault * (1 - errors)
        number = poisson(chance, shape.rate * 10)
        found[proxy] = number, failures_of(chance, number, errors)
    return found


def look_at_alarm(chance: Random, shape: Shape, looks: int = 12) -> int:
    """The look at which any edge is called worse; 0 if none is."""
    edges = [(Group(), Group(), Group(), chance.randrange(shape.proxies)) for _ in range(shape.edges)]
    for at in range(-shape.before, looks):
        is_burst = chance.random() < shape.common_bursts
        for canary, others, before, flaky in edges:
            fault = shape.fault if at >= 0 else 0.0
            slot = slot_of(chance, shape, flaky if shape.has_flaky else -1, is_burst=is_burst, fault=fault)
            mine = {proxy: each for proxy, each in slot.items() if proxy < shape.canary}
            (canary if at >= 0 else before).add(mine)
            if at >= 0:
                others.add({proxy: each for proxy, each in slot.items() if proxy >= shape.canary})
        if at >= 0:
            alpha = level(at + 1, 1, shape.edges)
            for canary, others, before, _ in edges:
                found = judged(canary.sample(), others.sample(), before.sample(), alpha)
                if found is not None and found.verdict is TrafficVerdict.WORSE:
                    return at + 1
    return 0


EQUAL = {
    "few errors": Shape(errors=0.001),
    "some errors": Shape(),
    "many errors": Shape(errors=0.3),
    "little traffic": Shape(rate=1.0, errors=0.05),
    "one of twenty": Shape(proxies=20, errors=0.002),
    "halves": Shape(proxies=10, canary=5, rate=5.0),
    "all, against the time before": Shape(canary=4),
    "nothing is known of the time before": Shape(before=0),
    "bursts common to both": Shape(common_bursts=0.1, errors=0.001),
    "bursts common to all, of whom all are in the canary": Shape(common_bursts=0.1, errors=0.001, canary=4),
    "bursts of each proxy's own": Shape(own_bursts=0.02, errors=0.001),
    "errors in clusters": Shape(is_clustered=True, errors=0.02),
    "a flaky proxy in either part": Shape(has_flaky=True, errors=0.001),
    "a flaky proxy in either half": Shape(has_flaky=True, errors=0.001, canary=2),
    "a flaky proxy in either half, nothing known before": Shape(has_flaky=True, canary=5, proxies=10, before=0),
}
MANY = {
    "30 edges": Shape(edges=30),
    "300 edges": Shape(edges=300, proxies=2, before=6),
    "30 edges with common bursts": Shape(edges=30, common_bursts=0.1, errors=0.001),
    "30 edges with a flaky proxy each": Shape(edges=30, has_flaky=True, errors=0.001),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_groups_are_called_worse_less_than_once_in_a_hundred_runs(name: str) -> None:
    """300 runs of two minutes each; the seed is the name."""
    chance = Random(name)
    assert sum(look_at_alarm(chance, EQUAL[name]) > 0 for _ in range(300)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EQUAL, *MANY])
def test_equal_groups_are_called_worse_less_than_once_in_a_hundred_of_many_runs(name: str) -> None:
    shape, chance = (EQUAL | MANY)[name], Random(f"many: {name}")
    runs = 3000 if shape.edges == 1 else 6000 // shape.edges
    assert sum(look_at_alarm(chance, shape) > 0 for _ in range(runs)) <= 0.01 * runs


@pytest.mark.parametrize(
    "shape",
    [
        Shape(fault=0.05, errors=0.0),
        Shape(fault=0.05, errors=0.0, proxies=2),
        Shape(fault=0.05, errors=0.0, edges=20),
        Shape(fault=0.05, errors=0.0, canary=2, rate=10.0),
        Shape(fault=0.05, errors=0.0, canary=4),
        Shape(fault=0.05, errors=0.001, before=0),
        Shape(fault=0.05, errors=0.001, before=3),
        Shape(fault=0.05, errors=0.01),
    ],
    ids=str,
)
def test_one_request_in_twenty_that_fails_is_found_within_three_intervals(shape: Shape) -> None:
    """At 20 requests a second in the canary."""
    chance = Random(1)
    found = [look_at_alarm(chance, shape, looks=3) for _ in range(200)]
    assert sum(look > 0 for look in found) >= 0.95 * len(found)


def test_a_bad_proxy_among_the_others_does_not_hide_a_fault() -> None:
    chance = Random(1)
    shape = Shape(fault=0.05, errors=0.0, has_flaky=True)
    found = [look_at_alarm(chance, shape, looks=12) for _ in range(200)]
    assert sum(look > 0 for look in found) >= 0.9 * len(found)


def test_levels_of_all_looks_at_all_steps_sum_to_the_whole() -> None:
    total = sum(level(look, step) for look in range(1, 500) for step in range(1, 500))
    assert 0.99 * ALPHA < total < ALPHA
    assert level(1, 1, 300) * 300 == pytest.approx(level(1))


@pytest.mark.parametrize(
    ("number", "failures", "others", "other_failures"),
    [(10, 5, 10, 0), (200, 30, 1000, 40), (20, 20, 20, 1), (1000, 60, 1000, 20), (5, 4, 90, 10), (300, 150, 300, 100)],
)
def test_the_p_value_is_that_of_fishers_exact_test_or_a_little_more(
    number: int, failures: int, others: int, other_failures: int
) -> None:
    every, failed = number + others, failures + other_failures
    exact = sum(
        math.comb(number, k) * math.comb(others, failed - k) for k in range(failures, min(number, failed) + 1)
    ) / math.comb(every, failed)
    found = compare(tries(others, other_failures), tries(number, failures)).p_value
    assert exact * 0.999 <= found <= exact * 2


def test_the_tail_of_the_binomial_distribution_is_bounded_closely() -> None:
    exact = sum(math.comb(100, k) * 0.01**k * 0.99 ** (100 - k) for k in range(5, 101))
    assert exact <= at_least(5, 100, 0.01) <= exact * 1.1
    assert at_least(1, 100, 0.01) == 1.0


def test_trifling_differences_do_not_alarm_however_large_the_numbers_are() -> None:
    found = compare(tries(10_000_000, 100_000), tries(10_000_000, 140_000))
    assert found.verdict is TrafficVerdict.NOT_WORSE
    assert compare(tries(10_000_000, 100_000), tries(10_000_000, 160_000)).verdict is TrafficVerdict.WORSE
    assert compare(tries(10_000_000, 0), tries(20, 2)).verdict is TrafficVerdict.UNKNOWN, "less than three failures"


def test_without_failures_three_hundred_tries_are_enough() -> None:
    assert compare(tries(10_000, 0), tries(250, 0)).verdict is TrafficVerdict.UNKNOWN
    found = compare(tries(10_000, 0), tries(300, 0))
    assert (found.verdict, found.needed) == (TrafficVerdict.NOT_WORSE, 300)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tries(0, 0), tries(1000, 900)),
        (tries(1000, 0), tries(0, 0)),
        (tries(1000, 0, Counter.ATTEMPTS), tries(1000, 900)),
    ],
)
def test_nothing_is_known_without_tries_or_of_two_units(before: Tries, after: Tries) -> None:
    assert compare(before, after).verdict is TrafficVerdict.UNKNOWN


@pytest.mark.parametrize("failures", [1, 999, 1000])
def test_all_may_fail_in_either_group(failures: int) -> None:
    assert compare(tries(1000, 0), tries(1000, 1000)).verdict is TrafficVerdict.WORSE
    assert compare(tries(1000, 1000), tries(1000, failures)).verdict is TrafficVerdict.NOT_WORSE


def test_failures_in_one_slot_are_one_burst() -> None:
    slots = [tries(200, 0), tries(200, 90), tries(200, 1)]
    assert dispersion_of(slots) > 20
    sample = TriedGroup(tries(600, 91), [tries(600, 91)], slots)
    found = judged(sample, TriedGroup(tries(6000, 0)), None, 0.01)
    assert found is not None
    assert found.verdict is not TrafficVerdict.WORSE


def test_a_sample_without_any_reference_is_not_judged() -> None:
    assert judged(TriedGroup(tries(10, 10)), None, TriedGroup(tries(0, 0)), 0.01) is None
