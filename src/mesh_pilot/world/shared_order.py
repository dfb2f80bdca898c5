"""How replicas come to one order of a host's namespaces, and how that order is written down. Pure.

Each replica sees objects in an order that is its own, so the leader's order counts. What a replica knows of the
objects it has counts all the same: which of them are there, and which the leader has not seen yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import attrs
import msgspec

from mesh_pilot.model.events import HostClaim, HostOwners
from mesh_pilot.world.host_owners import HostPlace, Order, without_expired
from mesh_pilot.world.names import PUBLIC

MAX_BYTES = 300_000
"""The longest text: Consul takes 512 KB for a transaction, in base64. Some two thousand hosts."""

Orders = Mapping[HostPlace, Order]

_decoder = msgspec.json.Decoder(list[HostOwners])


def agreed(shared: Order, own: Order, now: datetime) -> Order:
    """The order of a host, from the shared one and that of this replica.

    The shared order decides between those that it names. Those that only it names are as if they had just left, so
    their places wait for objects that are on their way. Others come last, in this replica's order; a namespace that
    narrowed its exports keeps its place, as in `host_owners.succession`.
    """
    mine = {(claim.namespace, claim.to): claim for claim in own}
    order: list[HostClaim] = []
    for claim in without_expired(shared, now):
        known = mine.pop((claim.namespace, claim.to), None)
        order.append(known or attrs.evolve(claim, left=min(claim.left or now, now)))
    last: list[HostClaim] = []
    for claim in reversed(mine.values()):
        public = next((n for n, c in enumerate(order) if (c.namespace, c.to) == (claim.namespace, PUBLIC)), None)
        if public is None:
            last.insert(0, claim)
        else:
            order.insert(public + 1, claim)
    return (*order, *last)


def encode(orders: Orders) -> tuple[bytes, int]:
    """Orders as JSON of at most `MAX_BYTES`, and the number of hosts left out."""
    parts: list[bytes] = []
    room = MAX_BYTES - 2
    for place in sorted(orders):
        part = msgspec.json.encode(HostOwners(place.gateway, place.host, orders[place]))
        room -= len(part) + 1
        if room < 0:
            break
        parts.append(part)
    return b"[" + b",".join(parts) + b"]", len(orders) - len(parts)


def decode(text: bytes) -> dict[HostPlace, Order]:
    """The orders that `encode` has written. Raises ValueError, with the reason, for any other text."""
    try:
        items = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return {HostPlace(item.gateway, item.host): _cleaned(item.order) for item in items}


def _cleaned(order: Order) -> Order:
    """An order as others write it: each claim once, and a time without a zone is one of UTC, as it is compared."""
    claims: dict[tuple[str, str], HostClaim] = {}
    for claim in order:
        if claim.left is not None and claim.left.tzinfo is None:
            claim = attrs.evolve(claim, left=claim.left.replace(tzinfo=UTC))
        claims.setdefault((claim.namespace, claim.to), claim)
    return tuple(claims.values())
