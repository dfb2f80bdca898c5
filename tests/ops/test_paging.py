"""Long lists in pieces: whoever reads them one after the other has every entry once."""

from __future__ import annotations

import pytest

from mesh_pilot.ops.api.paging import Paging


@pytest.mark.parametrize("count", [0, 1, 5, 6, 10, 12])
def test_the_pieces_are_the_whole_list(count: int) -> None:
    entries = [(f"entry-{number:02}", number) for number in reversed(range(count))]
    read: list[int] = []
    after = ""
    for _ in range(4):
        piece = Paging(limit=5, after=after).piece(entries, lambda entry: entry)
        read += piece.items
        assert piece.total == count
        if piece.go_on is None:
            break
        after = piece.go_on
    assert read == [*range(count)]
