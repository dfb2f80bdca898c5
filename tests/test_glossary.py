"""Names: one name has one meaning, the glossary's terms exist, and retired names do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

import mesh_pilot

ROOT = Path(mesh_pilot.__file__).parent
REPOSITORY = Path(__file__).parents[1]
ARCHITECTURE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "api"]

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
    glossary = ARCHITECTURE[ARCHITECTURE.index("## Glossary") :]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in glossary.splitlines() if line.startswith("|")]
    return [(term, code) for term, _, code in cells[2:]]


def definitions(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize(("term", "code"), rows(), ids=[term for term, _ in rows()])
def test_terms_of_the_glossary_are_in_the_code(term: str, code: str) -> None:
    named = re.findall(r"`([^`]+)`", code)
    assert named, f"{term}: the glossary names no code"
    paths = [Path(name) for name in named if "/" in name or name.endswith(".py")]
    files = [next(p for p in (ROOT / path, REPOSITORY / path) if p.exists()) for path in paths]
    symbols = {name for name in named if Path(name) not in paths}
    assert symbols <= {name for file in files if file.is_file() for name in definitions(file)}


def test_the_glossary_is_sorted_and_names_each_term_once() -> None:
    terms = [term.lower() for term, _ in rows()]
    assert len(terms) > 20
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_identifier_uses_a_retired_word(path: Path) -> None:
    with io.StringIO(path.read_text(encoding="utf-8")) as text:
        names = {token.string for token in tokenize.generate_tokens(text.readline) if token.type == tokenize.NAME}
    found = {name: RETIRED[word] for name in names for word in words(name) if word in RETIRED}
    assert not found, "the field's terms"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_docstrings_begin_with_the_thing(path: Path) -> None:
    """Noun first: not "What a proxy has", but "The resources of a proxy"."""
    texts = [node.value.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
             and isinstance(node.value.value, str)]  # fmt: skip
    assert [text for text in texts if text.lstrip().partition(" ")[0] in {"What", "Who", "Those", "Whatever"}] == []


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/.-]+(?:\.py|/))`", ARCHITECTURE)
    assert len(named) > 30
    places = (ROOT, REPOSITORY, *(ROOT / room for room in ("envoy", "mesh")))
    assert [name for name in named if "NAME" not in name and not any((p / name).exists() for p in places)] == []
