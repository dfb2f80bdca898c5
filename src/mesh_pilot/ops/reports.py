"""Problems of connected proxies for the debug page, the web page, the metrics and the log.

They are reported by problem, with the names of some proxies: what a patch does, or which services meet on a port,
depends on what a proxy sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import structlog

from mesh_pilot.base.containment import Contained
from mesh_pilot.engine.failures import Condition
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.mesh.listeners.conflicts import ConflictKind
from mesh_pilot.model.json import Json
from mesh_pilot.ops.page.html import bad, moment, table
from mesh_pilot.world import World

log = structlog.get_logger(scope="envoy")
config_log = structlog.get_logger(scope="config")

PROXIES_NAMED = 20
"""Proxies listed by name with a problem."""

READY_LINES = 20
"""Failures listed by ``/ready?verbose``."""

LINES_LOGGED = 20
"""New problems of a kind that are logged at a time."""

MORE = "/debug/rejections"


def first_names(names: Sequence[str], shown: int = 1) -> str:
    """``one.shop and 3 more``."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def proxies_named(names: Sequence[str]) -> dict[str, Json]:
    """The members of an entry that name the proxies with a problem."""
    return {"proxies": list(names[:PROXIES_NAMED]), "proxies_in_all": len(names)}


# -- lists of /debug/rejections


def patch_entries(found: Diagnostics) -> list[Json]:
    """An entry for each patch, resource and reason."""
    return [{**attrs.asdict(problem), **proxies_named(names)} for problem, names in found.patches().items()]


def conflict_entries(found: Diagnostics) -> list[Json]:
    """An entry for each conflict: what was dropped from which listener, in favour of what, and why."""
    return [
        {
            "listener": conflict.listener,
            "dropped": conflict.dropped,
            "kept": conflict.kept,
            "reason": conflict.reason,
            "kind": conflict.kind.value,
            **proxies_named(names),
        }
        for conflict, names in found.conflicts().items()
    ]


def denied_entries(found: Diagnostics) -> list[Json]:
    """An entry for each group of policies with the same reason."""
    return [
        {"objects": list(denied.objects), "reason": denied.reason, **proxies_named(names)}
        for denied, names in found.denied().items()
    ]


def credential_entries(found: Diagnostics) -> list[Json]:
    """An entry for each credential and reason."""
    return [{**attrs.asdict(problem), **proxies_named(names)} for problem, names in found.credentials().items()]


def zone_entries(found: Diagnostics) -> list[Json]:
    """An entry for each object that turns zone aware load balancing on where it has no effect."""
    return [{**attrs.asdict(problem), **proxies_named(names)} for problem, names in found.zones().items()]


def failure_entries(failures: Sequence[StandingFailure]) -> list[Json]:
    """An entry for each internal error that stands."""
    return [
        {
            "type": failing.failure.kind,
            "resource": failing.failure.name,
            "state": failing.failure.state.value,
            "consequence": failing.failure.consequence,
            "error": failing.failure.error,
            "isOutage": failing.failure.is_expected,
            "place": failing.failure.place,
            "since": failing.failure.since.isoformat(timespec="seconds"),
            "objects": list(failing.failure.configs),
            **proxies_named(failing.proxies),
        }
        for failing in failures
    ]


# -- metrics


def patch_counts(found: Diagnostics) -> Counter[str]:
    """Failures by EnvoyFilter (``shop/limits``), over all proxies and resources."""
    counts: Counter[str] = Counter()
    for problem, names in found.patches().items():
        counts[problem.name] += len(names)
    return counts


def conflict_counts(found: Diagnostics) -> dict[ConflictKind, int]:
    """Different conflicts of each kind over all proxies; 0 for kinds without any."""
    counts = Counter(conflict.kind for conflict in found.conflicts())
    return {kind: counts[kind] for kind in ConflictKind}


# -- tables of the web page; empty if there is nothing to show


def patch_table(found: Diagnostics) -> str:
    rows = [
        (problem.object, problem.field, problem.resource, bad(problem.reason), first_names(names, 3))
        for problem, names in found.patches().items()
    ]
    headers = ("object", "field", "resource", "reason", "proxies")
    return table("Patches without effect", headers, rows, "", more=MORE) if rows else ""


def conflict_table(found: Diagnostics) -> str:
    rows = [
        (c.listener, c.dropped, c.kept, bad(c.reason), first_names(names)) for c, names in found.conflicts().items()
    ]
    headers = ("listener", "dropped", "kept", "reason", "proxies")
    return table("Listener conflicts", headers, rows, "", more=MORE) if rows else ""


def denied_table(found: Diagnostics) -> str:
    rows = [(", ".join(d.objects), bad(d.reason), first_names(names)) for d, names in found.denied().items()]
    headers = ("objects", "reason", "proxies")
    return table("Requests denied: authorization provider unavailable", headers, rows, "") if rows else ""


def failure_table(failures: Sequence[StandingFailure]) -> str:
    if not failures:
        return ""
    rows = (
        (
            failing.failure.kind,
            failing.failure.name,
            failing.failure.consequence,
            bad(f"{failing.failure.error} ({failing.failure.place})"),
            moment(failing.failure.since),
            first_names(failing.proxies),
        )
        for failing in failures
    )
    headers = ("type", "resource", "consequence", "error", "since", "proxies")
    return table("Internal errors", headers, rows, "", total=len(failures), more=MORE)


# -- internal errors


def failure_counts(failures: Sequence[StandingFailure]) -> Counter[tuple[str, Condition]]:
    """The number of failures by type of resource, or other kind, and state."""
    return Counter((failing.failure.kind, failing.failure.state) for failing in failures)


def ready_lines(failures: Sequence[StandingFailure], *, verbose: bool) -> Iterator[str]:
    """Lines of ``/ready``: how many failures there are, and if ``verbose`` which."""
    for title, is_expected in (("internal errors", False), ("outages", True)):
        by_state = Counter(failing.failure.state for failing in failures if failing.failure.is_expected is is_expected)
        if by_state:
            counts = ", ".join(f"{by_state[state]} {state.value}" for state in Condition if by_state[state])
            yield f"{title}: {counts}; see {MORE} on the web port"
    if verbose:
        for failing in failures[:READY_LINES]:
            where = f" ({first_names(failing.proxies)})" if failing.proxies else ""
            yield f"  {failing.failure}{where}: {failing.failure.error}"
        if len(failures) > READY_LINES:
            yield f"  and {len(failures) - READY_LINES} more"


# -- the log


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
        # Problems without a resource are logged by `ops.changes` when the object changes.
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
