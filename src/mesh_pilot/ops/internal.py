"""Internal errors of generation, for people: which resource, at which proxies, why, and what stands in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.envoy.catalog.failures import Failure, StandingFailure
from mesh_pilot.model.resource import SHORT
from mesh_pilot.ops.answers import Json
from mesh_pilot.ops.page import bad, moment, table

PROXIES_NAMED = 20
"""How many proxies are shown by name."""

LINES = 20
"""How many failures ``/ready?verbose`` names."""


def state_of(failure: Failure) -> str:
    """What stands in the place of what failed."""
    if failure.is_plan:
        return "the list stays as it was" if failure.stays else "all of the list is missing"
    return "stays at its last good version" if failure.stays else "is missing"


def listed(standing: Sequence[StandingFailure]) -> list[Json]:
    """One entry a resource that cannot be generated."""
    return [
        {
            "type": SHORT[held.failure.type_url],
            "resource": held.failure.resource,
            "error": held.failure.error,
            "place": held.failure.place,
            "state": state_of(held.failure),
            "since": held.failure.since.isoformat(timespec="seconds"),
            "objects": list(held.failure.configs),
            "proxies": list(held.proxies[:PROXIES_NAMED]),
            "proxies_in_all": len(held.proxies),
        }
        for held in standing
    ]


def failure_table(standing: Sequence[StandingFailure]) -> str:
    """The same for the web page."""
    rows = (
        (
            SHORT[held.failure.type_url],
            held.failure.resource,
            bad(f"{held.failure.error} ({held.failure.place})"),
            state_of(held.failure),
            moment(held.failure.since),
            some(held.proxies),
        )
        for held in standing
    )
    headers = ("type", "resource", "error", "state", "since", "proxies")
    return table("Internal errors", headers, rows, "None.", total=len(standing), more="/debug/rejections")


def lines(standing: Sequence[StandingFailure], *, verbose: bool) -> Iterator[str]:
    """For ``/ready``: how many there are, and if ``verbose`` which."""
    if not standing:
        return
    yield f"internal errors: {len(standing)} resources could not be generated; see /debug/rejections on the web port"
    if verbose:
        for held in standing[:LINES]:
            own = held.failure
            yield f"  {SHORT[own.type_url]} {own.resource} {state_of(own)} at {some(held.proxies)}: {own.error}"
        if len(standing) > LINES:
            yield f"  and {len(standing) - LINES} more"


def some(names: Sequence[str], shown: int = 1) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
