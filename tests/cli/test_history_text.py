"""The history of revisions as text."""

from __future__ import annotations

from datetime import UTC, datetime

from mesh_pilot.cli.change.history_text import show_lines
from mesh_pilot.safety.state.reader import RevisionRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def lines(proxies: int, waiting: int) -> list[str]:
    record = RevisionRecord(7, NOW, ("a.yaml:1",), 0, 1, proxies, waiting, 100, None, 0, is_over=False)
    return [*show_lines(record, [], [], NOW)][2:]


def test_one_and_several_are_counted_in_english() -> None:
    sent, waiting = lines(1, 1)
    assert sent.startswith("1 proxy was sent ")
    assert waiting == "1 has not answered yet"
    sent, waiting = lines(2, 2)
    assert sent.startswith("2 proxies were sent ")
    assert waiting == "2 have not answered yet"
    assert lines(0, 0) == ["no proxy was sent anything"]
