"""Weights of VirtualServices on their way from one version to the next."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Item

LEAST_TOTAL = 100
"""Weights on the way add up to this, or to what the larger of both versions adds up to."""

Route = Sequence[Any]
"""The destinations of a rule, each with a weight."""


def weights_between(old: Sequence[Item], new: Sequence[Item], share: float) -> tuple[Config, ...] | None:
    """The newer version of an object with weights a share of the way from the old ones, in percent; None if the two
    differ in anything but weights."""
    if len(old) != 1 or len(new) != 1:
        return None
    (before,), (after,) = old, new
    if not (isinstance(before, Config) and isinstance(after, Config) and after.key.kind == "VirtualService"):
        return None
    if before == after or _without_weights(before) != _without_weights(after):
        return None
    spec = copy.deepcopy(after.spec)
    for olds, news, routes in zip(_routes(before.spec), _routes(after.spec), _routes(spec), strict=True):
        weights = _mixed([each.weight for each in olds], [each.weight for each in news], share / 100)
        for route, weight in zip(routes, weights, strict=True):
            route.weight = weight
    return (attrs.evolve(after, spec=spec),)


def shifted(old: Sequence[Item], new: Sequence[Item]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The destinations that gain weight and those that lose some, by host as written and subset.

    One that gains in one rule and loses in another is in neither.
    """
    gaining: set[tuple[str, str]] = set()
    losing: set[tuple[str, str]] = set()
    specs = [each.spec for each in (*old, *new) if isinstance(each, Config)]
    for olds, news in zip(*map(_routes, specs), strict=True):
        before, after = (_shares([each.weight for each in route]) for route in (olds, news))
        for route, was, will in zip(news, before, after, strict=True):
            if route.destination is not None and was != will:
                (gaining if will > was else losing).add((route.destination.host, route.destination.subset))
    both = gaining & losing
    return gaining - both, losing - both


def _routes(spec: Any) -> Iterator[Route]:
    for rule in (*spec.http, *spec.tls, *spec.tcp):
        yield rule.route


def _without_weights(config: Config) -> Config:
    spec = copy.deepcopy(config.spec)
    for route in _routes(spec):
        for each in route:
            each.weight = 0
    return attrs.evolve(config, spec=spec)


def _shares(weights: Sequence[int]) -> list[float]:
    """The share of each destination; a rule that gives no weights shares evenly, and one destination has all."""
    total = sum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]


def _mixed(old: Sequence[int], new: Sequence[int], way: float) -> list[int]:
    """Whole weights so far on the way, rounded so that their sum is exact (largest remainders)."""
    if list(old) == list(new):
        return list(new)
    total = max(LEAST_TOTAL, sum(old), sum(new))
    exact = [total * (a * (1 - way) + b * way) for a, b in zip(_shares(old), _shares(new), strict=True)]
    found = [math.floor(each + 1e-9) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: found[at] - exact[at])
    for at in by_remainder[: total - sum(found)]:
        found[at] += 1
    return found
