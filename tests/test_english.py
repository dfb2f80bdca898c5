"""Words of a native speaker: patterns of foreign English are counted, and no count grows.

``english.yaml`` has each pattern, what to write instead, and how often it still occurs in messages and docstrings
(``code``) and on pages of documentation (``pages``). To lower a count, reword, then run

    python -m tests.test_english
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.support.source import modules, name_of, pages, strings_of

TABLE = Path(__file__).with_name("english.yaml")


def texts() -> dict[str, list[tuple[str, str]]]:
    """All that people read, by place: strings of at least two words and lines of pages, each after a NUL."""
    code = [(name_of(path), [s for s in strings_of(path) if " " in s.strip()]) for path in modules()]
    # The changelog and the decisions tell what was; they are not reworded.
    read = [page for page in pages() if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]
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


def test_no_pattern_of_foreign_english_grows() -> None:
    read = texts()
    grown = []
    for row in yaml.safe_load(TABLE.read_text(encoding="utf-8")):
        for where in ("code", "pages"):
            places = found(row["pattern"], read[where])
            if len(places) > row[where]:
                grown.append((row["pattern"], row["instead"], f"{row[where]} -> {len(places)}", places[-20:]))
    assert grown == []


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table with the counts of now."""
    read = texts()
    return [row | {where: len(found(row["pattern"], read[where])) for where in ("code", "pages")} for row in rows]


if __name__ == "__main__":
    table = counted(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
    TABLE.write_text(yaml.safe_dump(table, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
