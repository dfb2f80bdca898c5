"""Statistics of two groups of tries: whether one of them fails more often than the other, or too little is known.

*Test.* Given how many failed in both groups together, the failures of one are hypergeometric if both fail alike:
Fisher's exact test, one-sided. Its tail is bounded by a geometric series from its first term on (the distribution is
log-concave), so that a test takes a few microseconds whatever the numbers are, and the bound errs towards silence.

*Requests are not independent.* A burst of errors is one event, and so is one bad proxy. Failures are counted by
proxies and by slots of time; where they scatter more than chance explains, numbers of both groups are divided by
Pearson's statistic (quasi-likelihood: McCullagh and Nelder, Generalized Linear Models, 4.5), over the value that it has
once in five times by chance, not over its mean: with two or three slots the mean would hide one fault in ten. A canary
with one bad proxy of ten then counts as about one failure; failures in one slot only are never called worse.

*Two references.* The others in the same time know what befell everybody; the same proxies before know which of them
were bad anyway. Worse is what is worse than each that is known (an intersection-union test: Berger 1982), at no cost in
errors.

*Asked again and again.* The k-th look at the s-th step has the level ``ALPHA / (k (k + 1) s (s + 1))``, whose sum over
all looks and steps is ``ALPHA``, and the edges of a look share it evenly (Bonferroni).

*A least effect.* With millions of requests a difference of no interest is significant: half a percentage point and
three failures are the least. *Enough* is known once a rate that is a percentage point higher is excluded with 95 %:
without failures that takes 300 tries, the rule of three (Hanley and Lippman-Hand 1983).

Decision 033 has what else was weighed, and measured rates of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

import attrs

from mesh_pilot.traffic.counts import Tries

ALPHA = 0.01
"""The chance of a false alarm in a whole rollout of equal halves."""

LEAST_DIFFERENCE = 0.005
"""The least difference of two rates that matters."""
LEAST_FAILURES = 3.0
"""The least number of failures beyond those to be expected."""

MARGIN = 0.01
"""A rate that is so much higher must be excluded before it is said that a group is not worse."""
DOUBT = 0.05
"""The doubt that remains of that."""


class TrafficVerdict(StrEnum):
    """The result of a comparison."""

    WORSE = "worse"
    NOT_WORSE = "not worse"
    UNKNOWN = "too little to know"


@attrs.frozen
class Comparison:
    """Two groups of tries."""

    before: Tries
    """The reference."""
    after: Tries
    """The group that is judged by it."""
    verdict: TrafficVerdict
    p_value: float
    """At most so much is the chance of such a difference if both fail alike; 1 if it does not matter."""
    needed: int
    """About how many tries it takes to say that the second group is not worse."""


@attrs.frozen
class TriedGroup:
    """The tries of a group, with the parts among which they may scatter."""

    total: Tries
    proxies: Sequence[Tries] = ()
    """The same by proxy,"""
    slots: Sequence[Tries] = ()
    """and by slot of time."""


def level(look: int, step: int = 1, edges: int = 1) -> float:
    """The level of a test of one edge. ``look``, ``step``: how many there have been, from 1."""
    return ALPHA / (look * (look + 1) * step * (step + 1) * max(1, edges))


def compare(
    before: Tries, after: Tries, *, alpha: float = ALPHA, dispersion: float = 1.0, least: float = LEAST_DIFFERENCE
) -> Comparison:
    """The answer whether the tries of ``after`` fail more often; of groups of two units nothing is known.

    ``dispersion``: how many failures come together; see ``dispersion_of``. ``least``: the least
    difference that matters.
    """
    rate = before.rate
    needed = math.ceil(dispersion * (-math.log(DOUBT) / MARGIN + 2.7 * rate * (1 - rate) / MARGIN**2))
    if before.unit is not after.unit or not before.number or not after.number:
        return Comparison(before, after, TrafficVerdict.UNKNOWN, 1.0, needed)
    number, failures = after.number / dispersion, after.failures / dispersion
    p_value = 1.0
    if after.rate - rate >= least and failures - number * rate >= LEAST_FAILURES:
        p_value = _fisher(failures, number, before.failures / dispersion, before.number / dispersion)
    if p_value <= alpha:
        return Comparison(before, after, TrafficVerdict.WORSE, p_value, needed)
    is_excluded = rate + MARGIN >= 1 or at_most(failures, number, rate + MARGIN) <= DOUBT
    return Comparison(
        before, after, TrafficVerdict.NOT_WORSE if is_excluded else TrafficVerdict.UNKNOWN, p_value, needed
    )


def judged(sample: TriedGroup, others: TriedGroup | None, before: TriedGroup | None, alpha: float) -> Comparison | None:
    """The comparison of a sample with the others in the same time and with itself before, as far as they are known.

    It is worse if it is worse than both, and not worse if it is not worse than one of them. None if neither is known.
    """
    others, before = _comparable(others, sample), _comparable(before, sample)
    references = [each for each in (others, before) if each is not None]
    totals = [each.total for each in references]
    found = [compare(each, sample.total, alpha=alpha) for each in totals]
    if others is not None and before is not None and found[1].verdict is TrafficVerdict.WORSE:
        totals[0] = _without_outlier(others)  # a bad one among them must not hide what is new in this sample
        found[0] = compare(totals[0], sample.total, alpha=alpha)
    if found and all(each.verdict is TrafficVerdict.WORSE for each in found):
        dispersion = max(map(dispersion_of, (sample.proxies, sample.slots, *(each.slots for each in references))))
        if others is not None and before is None:  # which proxies are bad anyway is not known
            dispersion = max(dispersion, dispersion_of(others.proxies))
        alpha = 0.0 if _is_one_burst(sample.slots) else alpha
        found = [compare(each, sample.total, alpha=alpha, dispersion=dispersion) for each in totals]
    return min(found, key=lambda each: _ORDER[each.verdict], default=None)


_ORDER = {TrafficVerdict.NOT_WORSE: 0, TrafficVerdict.UNKNOWN: 1, TrafficVerdict.WORSE: 2}


def _comparable(reference: TriedGroup | None, sample: TriedGroup) -> TriedGroup | None:
    """The reference, if it has tries of the same unit."""
    is_there = reference is not None and reference.total.number > 0 and reference.total.unit is sample.total.unit
    return reference if is_there else None


def _is_one_burst(slots: Sequence[Tries]) -> bool:
    """True if failures came in one slot of time only."""
    failures = [each.failures for each in slots]
    return bool(failures) and sum(failures) - max(failures) < LEAST_FAILURES


def _without_outlier(group: TriedGroup) -> Tries:
    """The tries of a group without its worst proxy, if its proxies scatter and others remain."""
    if len(group.proxies) < 3 or not group.total.failures or dispersion_of(group.proxies) == 1.0:
        return group.total
    worst = max(group.proxies, key=lambda each: each.rate)
    return group.total._replace(
        number=group.total.number - worst.number, failures=group.total.failures - worst.failures
    )


def dispersion_of(parts: Iterable[Tries]) -> float:
    """The number of failures that come together: 1, unless the parts scatter more than chance explains."""
    found = [(part.number, part.failures) for part in parts if part.number]
    failures, number = sum(part[1] for part in found), sum(part[0] for part in found)
    if len(found) < 2 or failures < 2 or failures >= number:
        return 1.0
    rate = failures / number
    freedom = len(found) - 1
    pearson = sum((failed - tries * rate) ** 2 / tries for tries, failed in found) / (rate * (1 - rate))
    return max(1.0, pearson / _chance(freedom))


def _chance(freedom: int) -> float:
    """The value that chi-square exceeds once in five times (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 0.8416 * math.sqrt(spread)) ** 3


