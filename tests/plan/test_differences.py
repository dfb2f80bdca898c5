"""Differences of JSON values: they name every field that differs, by a path that leads to it."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh_pilot.explain.plan.differences import ABSENT, FieldDifference, differences
from tests.support.sample import examples

names = st.sampled_from(["a", "b", "c", "name"])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


def at(value: Any, path: str) -> Any:
    """The value at a path with positions; ABSENT if there is none."""
    for name, position in re.findall(r"(?:^|\.)([a-z]+)|\[(\d+)\]", path):
        try:
            value = value[name] if name else value[int(position)]
        except (KeyError, IndexError):
            return ABSENT
    return value


def encoded(value: Any) -> str:
    """Unlike Python's equality, it tells 1 from true."""
    return json.dumps(value, sort_keys=True)


@settings(max_examples=examples(60))
@given(values, values)
@example({"a": [1]}, {"a": [True]})
def test_they_are_none_if_and_only_if_the_values_are_equal(before: Any, after: Any) -> None:
    assert bool([*differences(before, after)]) is (encoded(before) != encoded(after))


@settings(max_examples=examples(60))
@given(values, values)
def test_each_path_leads_to_what_there_is_now_or_was(before: Any, after: Any) -> None:
    for each in differences(before, after):
        if each.path.endswith(" (order)"):
            continue
        sides = (each.before, each.after)
        assert ABSENT in sides or encoded(each.before) != encoded(each.after)
        if each.after is not ABSENT:
            assert at(after, each.indexed) == each.after
        else:
            assert at(before, each.indexed) == each.before


def shown(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    return [(each.path, each.before, each.after) for each in differences(before, after)]


def test_members_are_matched_by_name() -> None:
    before = {"virtual_hosts": [{"name": "a", "timeout": 1}, {"name": "b", "timeout": 1}]}
    after = {"virtual_hosts": [{"name": "new"}, {"name": "a", "timeout": 1}, {"name": "b", "timeout": 2}]}
    assert shown(before, after) == [
        ("virtual_hosts[b].timeout", 1, 2),
        ("virtual_hosts[new]", ABSENT, {"name": "new"}),
    ]
    assert [each.indexed for each in differences(before, after)] == ["virtual_hosts[2].timeout", "virtual_hosts[0]"]


def test_members_that_change_places_are_said_to() -> None:
    one, other = {"name": "a"}, {"name": "b"}
    assert [*differences([one, other], [other, one])] == [FieldDifference(" (order)", "", ["a", "b"], ["b", "a"])]


def test_members_without_names_are_matched_by_what_is_equal() -> None:
    assert shown([1, 2, 3], [0, 1, 2, 3]) == [("[0]", ABSENT, 0)]
    assert shown([{"weight": 1}, {"weight": 2}], [{"weight": 1}, {"weight": 3}]) == [("[1].weight", 2, 3)]


def test_long_lists_of_equal_members_are_compared_place_by_place() -> None:
    before, after = [number % 3 for number in range(5000)], [(number + 1) % 4 for number in range(5001)]
    found = [*differences(before, after)]
    assert len(found) == 1 + sum(one != other for one, other in zip(before, after, strict=False))
    assert found[-1] == FieldDifference("[5000]", "[5000]", ABSENT, 1)
