"""Names: one name has one meaning, the glossary's terms exist, and retired names do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

from tests.support.source import REPOSITORY, ROOT, modules, name_of, nodes_of, tree_of

ARCHITECTURE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")

RETIRED = {
    "crowd": "query pool",
    "ledger": "overlap index",
    "seer": "enforcement point",
    "shelf": "served collections",
    "splice": "template",
    "spot": "listener candidate",
    "spots": "listener candidates",
    "teller": "event translator",
    "twins": "aliases",
}
"""Words for which the field has a term, with the term."""


def rows() -> list[tuple[str, str]]:
    """The term and the code of each row of the glossary."""
    glossary = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8").partition("## In the code")[2]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in glossary.splitlines() if line.startswith("|")]
    return [(term, code) for term, _, code in cells[2:]]


def definitions(path: Path) -> set[str]:
    found = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_terms_of_the_glossary_are_in_the_code() -> None:
    for term, code in rows():
        named = re.findall(r"`([^`]+)`", code)
        assert named, f"{term}: the glossary names no code"
        paths = [Path(name) for name in named if "/" in name or name.endswith(".py")]
        files = [next(p for p in (ROOT / path, REPOSITORY / path) if p.exists()) for path in paths]
        symbols = {name for name in named if Path(name) not in paths}
        assert symbols <= {name for file in files if file.is_file() for name in definitions(file)}, term


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    terms = [term.lower() for term, _ in rows()]
    assert len(terms) > 20
    assert terms == sorted(set(terms))


def test_no_identifier_uses_a_retired_word() -> None:
    names = {(name_of(path), name) for path in modules() for name in identifiers(path)}
    found = {place: RETIRED[word] for place in names for word in words(place[1]) if word in RETIRED}
    assert not found, "the field's terms"


def test_docstrings_begin_with_the_thing() -> None:
    """Noun first: not "What a proxy has", but "The resources of a proxy"."""
    texts = [(name_of(path), node.value.value) for path in modules() for node in nodes_of(path)
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
             and isinstance(node.value.value, str)]  # fmt: skip
    assert [text for text in texts if text[1].lstrip().partition(" ")[0] in {"What", "Who", "Those", "Whatever"}] == []


def identifiers(path: Path) -> set[str]:
    with io.StringIO(path.read_text(encoding="utf-8")) as text:
        return {token.string for token in tokenize.generate_tokens(text.readline) if token.type == tokenize.NAME}


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/.-]+(?:\.py|/))`", ARCHITECTURE)
    assert len(named) > 30
    places = (ROOT, REPOSITORY, *(ROOT / room for room in ("envoy", "mesh")))
    assert [name for name in named if "NAME" not in name and not any((p / name).exists() for p in places)] == []
