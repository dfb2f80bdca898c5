"""Problems of connected proxies for the debug page, the web page, the metrics and the log.

They are reported by problem, with the names of some proxies: what a patch does, or which services meet on a port,
depends on what a proxy sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from mesh_pilot.engine.failures import Condition
from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.explain.analysis.object_problems import first_names
from mesh_pilot.mesh.listeners.conflicts import ConflictKind
from mesh_pilot.model.json import Json

PROXIES_NAMED = 20
"""Proxies listed by name with a problem."""

READY_LINES = 20
"""Failures listed by ``/ready?verbose``."""

MORE = "/debug/rejections"


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
