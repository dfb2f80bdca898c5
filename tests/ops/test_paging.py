"""Long lists in pieces: whoever reads them one after the other has every entry once."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.ops.api.paging import Paging


@pytest.mark.parametrize("count", [0, 1, 5, 6, 10, 12])
def test_the_pieces_are_the_whole_list(count: int) -> None:
    entries = [(f"entry-{number:02}", number) for number in reversed(range(count))]
    read: list[int] = []
    after = ""
    for _ in range(4):
        piece: Any = Paging(limit=5, after=after).piece(entries, lambda entry: entry)
        read += piece["items"]
        assert piece["total"] == count
        if "continue" not in piece:
            break
        after = piece["continue"]
    assert read == [*range(count)]
