"""The order in which namespaces own a host: who had it first. Pure, with the caller's clock.

The age of an object is its author's word (``metadata.creationTimestamp``), so it only counts among objects that are
seen together. A namespace that comes later goes last. One that leaves keeps its place for `GRACE`, so that an object
that is renamed or written again finds its host as it was.

Places are kept for each namespace of clients that objects are exported to: what an object that few clients see has for
these, it does not have for others, whom it may be exported to later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import attrs

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import HostClaim
from mesh_pilot.world.names import MESH_GATEWAY, PUBLIC

GRACE = timedelta(minutes=10)
"""The time for which a namespace without an object for a host keeps its place."""

Order = tuple[HostClaim, ...]


class HostPlace(NamedTuple):
    """A host of services, or of the VirtualServices at a gateway, as it is owned."""

    gateway: str
    """``namespace/name``, ``mesh`` for sidecars; empty: services."""
    host: str
    """In lower case where VirtualServices are bound."""


def place_text(place: HostPlace) -> str:
    """Where a host is owned, for people."""
    return {"": "services", MESH_GATEWAY: "sidecars"}.get(place.gateway, f"gateway {place.gateway}")


@attrs.frozen
class Claim:
    """An object that has a host, and the namespaces of clients that it is exported to."""

    key: ConfigKey
    to: frozenset[str]
    created: datetime

    @property
    def age(self) -> tuple[datetime, str, str]:
        """As Istio orders objects: services of a host by namespace, VirtualServices by name."""
        name = self.key.name if self.key.kind == "VirtualService" else ""
        return (self.created, name, self.key.namespace)


def succession(order: Order, had: Iterable[Claim], has: Iterable[Claim], now: datetime) -> Order:
    """The order of a host's namespaces after a change of its objects.

    ``order`` is the one before (empty: none is known), ``had`` and ``has`` are the objects before and after.
    """
    there = _entries(has)
    found: list[HostClaim] = []
    for claim in order or _by_age(_entries(had)):
        if claim.left is not None and now - claim.left > GRACE:
            continue
        if (claim.namespace, claim.to) in there or (claim.namespace, PUBLIC) in there:
            found.append(attrs.evolve(claim, left=None))
        else:
            found.append(claim if claim.left is not None else attrs.evolve(claim, left=now))
    places = {(claim.namespace, claim.to): number for number, claim in enumerate(found)}
    new = {entry: age for entry, age in there.items() if entry not in places}
    # Who now names those for whom it was public keeps its place with them.
    narrowed = {entry for entry in new if (entry[0], PUBLIC) in places}
    ordered: list[HostClaim] = []
    for claim in found:
        ordered.append(claim)
        if claim.to == PUBLIC:
            ordered += [HostClaim(*entry) for entry in sorted(narrowed) if entry[0] == claim.namespace]
    return (*ordered, *_by_age({entry: age for entry, age in new.items() if entry not in narrowed}))


def without_expired(order: Order, now: datetime) -> Order:
    """An order without the namespaces that left too long ago."""
    return tuple(claim for claim in order if claim.left is None or now - claim.left <= GRACE)


def is_contested(order: Order) -> bool:
    """True if several namespaces have a place."""
    return len({claim.namespace for claim in order}) > 1


def rank(order: Sequence[tuple[str, str]], namespace: str, client: str) -> int | None:
    """The place of a namespace for clients of another one, the owner's is least; None: it has no place.

    ``order`` as ``View.host_owners`` gives it.
    """
    entries = enumerate(order)
    return next((number for number, (each, to) in entries if each == namespace and to in (PUBLIC, client)), None)


def rivals(claim: HostClaim, order: Order) -> list[HostClaim]:
    """The claims of other namespaces before one, towards clients that it concerns, too."""
    earlier = order[: order.index(claim)]
    return [
        each
        for each in earlier
        if each.namespace != claim.namespace and (each.to == claim.to or PUBLIC in (each.to, claim.to))
    ]


def _entries(claims: Iterable[Claim]) -> dict[tuple[str, str], tuple[datetime, str, str]]:
    """Namespace and namespace of clients, with the age of the oldest object. Clients in the owner's namespace do not
    count."""
    found: dict[tuple[str, str], tuple[datetime, str, str]] = {}
    for claim in claims:
        for to in claim.to - {claim.key.namespace}:
            entry = (claim.key.namespace, to)
            found[entry] = min(found.get(entry, claim.age), claim.age)
    return found


def _by_age(entries: dict[tuple[str, str], tuple[datetime, str, str]]) -> Order:
    """Claims that are seen together: as in Istio what is exported by name goes before what is public, then by age."""
    return tuple(HostClaim(*each) for each in sorted(entries, key=lambda each: (each[1] == PUBLIC, entries[each])))
