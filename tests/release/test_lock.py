"""The pins: they are what pyproject.toml asks for, whole, and say nothing of where they were made."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import CONSTRAINTS, DEMO, LOCK, pins

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(path: Path) -> dict[str, Requirement]:
    return {canonicalize_name(found.name): found for found in map(Requirement, pins(path))}


def test_every_dependency_is_pinned_to_a_version_that_it_allows() -> None:
    locked = pinned(CONSTRAINTS)
    extras = PROJECT["optional-dependencies"]
    tested = [requirement for extra in ("demo", "test", "lint", "proto") for requirement in extras[extra]]
    for wanted in map(Requirement, [*PROJECT["dependencies"], *tested]):
        (pin,) = locked[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), wanted


def test_what_pinned_packages_need_is_pinned_too() -> None:
    for name in pinned(LOCK):
        for needed in map(Requirement, requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in pinned(LOCK), f"{name} needs {needed}"


def test_constraints_have_the_versions_of_the_locks() -> None:
    assert {*pins(LOCK), *pins(DEMO)} <= {*pins(CONSTRAINTS)}


def test_tox_installs_what_the_constraints_pin() -> None:
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert "constrain_package_deps = true" in tox
    assert "-c constraints.txt" in tox


def test_every_pin_of_a_lock_has_hashes_and_no_index_is_named() -> None:
    for path in (LOCK, DEMO):
        text = path.read_text(encoding="utf-8")
        assert all("--hash=sha256:" in part for part in re.split(r"\n(?=\w)", text)[1:])
        assert "://" not in text
        assert "index-url" not in text
