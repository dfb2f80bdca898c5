"""Foreign names as names of objects and namespaces: different things keep different names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mesh_pilot.migration.base.names import namespace_name, object_name

SPELLINGS = ["web_db", "web/db", "web-db", "Web-db", "web db", "web:db", "x" * 300, "x" * 301, "y" * 62 + "_", "y" * 64]


@pytest.mark.parametrize("make", [object_name, namespace_name])
def test_names_that_differ_in_what_is_not_allowed_stay_different(make: Callable[[str], str]) -> None:
    made = {name: make(name) for name in SPELLINGS}
    assert len({*made.values()}) == len(SPELLINGS), made
