"""The package's own source, parsed once for all the tests that judge it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import mesh_pilot

ROOT = Path(mesh_pilot.__file__).parent
REPOSITORY = Path(__file__).parents[2]


@cache
def modules() -> tuple[Path, ...]:
    """Every module written by hand."""
    return tuple(path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "api")


def name_of(path: Path) -> str:
    """The path of a module below the package, for messages: ``envoy/filters/cors.py``."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module, in no order that means anything."""
    return tuple(ast.walk(tree_of(path)))


@cache
def strings_of(path: Path) -> tuple[str, ...]:
    """All string constants of a module: messages and docstrings, names and keys. Pieces of f-strings count each."""
    return tuple(n.value for n in nodes_of(path) if isinstance(n, ast.Constant) and isinstance(n.value, str))


@cache
def pages() -> tuple[Path, ...]:
    """Every page of documentation: of the repository, of ``docs/`` and of the samples."""
    return tuple(sorted(page for part in ("*.md", "docs/**/*.md", "samples/**/*.md") for page in REPOSITORY.glob(part)))
