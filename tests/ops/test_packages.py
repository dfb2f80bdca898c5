"""The packages of ``ops`` import one way: from the top down, in the order of its docstring."""

from __future__ import annotations

import re

from tests.support.source import ROOT
from tests.test_rooms import docstring_of, imported

COMPOSED = {"app", "workers", "admin"}


def test_packages_import_downwards_and_nothing_else_is_in_the_root() -> None:
    root = ROOT / "ops"
    assert {path.stem for path in root.glob("*.py")} == {"__init__", *COMPOSED}
    order = re.findall(r"``(\w+)``:", docstring_of("ops"))
    assert set(order) == {path.parent.name for path in root.glob("*/__init__.py")}
    wrong = []
    for package in order:
        below = {package, *order[order.index(package) + 1 :]}
        for path in (root / package).glob("*.py"):
            names = {name.split(".")[1] for name in imported(path) if name.startswith("ops.")}
            wrong += [f"{package}/{path.name}: {name}" for name in names - below]
    assert wrong == []
