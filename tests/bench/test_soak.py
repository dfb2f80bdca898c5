"""What a long run tells at its end, from its table."""

from __future__ import annotations

import pytest

from bench.soak import COLUMNS, MORE_COLUMNS, Table


def table(memory: int, *, minutes: int = 12) -> Table:
    """A run of two planes, the second of which grows by so many megabytes a minute."""
    found = Table(None)
    for minute in range(minutes + 1):
        row = dict.fromkeys((*COLUMNS, *MORE_COLUMNS), "0")
        planes = f"200 / {200 + minute * memory:,}"
        row |= {"minute": str(minute), "edits": f"{minute * 600:,}", "planes MB": planes, "planes CPU s": "1.5 / 2.0"}
        found.add(list(row.values()))
    return found


def test_memory_that_grows_to_the_end_is_what_went_wrong() -> None:
    assert table(0).growth() == []
    assert table(10).growth() == ["planes MB: 240 after a third of the run, 320 at its end"]
    assert table(10, minutes=5).growth() == [], "too short to tell"


def test_a_run_ends_with_a_summary_that_fits_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table(100).summary().splitlines()
    assert lines[0] == "7,200 edits; clients behind 0, streams lost 0"
    assert "  planes MB: 200 / 200 at first, 200 / 600 after a third, 200 / 1,400 at the end" in lines
    assert "  planes CPU s: 3.5 a minute together, at most 3.5" in lines
    assert len(capsys.readouterr().out.splitlines()) == 2 + 13, "the table is written as it grows"