def _fisher(failures: float, number: float, other_failures: float, other_number: float) -> float:
    """A bound on the chance that at least so many of all failures fall on a group of this number."""
    ratio = other_failures * (number - failures) / ((failures + 1) * (other_number - other_failures + 1))
    if ratio >= 1 or failures * other_number <= other_failures * number:
        return 1.0
    term = (
        _choose(number, failures)
        + _choose(other_number, other_failures)
        - _choose(number + other_number, failures + other_failures)
    )
    return min(1.0, math.exp(term) / (1 - ratio))


def at_least(failures: float, number: float, rate: float) -> float:
    """A bound on the chance of at least so many failures at this rate."""
    if failures <= number * rate:
        return 1.0
    ratio = (number - failures) / (failures + 1) * rate / (1 - rate)
    return min(1.0, _binomial(failures, number, rate) / (1 - ratio)) if ratio < 1 else 1.0


def at_most(failures: float, number: float, rate: float) -> float:
    """A bound on the chance of at most so many failures at this rate."""
    return at_least(number - failures, number, 1 - rate)


def _binomial(failures: float, number: float, rate: float) -> float:
    term = _choose(number, failures) + failures * math.log(rate) + (number - failures) * math.log1p(-rate)
    return math.exp(min(term, 0.0))


def _choose(number: float, part: float) -> float:
    """The logarithm of the number of ways to choose so many."""
    return math.lgamma(number + 1) - math.lgamma(part + 1) - math.lgamma(max(number - part, 0.0) + 1)
