"""Credentials that proxies ask for and do not get: for the debug page and the log."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from mesh_pilot.envoy.catalog.catalog import WorldCatalog

log = structlog.get_logger(scope="envoy")

PROXIES_NAMED = 20
"""How many proxies are shown by name."""

LINES_LOGGED = 20
"""How many new entries are logged at a time."""


def listed(catalog: WorldCatalog) -> list[Mapping[str, str | int | list[str]]]:
    """One entry for a credential and the reason."""
    return [
        {"credential": name, "reason": reason, "proxies": proxies[:PROXIES_NAMED], "proxies_in_all": len(proxies)}
        for (name, reason), proxies in _by_credential(catalog).items()
    ]


class CredentialReports:
    """Logs such credentials, once. State: what was told and still is so."""

    def __init__(self, catalog: WorldCatalog) -> None:
        self._catalog = catalog
        self._told: set[tuple[str, str]] = set()

    def tell(self) -> None:
        """Look at all proxies; to be called now and then."""
        now = _by_credential(self._catalog)
        news = [found for found in now if found not in self._told]
        for name, reason in news[:LINES_LOGGED]:
            proxies = now[name, reason]
            log.warning(
                "credential not given to proxies that ask for it",
                credential=name,
                reason=reason,
                proxies=len(proxies),
                such_as=proxies[0],
            )
        self._told = set(now)


def _by_credential(catalog: WorldCatalog) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for proxy, reasons in sorted(catalog.withheld().items()):
        for name, reason in sorted(reasons.items()):
            found.setdefault((name, reason), []).append(proxy)
    return found
