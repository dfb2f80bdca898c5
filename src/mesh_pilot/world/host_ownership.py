"""Owners of hosts: says in the very revision in which objects come or go who owns the hosts that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import attrs
import structlog
import trio

from mesh_pilot.base.containment import Contained
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Delete, Event, HostClaim, HostOwners, Item, Replace, Synced, Upsert, item_key
from mesh_pilot.world.claims import KINDS, claims_of
from mesh_pilot.world.host_owners import (
    Claim,
    HostPlace,
    Order,
    is_contested,
    place_text,
    rivals,
    succession,
    without_expired,
)
from mesh_pilot.world.intake import Admitted, ItemChange
from mesh_pilot.world.shared_order import Orders, agreed
from mesh_pilot.world.world import World

log = structlog.get_logger(scope="world")

SOURCE = "owners"
"""The name as a source of events."""

MAX_LOGGED = 20
"""Contested hosts of one revision that the log names."""

Key = tuple[str, ...]


@attrs.frozen
class OwnerStatistics:
    contested: int
    """Hosts that several namespaces claim, or claimed less than ten minutes ago."""
    synced: bool = True
    """Always true: the picture is always full."""


class HostOwnership:
    """Implements ``sources.base.contract.Placed`` and ``Seeded``.

    Mutable state: the orders of contested hosts, and of hosts whose namespace left a while ago; those of them that the
    World is yet to be told. Only the former are items of the World.
    """

    name = SOURCE
    place = "owners of hosts"

    def __init__(
        self,
        world: World,
        *,
        is_synced: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        is_quiet: bool = False,
    ) -> None:
        """``is_synced``: the World has its first full picture; what came before was seen together. ``is_quiet``:
        nothing is logged."""
        self._world = world
        self._is_synced = is_synced
        self._now = now
        self._is_quiet = is_quiet
        self._orders: dict[HostPlace, Order] = {}
        self._leaving: dict[HostPlace, None] = {}
        """Hosts that some namespace left, in the order in which the last one did."""
        self._pending: dict[HostPlace, None] = {}
        self._news = trio.Event()
        self._changed = trio.Event()
        self._has_begun = self._is_seeded = False

    def __repr__(self) -> str:
        return f"<HostOwnership {self.statistics().contested} contested hosts>"

    def statistics(self) -> OwnerStatistics:
        return OwnerStatistics(sum(map(is_contested, self._orders.values())))

    def seed(self, items: Iterable[Item]) -> None:
        """The owners of an earlier run, before ``run``."""
        self._is_seeded = True
        for item in items:
            if isinstance(item, HostOwners):
                self._keep(HostPlace(item.gateway, item.host), item.order)

    async def run(self, events: trio.MemorySendChannel[Event]) -> None:
        """Wake the reducer when there is something to tell, until cancelled. `admit` says what it is."""
        if self._is_seeded:  # what was restored is confirmed
            for event in [self._event(place) for place in self._orders]:
                await events.send(event)
            await events.send(Synced(SOURCE))
        while True:
            await self._news.wait()
            self._news = trio.Event()
            for event in [self._event(place) for place in self._pending]:
                await events.send(event)

    # -- replicas

    def orders(self) -> dict[HostPlace, Order] | None:
        """The orders of contested hosts; None before the first full picture."""
        if not self._has_begun:
            return None
        return {place: order for place, order in self._orders.items() if is_contested(order)}

    @property
    def changed(self) -> trio.Event:
        """Set once `orders` may give something else."""
        return self._changed

    def take(self, shared: Orders) -> None:
        """Take the orders that replicas share in place of one's own, for the hosts that they name."""
        now, logged = self._now(), 0
        mine = {place: self._orders.get(place, ()) for place in shared}
        unlike = [place for place, own in mine.items() if agreed(shared[place], own, now) != own]
        at = self._world.claims_at(unlike) if self._has_begun else {}
        for place in unlike:
            claims = at.get(place, ())
            before = succession(mine[place], claims, claims, now) if self._has_begun else mine[place]
            order = agreed(shared[place], before, now)
            if order == mine[place]:
                continue
            self._keep(place, order)
            self._pending[place] = None
            if before and order[0].namespace != before[0].namespace and not self._is_quiet:
                logged += 1
                if logged <= MAX_LOGGED:
                    owner, gone = order[0].namespace, before[0].namespace
                    _log_new_owner(place, owner, gone, "the order that replicas share")
        if self._pending:
            self._news.set()

    # -- the reducer

    def admit(self, admitted: Admitted) -> Admitted:
        """Add who owns what hosts after these events: for `Reducer.gates`."""
        if self._is_synced():
            with Contained(log, "internal error in host ownership: hosts keep their owners"):
                self._look_at(admitted)
        if not self._pending and not any(map(_is_mine, admitted.events)):
            return admitted
        events = [event for event in admitted.events if not _is_mine(event)]
        changes = [change for change in admitted.changes if change.source != SOURCE]
        for place in self._pending:
            event = self._event(place)
            key = _key(place)
            before = self._world.item_of(SOURCE, key)
            after = event.item if isinstance(event, Upsert) else None
            if before != after:
                events.append(event)
                changes.append(ItemChange(SOURCE, key, before, after))
        self._pending.clear()
        if SOURCE not in self._world.sources():
            events.append(Synced(SOURCE))  # its picture is full from the first item on
        return attrs.evolve(admitted, events=events, changes=changes)

    def revised(self) -> None:
        """The World has a new revision: with the first full picture, contests in it begin."""
        if self._has_begun or not self._is_synced():
            return
        self._has_begun = True
        self._tell_change()
        places = {*self._world.contested_places(), *self._orders}
        at = self._world.claims_at(places)
        self._succeed({place: (at.get(place, ()), at.get(place, ())) for place in sorted(places)})
        if self._pending:
            self._news.set()

    def _look_at(self, admitted: Admitted) -> None:
        self._forget_the_gone()
        touched = self._touched(admitted)
        if not touched:
            return
        changed: dict[HostPlace, dict[ConfigKey, Claim | None]] = {}
        for key, after in touched.items():
            before = claims_of(self._world.config.peek(key), self._world)
            claims = claims_of(after, self._world)
            for place in before.keys() | claims.keys():
                if before.get(place) != claims.get(place):
                    changed.setdefault(place, {})[key] = claims.get(place)
        at = self._world.claims_at(changed)
        contests = {}
        for place, new in changed.items():
            had = at.get(place, ())
            has = [claim for claim in had if claim.key not in new]
            contests[place] = (had, [*has, *(claim for claim in new.values() if claim is not None)])
        self._succeed(contests)

    def _touched(self, admitted: Admitted) -> dict[ConfigKey, Config | None]:
        """The objects with hosts that these events change, as they are after them."""
        said: dict[Key, dict[str, Item | None]] = {}
        for change in admitted.changes:
            if change.key[0] == "config" and change.key[1] in KINDS:
                said.setdefault(change.key, {})[change.source] = change.after
        for event in admitted.events:  # the picture that a new source has of an earlier run is not a change
            if isinstance(event, Replace) and not event.collection:
                for item in event.items:
                    if isinstance(item, Config) and item.key.kind in KINDS:
                        said.setdefault(item_key(item), {})[event.source] = item
        return {ConfigKey(*key[1:]): self._after(key, of) for key, of in said.items()}

    def _after(self, key: Key, said: Mapping[str, Item | None]) -> Config | None:
        """The object that counts of those that sources have."""
        sources = dict.fromkeys((*self._world.sources(), *said))
        every = (said[s] if s in said else self._world.item_of(s, key) for s in sources)
        found = [item for item in every if isinstance(item, Config)]
        return next((config for config in found if not config.made_from), found[0] if found else None)

    def _succeed(self, contests: Mapping[HostPlace, tuple[Sequence[Claim], Sequence[Claim]]]) -> None:
        """Give hosts their orders, from the claims before and after."""
        now, logged = self._now(), 0
        for place, (had, has) in contests.items():
            before = self._orders.get(place, ())
            order = succession(before, had, has, now)
            if order == before:
                continue
            self._keep(place, order)
            self._pending[place] = None
            known = {(claim.namespace, claim.to) for claim in before}
            new = [c for c in order if (c.namespace, c.to) not in known and rivals(c, order)]
            if new and not self._is_quiet:
                logged += 1
                if logged <= MAX_LOGGED:
                    _log_contest(place, rivals(new[0], order)[0].namespace, new, has)
        if logged > MAX_LOGGED:
            log.warning("more hosts claimed by several namespaces", hosts=logged - MAX_LOGGED, see="mesh-pilot analyze")

    def _keep(self, place: HostPlace, order: Order) -> None:
        self._tell_change()
        self._leaving.pop(place, None)
        if any(claim.left is not None for claim in order):
            self._leaving[place] = None
        if place in self._leaving or is_contested(order):
            self._orders[place] = order
        else:
            self._orders.pop(place, None)

    def _forget_the_gone(self) -> None:
        now = self._now()
        while (place := next(iter(self._leaving), None)) is not None:
            before = self._orders[place]
            order = without_expired(before, now)
            if order == before:
                return
            self._keep(place, order)
            self._pending[place] = None
            if order and is_contested(before) and before[0] not in order:
                _log_new_owner(place, order[0].namespace, before[0].namespace, "the one before has left")

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _event(self, place: HostPlace) -> Upsert | Delete:
        order = self._orders.get(place, ())
        if is_contested(order):
            return Upsert(SOURCE, HostOwners(place.gateway, place.host, order))
        return Delete(SOURCE, _key(place))


def _log_contest(place: HostPlace, owner: str, new: Sequence[HostClaim], claims: Sequence[Claim]) -> None:
    namespaces = {claim.namespace for claim in new}
    log.warning(
        "host claimed by several namespaces",
        host=place.host,
        at=place_text(place),
        owner=[str(claim.key) for claim in claims if claim.key.namespace == owner] or owner,
        others=[str(claim.key) for claim in claims if claim.key.namespace in namespaces],
        effect="the owner's comes first",
        what_to_do="remove the others, or name the owner under hostOwners in mesh.yaml",
    )


def _log_new_owner(place: HostPlace, owner: str, gone: str, reason: str) -> None:
    log.info("host changed its owner", host=place.host, at=place_text(place), owner=owner, before=gone, reason=reason)


def _key(place: HostPlace) -> Key:
    return ("owners", *place)


def _is_mine(event: Event) -> bool:
    return event.source == SOURCE and isinstance(event, Upsert | Delete | Replace)
