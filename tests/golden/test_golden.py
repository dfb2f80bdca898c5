"""Every golden scenario: what each of its proxies is served, against what a real Istio generated for it.

A difference must stand in ``differences.yaml``: the path at which a resource differs, both values, and its cause. All
else of that resource is compared. What stands there must differ.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs
import pytest

from mesh_pilot.xds.ads.messages import Variant
from tests.golden.classify import (
    EQUAL,
    EXPLAINED,
    OLDER,
    RECORDED_BY_1_14,
    TABLE,
    UNEXPLAINED,
    Row,
    causes,
    classified,
    judged,
    table,
    unused,
)
from tests.support import golden

MOST = 12
"""The most causes for which we may differ."""


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("scenario", golden.scenarios())
def test_scenario(scenario: str, variant: Variant) -> None:
    found = classified(scenario, variant)
    left = [f"[{each.proxy}] {each.resource}: {d.line}" for each in found for d in each.unexplained]
    assert not left, "\n".join(left)
    stale = unused([row for row in table() if row.scenario == scenario], found)
    assert not stale, f"does not differ, take it out of {TABLE.name}: {stale}"


def test_every_row_has_a_cause_and_names_a_scenario_that_is_compared() -> None:
    assert {row.scenario for row in table()} <= set(golden.scenarios())
    assert {row.cause for row in table()} == causes().keys()


def test_only_so_many_causes_are_ours() -> None:
    assert len(causes().keys() - {RECORDED_BY_1_14}) <= MOST


def test_the_sum_is_that_of_the_docs() -> None:
    counted = Counter(each.state for name in golden.scenarios() for each in classified(name, Variant.DELTA))
    total = counted.total() - counted[OLDER]
    assert counted[EQUAL] / total > 0.97
    said = " ".join((Path(__file__).parents[2] / "docs" / "istio-differences.md").read_text(encoding="utf-8").split())
    assert f"Of {total:,} resources that the proxies are served" in said
    assert f"{counted[EQUAL]:,} are equal. The other {counted[EXPLAINED]} differ for {len(causes()) - 1} causes" in said
    assert f"{counted[OLDER]} more differ from the recording of 1.14.6" in said


AT = golden.Difference("clusters c", "hosts[7].port", 80, 81, "")


def test_a_row_explains_one_value_at_one_path_and_nothing_beside_it() -> None:
    row = Row("s", ("p",), ("clusters c",), "hosts[*].port", 80, 81, "because")
    other_value = attrs.evolve(AT, ours=82)
    other_path = attrs.evolve(AT, path="hosts[7].address")
    found = judged([row], "p", "clusters c", [AT, other_value, other_path])
    assert (found.causes, found.unexplained, found.state) == (("because",), (other_value, other_path), UNEXPLAINED)
    assert judged([row], "p", "clusters c", [AT]).state == EXPLAINED
    assert judged([row], "q", "clusters c", [AT]).unexplained == (AT,)
    other_resource = attrs.evolve(AT, resource="clusters d")
    assert judged([row], "p", "clusters d", [other_resource]).unexplained == (other_resource,)


def test_a_row_that_no_longer_applies_is_reported_for_each_proxy_and_resource() -> None:
    row = Row("s", ("p", "q"), ("clusters c",), "hosts[*].port", 80, 81, "because")
    found = [judged([row], "p", "clusters c", [AT]), judged([row], "q", "clusters c", [])]
    assert found[1].state == EQUAL
    assert unused([row], found) == ["hosts[*].port of clusters c for q"]
