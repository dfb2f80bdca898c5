"""Reasons of refusal: each that the code has is explained to operators, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import mesh_pilot

CODE = Path(mesh_pilot.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "authentication.md").read_text(encoding="utf-8")
MODULES = (
    *(
        f"identity/authenticators/{name}"
        for name in ("compact_token", "token_issuers", "issuer_keys", "jwt", "join_token")
    ),
    "identity/tokens/join_tokens",
    "kubernetes/identity/token_review",
    "consul/identity/authenticator",
)


def test_every_reason_is_explained_and_no_other() -> None:
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse((CODE / f"{module}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "AuthenticationError":
                assert isinstance(node.args[0], ast.Constant | ast.Attribute)
                found |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    table = PAGE[PAGE.index("| reason |") :].splitlines()[2:]
    explained = {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert explained == found


def test_the_fields_of_a_rule_are_explained_and_no_other() -> None:
    from mesh_pilot.identity.authenticators.token_issuers import _FIELDS

    table = PAGE[PAGE.index("| field |") : PAGE.index("**An issuer with many")].splitlines()[2:]
    assert {name for row in table if row for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(_FIELDS)
