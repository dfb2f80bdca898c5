"""A plane for all attacks of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.attack import Victim, victim


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with victim(tmp_path_factory.mktemp("victim") / "config") as found:
        yield found
