"""Problems of connected proxies, for lists, readiness and metrics.

They are reported by problem, with the names of some proxies: what a patch does, or which services meet on a port,
depends on what a proxy sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mesh_pilot.engine.failures import Condition
from mesh_pilot.envoy.catalog.failing import StandingFailure
from mesh_pilot.mesh.listeners.conflicts import Conflict, ConflictKind
from mesh_pilot.model.counts import first_names
from mesh_pilot.model.json import SPREAD, called

if TYPE_CHECKING:
    from mesh_pilot.envoy.catalog.diagnostics import Diagnostics

PROXIES_NAMED = 20
"""Proxies listed by name with a problem."""

READY_LINES = 20
"""Failures listed by ``/ready?verbose``."""

MORE = "/debug/rejections"


@attrs.frozen
class AtProxies:
    """A problem that depends on what a proxy sees, and the proxies that have it."""

    problem: object = attrs.field(metadata=SPREAD)
    """A patch, a conflict at a listener, policies, a credential, zones; see ``Diagnostics``."""
    proxies: Sequence[str]
    """The first of them."""
    proxies_in_all: int


@attrs.frozen
class ListenerConflict:
    """A service or a server that has no place on a listener, because another one has precedence."""

    listener: str
    dropped: str
    kept: str
    reason: str
    kind: ConflictKind


def listener_conflicts(found: Mapping[Conflict, Sequence[str]]) -> Iterator[AtProxies]:
    shown = {ListenerConflict(c.listener, c.dropped, c.kept, c.reason, c.kind): names for c, names in found.items()}
    return at_proxies(shown)


def at_proxies(found: Mapping[Any, Sequence[str]]) -> Iterator[AtProxies]:
    """Problems with the names of the proxies that have each."""
    return (AtProxies(problem, names[:PROXIES_NAMED], len(names)) for problem, names in found.items())


@attrs.frozen(kw_only=True)
class InternalError:
    """Something that cannot be made because of an error of the program, or because a helper of it is out."""

    type: str
    resource: str
    state: str
    """``missing`` or ``stale``."""
    consequence: str
    error: str
    is_outage: bool = attrs.field(metadata=called("isOutage"))
    place: str
    """In the program."""
    since: str
    objects: Sequence[str]
    """The objects that it is made from."""
    proxies: Sequence[str]
    proxies_in_all: int


def internal_errors(failures: Sequence[StandingFailure]) -> Iterator[InternalError]:
    for failing in failures:
        own = failing.failure
        yield InternalError(
            type=own.kind,
            resource=own.name,
            state=own.state.value,
            consequence=own.consequence,
            error=own.error,
            is_outage=own.is_expected,
            place=own.place,
            since=own.since.isoformat(timespec="seconds"),
            objects=own.configs,
            proxies=failing.proxies[:PROXIES_NAMED],
            proxies_in_all=len(failing.proxies),
        )


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
