"""Every module imports on this Python, warnings being errors."""

from __future__ import annotations

import importlib
import pkgutil

import mesh_pilot


def test_every_module_imports_without_a_warning() -> None:
    names = [found.name for found in pkgutil.walk_packages(mesh_pilot.__path__, "mesh_pilot.")]
    assert len(names) > 500
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
