"""What proxies refuse because nobody can be asked about it (action CUSTOM): for the debug page and the log."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.filters.rbac.filters import MissingProvider
from mesh_pilot.ops.internal import some
from mesh_pilot.ops.page import bad, table

log = structlog.get_logger(scope="envoy")

PROXIES_NAMED = 20
"""How many proxies are shown by name."""


def listed(catalog: WorldCatalog) -> list[Mapping[str, str | int | list[str]]]:
    """One entry for the policies that are refused together and the reason."""
    return [
        {
            "objects": list(map(str, refusal.policies)),
            "reason": refusal.reason,
            "proxies": names[:PROXIES_NAMED],
            "proxies_in_all": len(names),
        }
        for refusal, names in _by_refusal(catalog).items()
    ]


def refusal_table(catalog: WorldCatalog) -> str:
    """The same for the web page; empty where there are none."""
    rows = [
        (", ".join(map(str, refusal.policies)), bad(refusal.reason), some(names))
        for refusal, names in _by_refusal(catalog).items()
    ]
    headers = ("objects", "reason", "proxies")
    return table("Requests refused because nobody can be asked", headers, rows, "") if rows else ""


class RefusalReports:
    """Logs such refusals, once. State: what was told and still is so."""

    def __init__(self, catalog: WorldCatalog) -> None:
        self._catalog = catalog
        self._told: set[MissingProvider] = set()

    def tell(self) -> None:
        """Look at all proxies; to be called now and then."""
        now = _by_refusal(self._catalog)
        for refusal, names in now.items():
            if refusal not in self._told:
                log.warning(
                    "CUSTOM authorization provider unavailable: requests are denied",
                    objects=", ".join(map(str, refusal.policies)),
                    reason=refusal.reason,
                    proxies=len(names),
                )
        self._told = set(now)


def _by_refusal(catalog: WorldCatalog) -> dict[MissingProvider, list[str]]:
    found: dict[MissingProvider, list[str]] = {}
    for name, refusal in sorted(catalog.refusals().items()):
        found.setdefault(refusal, []).append(name)
    return found
