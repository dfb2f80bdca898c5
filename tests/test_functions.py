"""Functions that branch much say why, and the largest modules begin with a note on their design."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from tests.support.source import modules, name_of, nodes_of, tree_of

MANY_BRANCHES = 13
MANY_LINES = 60
LARGEST = 25
NOTE_LINES = 4
BRANCHES = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case, ast.comprehension,
    ast.Assert,
)  # fmt: skip


def branches(function: ast.AST) -> int:
    """The branches of a function, without those of functions within it."""
    total, waiting = 0, list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        total += len(node.values) - 1 if isinstance(node, ast.BoolOp) else isinstance(node, BRANCHES)
        waiting += ast.iter_child_nodes(node)
    return total


def comments(path: Path) -> set[int]:
    """The lines with a comment for people."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    directives = ("type: ignore", "fmt:", "noqa")
    return {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not any(word in token.string for word in directives)
    }


def test_a_function_that_branches_much_or_is_long_says_why() -> None:
    silent = []
    for path in modules():
        said = comments(path)
        for node in nodes_of(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = range(node.lineno - 1, (node.end_lineno or 0) + 1)
            if (branches(node) >= MANY_BRANCHES or len(lines) - 1 > MANY_LINES) and not said.intersection(lines):
                silent.append(f"{name_of(path)}:{node.lineno} {node.name}")
    assert silent == []


def test_the_largest_modules_begin_with_a_note_on_their_design() -> None:
    largest = sorted(modules(), key=lambda path: -path.read_text(encoding="utf-8").count("\n"))[:LARGEST]
    notes = {name_of(path): (ast.get_docstring(tree_of(path)) or "").splitlines() for path in largest}
    assert [name for name, note in notes.items() if len(note) < NOTE_LINES] == []
