"""The health of WorkloadEntries: those that are checked and not healthy get no requests."""

from __future__ import annotations

import pytest

from tests.support.worlds import configs, update, world_of
from tests.world.test_workload_groups import ENTRY, GROUP, WORKLOAD, web

CHECKED = WORKLOAD.replace("annotations: {", 'annotations: {proxy.istio.io/health-checks-enabled: "true", ')


def with_condition(text: str, status: str, name: str = "Healthy") -> str:
    return f'{text}status: {{conditions: [{{type: Ready, status: "True"}}, {{type: {name}, status: {status}}}]}}\n'


@pytest.mark.parametrize(
    ("text", "is_served"),
    [
        (WORKLOAD, True),
        (with_condition(WORKLOAD, '"False"'), True),
        (CHECKED, False),
        (with_condition(CHECKED, '"False"'), False),
        (with_condition(CHECKED, '"Unknown"'), False),
        (with_condition(CHECKED, '"True"', "Other"), False),
        (with_condition(CHECKED, '"True"'), True),
        (with_condition(CHECKED, "true"), True),
        (with_condition(CHECKED.replace('enabled: "true"', 'enabled: "false"'), '"False"'), True),
        (with_condition(CHECKED.replace('enabled: "true"', 'enabled: "maybe"'), '"False"'), True),
    ],
)
def test_an_entry_whose_health_is_checked_is_served_once_it_is_healthy(text: str, is_served: bool) -> None:
    assert bool(web(world_of(ENTRY + GROUP + text))) == is_served


def test_an_entry_comes_and_goes_with_its_health() -> None:
    world = world_of(ENTRY + GROUP + CHECKED)
    for status, expected in (("True", 2), ("False", 0), ("True", 2)):
        update(world, with_condition(CHECKED, f'"{status}"'))
        assert len(web(world)) == expected
    update(world, CHECKED)
    assert web(world) == ()


def test_conditions_that_are_none_are_told_and_have_no_effect() -> None:
    text = f'{CHECKED}status: {{conditions: [7, {{type: Healthy}}, {{type: Healthy, status: "True"}}]}}\n'
    (config,) = configs(text)
    assert [problem.path for problem in config.warnings if problem.path.startswith("status")] == [
        "status.conditions[0]",
        "status.conditions[1]",
    ]
    assert config.conditions == {"Healthy": "True"}


def test_conditions_of_other_kinds_change_nothing() -> None:
    first, second = (configs(ENTRY + f"status: {{conditions: [{{type: Reconciled, status: {s}}}]}}\n") for s in "ab")
    assert first == second
