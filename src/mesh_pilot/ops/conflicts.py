"""Listener conflicts of the connected proxies: for the debug page, the web page and the metrics.

They are told as problems of proxies and not of objects, because what meets on a port depends on what a proxy sees.
"""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.ops.internal import some
from mesh_pilot.ops.page import bad, table

PROXIES_NAMED = 20
"""How many proxies a conflict is shown with by name."""


def listed(catalog: WorldCatalog) -> list[Mapping[str, str | int | list[str]]]:
    """One entry a conflict: what was dropped from which listener, for what, why, and at which proxies."""
    return [
        {
            "listener": conflict.listener,
            "dropped": conflict.dropped,
            "kept": conflict.kept,
            "reason": conflict.reason,
            "kind": conflict.kind.value,
            "proxies": names[:PROXIES_NAMED],
            "proxies_in_all": len(names),
        }
        for conflict, names in _by_conflict(catalog).items()
    ]


def conflict_table(catalog: WorldCatalog) -> str:
    """The same for the web page; empty where there are none."""
    rows = [(c.listener, c.dropped, c.kept, bad(c.reason), some(names)) for c, names in _by_conflict(catalog).items()]
    headers = ("listener", "dropped", "kept", "reason", "proxies")
    return table("Listener conflicts", headers, rows, "", more="/debug/rejections") if rows else ""


def counts(catalog: WorldCatalog) -> dict[ConflictKind, int]:
    """How many different conflicts of each kind there are over all proxies; kinds without any are 0."""
    conflicts = _by_conflict(catalog)
    return {kind: sum(c.kind is kind for c in conflicts) for kind in ConflictKind}


def _by_conflict(catalog: WorldCatalog) -> dict[Conflict, list[str]]:
    found: dict[Conflict, list[str]] = {}
    for name, held in sorted(catalog.conflicts().items()):
        for conflict in held:
            found.setdefault(conflict, []).append(name)
    return found
