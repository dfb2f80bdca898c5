"""Words of a native speaker: no pattern of foreign English is in messages, docstrings and pages of documentation.

``english.yaml`` has each pattern, and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.support.source import modules, name_of, pages, strings_of

TABLE = Path(__file__).with_name("english.yaml")


def texts() -> dict[str, list[tuple[str, str]]]:
    """All that people read, by place: strings of at least two words and lines of pages, each after a NUL."""
    code = [(name_of(path), [s for s in strings_of(path) if " " in s.strip()]) for path in modules()]
    # The changelog, the decisions and the page on upgrades tell what was; they are not reworded.
    kept = ("CHANGELOG.md", "upgrading.md")
    read = [page for page in pages() if page.name not in kept and page.parent.name != "decisions"]
    lines = [(page.name, page.read_text(encoding="utf-8").splitlines()) for page in read]
    return {"code": joined(code), "pages": joined(lines)}


def joined(places: Iterable[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [(place, "".join(f"\0{string}" for string in strings)) for place, strings in places]


def found(pattern: str, read: Iterable[tuple[str, str]]) -> list[str]:
    """Each occurrence of a pattern, with its place and the words around it."""
    regex = re.compile(pattern, re.IGNORECASE)
    return [
        f"{place}: {text[max(0, match.start() - 30) : match.end() + 30]!r}"
        for place, text in read
        for match in regex.finditer(text)
    ]


def test_there_is_no_pattern_of_foreign_english() -> None:
    read = [place for places in texts().values() for place in places]
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    assert [(where, row["instead"]) for row in rows for where in found(row["pattern"], read)] == []
