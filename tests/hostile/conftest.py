"""A plane for all attacks of a module; and the attacks of the day, of tables of which CI tries a sample.

``TEST_ATTACKS=day`` leaves out what is not in the sample of a table that is marked ``sweep``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.attack import Victim, victim
from tests.support.sample import of_the_day

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("TEST_ATTACKS") != "day":
        return
    tables = defaultdict(list)
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("sweep"):
            tables[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for name, rows in tables.items():
        (count,) = rows[0].get_closest_marker("sweep").args  # type: ignore[union-attr]
        left_out |= {*rows} - {*of_the_day(rows, count, name)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with victim(tmp_path_factory.mktemp("victim") / "config") as found:
        yield found
