"""Logs the problems of connected proxies, each once while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from mesh_pilot.base.containment import Contained
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.model.counts import first_names
from mesh_pilot.world import World

log = structlog.get_logger(scope="envoy")
config_log = structlog.get_logger(scope="config")

LINES_LOGGED = 20
"""New problems of a kind that are logged at a time."""


class ProblemLog:
    """Logs each problem once while it lasts. State: the problems that were there at the last call."""

    def __init__(self, catalog: WorldCatalog, world: World) -> None:
        self._catalog = catalog
        self._world = world
        self._known: dict[str, frozenset[Any]] = {}

    def log_new(self) -> None:
        """Look at all proxies and log what is new; call it from time to time."""
        found = self._catalog.diagnostics()
        kinds = (
            self._log_failures,
            self._log_patches,
            self._log_denied,
            self._log_credentials,
            self._log_zones,
            self._log_references,
        )
        for log_kind in kinds:
            with Contained(log, "cannot report problems of proxies"):
                log_kind(found)

    def _log_failures(self, _: Diagnostics) -> None:
        self._catalog.failures()  # finds the optional parts that fail; their register logs what is new

    def _log_patches(self, found: Diagnostics) -> None:
        # Problems without a resource are logged by `observers.changes` when the object changes.
        failures = {problem: names for problem, names in found.patches().items() if problem.resource}
        for problem, names in self._new("patches", failures):
            log.warning(
                "EnvoyFilter patch not applied; the rest of the proxy's config is",
                object=problem.object,
                field=problem.field,
                resource=problem.resource,
                reason=problem.reason,
                proxies=first_names(names, 3),
            )

    def _log_denied(self, found: Diagnostics) -> None:
        for denied, names in self._new("denied", found.denied()):
            log.warning(
                "CUSTOM authorization provider unavailable: what the policies match is denied",
                objects=", ".join(denied.objects),
                reason=denied.reason,
                proxies=len(names),
            )

    def _log_credentials(self, found: Diagnostics) -> None:
        for withheld, names in self._new("credentials", found.credentials())[:LINES_LOGGED]:
            log.warning(
                "credential withheld from proxies that request it",
                credential=withheld.credential,
                reason=withheld.reason,
                proxies=len(names),
                such_as=names[0],
            )

    def _log_zones(self, found: Diagnostics) -> None:
        for problem, names in self._new("zones", found.zones())[:LINES_LOGGED]:
            log.warning(
                "zone aware load balancing has no effect at proxies",
                object=problem.object,
                reason=problem.reason,
                proxies=len(names),
                such_as=names[0],
            )

    def _log_references(self, _: Diagnostics) -> None:
        lines = {tuple(line.values()): line for line in reference_lines(self._world)}
        for _key, line in self._new("references", lines):
            config_log.warning("config accepted, but what it names cannot be used", **line)

    def _new(self, kind: str, found: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        known = self._known.get(kind, frozenset())
        self._known[kind] = frozenset(found)
        return [(problem, names) for problem, names in found.items() if problem not in known]
