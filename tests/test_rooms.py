"""The order of the rooms: imports only point down, and every room says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mesh_pilot

ROOT = Path(mesh_pilot.__file__).parent
ORDER = (
    "cli",
    "bootstrap",
    "ops",
    "xds",
    "envoy",
    "security",
    "source_list",
    "settings",
    "sources",
    "world",
    "incremental",
    "rpc",
    "config",
    "model",
    "api",
)
"""From the top down, as in the package's docstring."""

PURE = {"xds/stream.py": {"model"}, "incremental.py": set()}
"""Modules that promise to need even less than their room may have."""


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "api"]


def imported(path: Path) -> set[str]:
    """Modules of mesh_pilot that a module imports anywhere in it, without the package's own name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "mesh_pilot" else []
            names += [str(node.module)] if node.module != "mesh_pilot" else []
        else:
            continue
        found |= {name.removeprefix("mesh_pilot.") for name in names if name.startswith("mesh_pilot.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_only_point_down(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    room = name.split("/")[0].removesuffix(".py")
    if room == "__init__":
        assert imported(path) == set()
        return
    below = set(ORDER[ORDER.index(room) :])
    if name in PURE:
        below = PURE[name] | ({room} if "/" in name else set())
    wrong = {module for module in imported(path) if module.split(".")[0] not in below}
    assert not wrong, f"{name} may not import {sorted(wrong)}"


def test_the_package_names_the_rooms_in_the_same_order() -> None:
    places = [(mesh_pilot.__doc__ or "").index(f"``{room}``") for room in ORDER]
    assert places == sorted(places)


@pytest.mark.parametrize("room", [room for room in ORDER if any((ROOT / room).glob("*.py"))])
def test_every_room_says_what_it_is_for_and_what_it_may_import(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(text.split()) > 10
    assert "May import" in text
