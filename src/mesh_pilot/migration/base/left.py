"""Kinds, types and fields that a migration does not take, each with the reason: ``left.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import yaml

from mesh_pilot.migration.base.fields import Reasons


@attrs.frozen
class LeftKind:
    """The reason why objects of a kind of Kubernetes are not taken."""

    reason: str
    do: str = ""
    needless: bool = False
    """True: nothing of the mesh is lost with them."""


OTHER = LeftKind("no kind of a mesh", needless=True)

READ_KINDS = ("Service", "Endpoints", "EndpointSlice", "Pod", "Node", "Secret", "ConfigMap")
"""Kinds of Kubernetes that are not objects of files, and that are read all the same."""


@cache
def _tables() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    text = Path(__file__).with_name("left.yaml").read_bytes()
    tables: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return tables


def reasons(table: str) -> Reasons:
    """A table of ``left.yaml``: the reason and what to do, by name."""
    return {name: (row["reason"], row.get("do", "")) for name, row in _tables()[table].items()}


def left_kind(group: str, kind: str) -> LeftKind:
    """The reason for a kind of Kubernetes."""
    row = _tables()["kubernetes_kinds"].get(f"{group}/{kind}")
    return OTHER if row is None else LeftKind(**row)
