"""The tables of docs/migrate.md name what the code knows, and no more."""

from __future__ import annotations

import re
from pathlib import Path

from mesh_pilot.migration.base.left import READ_KINDS
from mesh_pilot.migration.consul.entries import TAKEN_KINDS
from mesh_pilot.migration.kuma.resources import TAKEN_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text(encoding="utf-8")


def named(title: str) -> set[str]:
    """The names in the left cells of the table of a section."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_kinds_of_kubernetes_are_those_that_are_read() -> None:
    assert named("From Kubernetes") == set(READ_KINDS)


def test_entries_of_consul_are_those_that_are_taken() -> None:
    assert named("From Consul") == set(TAKEN_KINDS)


def test_types_of_kuma_are_those_that_are_taken() -> None:
    assert named("From Kuma") == set(TAKEN_TYPES)
