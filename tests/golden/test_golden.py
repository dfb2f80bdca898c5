"""Every golden scenario: what each of its proxies is sent, against what a real Istio generated for it.

A difference must stand in ``differences.yaml``: the path at which a resource differs, both values, and the reason. All
else of that resource is compared. What stands there must differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from tests.support import golden

TABLE = Path(__file__).parent / "differences.yaml"


@attrs.frozen
class Row:
    scenario: str
    proxies: tuple[str, ...]
    resources: tuple[str, ...]
    """``section name``, such as ``clusters outbound|80||a.example.com``."""
    path: str
    """``[*]`` stands for any index of a list; empty for a resource that only one side has."""
    istio: Any
    ours: Any
    reason: str

    def covers(self, proxy: str, difference: golden.Difference) -> bool:
        return (
            proxy in self.proxies
            and difference.resource in self.resources
            and re.fullmatch(re.escape(self.path).replace(r"\[\*\]", r"\[\d+\]"), difference.path) is not None
            and difference.istio == self.istio
            and difference.ours == self.ours
        )


def as_tuple(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def read_rows(text: str) -> Iterator[Row]:
    for entry in yaml.safe_load(text):
        for at in entry["differs"]:
            assert "istio" in at or "ours" in at, f"neither side has a value: {at}"
            yield Row(
                entry["scenario"],
                as_tuple(at["proxy"]),
                as_tuple(at["resource"]),
                at.get("path", ""),
                at.get("istio", golden.xdsdiff.ABSENT),
                at.get("ours", golden.xdsdiff.ABSENT),
                entry["reason"],
            )


@cache
def table() -> tuple[Row, ...]:
    return tuple(read_rows(TABLE.read_text(encoding="utf-8")))


def unexplained(
    rows: list[Row], found: dict[str, list[golden.Difference]]
) -> tuple[list[tuple[str, golden.Difference]], list[str]]:
    """The differences by proxy that no row explains, and what in the rows does not differ (any more)."""
    used: set[tuple[int, str, str]] = set()
    left = []
    for proxy, differences in found.items():
        for difference in differences:
            covering = [n for n, row in enumerate(rows) if row.covers(proxy, difference)]
            used.update((n, proxy, difference.resource) for n in covering)
            if not covering:
                left.append((proxy, difference))
    stale = [
        f"{row.path or 'all'} of {resource} for {proxy}"
        for n, row in enumerate(rows)
        for proxy in row.proxies
        for resource in row.resources
        if (n, proxy, resource) not in used
    ]
    return left, stale


def found_in(scenario: str) -> dict[str, list[golden.Difference]]:
    world = golden.load(scenario)
    return {entry["name"]: golden.differences(scenario, entry, world) for entry in golden.proxies(scenario)}


@pytest.mark.parametrize("scenario", golden.scenarios())
def test_scenario(scenario: str) -> None:
    left, stale = unexplained([row for row in table() if row.scenario == scenario], found_in(scenario))
    assert not left, "\n".join(f"[{proxy}] {d.resource}: {d.line}" for proxy, d in left)
    assert not stale, f"does not differ, take it out of {TABLE.name}: {stale}"


def test_every_row_names_a_scenario_that_is_compared() -> None:
    assert {row.scenario for row in table()} <= set(golden.scenarios())


def test_a_row_explains_one_value_at_one_path_and_nothing_beside_it() -> None:
    row = Row("s", ("p",), ("clusters c",), "hosts[*].port", 80, 81, "because")
    at = golden.Difference("clusters c", "hosts[7].port", 80, 81, "")
    other_value = attrs.evolve(at, ours=82)
    other_path = attrs.evolve(at, path="hosts[7].address")
    other_resource = attrs.evolve(at, resource="clusters d")
    left, stale = unexplained([row], {"p": [at, other_value, other_path, other_resource], "q": [at]})
    assert left == [("p", other_value), ("p", other_path), ("p", other_resource), ("q", at)]
    assert stale == []


def test_a_row_that_no_longer_applies_is_reported_for_each_proxy_and_resource() -> None:
    row = Row("s", ("p", "q"), ("clusters c",), "type", "EDS", "STATIC", "because")
    at = golden.Difference("clusters c", "type", "EDS", "STATIC", "")
    assert unexplained([row], {"p": [at], "q": []}) == ([], ["type of clusters c for q"])
