"""Pictures of an earlier run, until their sources have told what they have now. Pure, with the caller's clock.

- *Resync*: what a stale source sends is collected until its picture is full.
- *LastGoodObjects*: objects of the restored picture that the source refuses now. Their last good version stays in
  force, as if there had been no restart. The source does not know it, so their end is found here: the source has a
  good version again, or does not refuse the object any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import (
    Accepted,
    Delete,
    Event,
    Item,
    MeshConfigValue,
    MeshNetworksValue,
    Rejected,
    Replace,
    Upsert,
    item_key,
)
from mesh_pilot.world.guard import LookUp
from mesh_pilot.world.rejections import StandingRejections

Key = tuple[str, ...]

GRACE_SECONDS = 3.0
"""The time after which a leftover that is not refused any more goes. A source that ends a rejection and sends it again
may do so in two batches."""

NOT_REFUSED = "not refused any more, and gone"
"""The cause of the deletion of a leftover."""


class Resync:
    """The picture that a stale source has sent so far.

    State: `_items`, the rejections that it has sent, and `_refused_at`, the locations of those that may be over.
    """

    def __init__(self, confirmed_at: datetime) -> None:
        self.confirmed_at = confirmed_at
        """When the restored picture was last confirmed."""
        self.rejections = StandingRejections()
        self._items: dict[Key, Item] = {}
        self._refused_at: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Resync of {len(self._items)} items, {len(self.rejections)} rejected>"

    def take(self, event: Event) -> bool:
        """Collect what an event says of items; False if it is about something else."""
        self.rejections.take(event)
        match event:
            case Rejected():
                self._refused_at[event.origin.location] = None
                return False
            case Upsert(item=item):
                self._items[item_key(item)] = item
            case Delete(key=key):
                self._items.pop(key, None)
            case Replace(collection=collection, items=items):
                for key in [key for key in self._items if key[: len(collection)] == collection]:
                    del self._items[key]
                self._items.update((item_key(item), item) for item in items)
            case _:
                return False
        return True

    def leftovers(self, before: Mapping[Key, Item]) -> dict[Key, str]:
        """The items of the restored picture that the source refuses, with the locations that they were read at."""
        if not self.rejections:
            return {}
        missing = {key: location_of(item) for key, item in before.items() if key not in self._items}
        return {key: location for key, location in missing.items() if self.rejections.has(key, location)}

    def difference(self, source: str, before: Mapping[Key, Item]) -> Iterator[Event]:
        """The events that make the restored picture the collected one, but for leftovers. Rejections stand."""
        for key, item in self._items.items():
            old = before.get(key)
            if old is None or not _is_same(old, item):
                yield Upsert(source, item)
        leftovers = self.leftovers(before)
        for key in before:
            if key not in self._items and key not in leftovers:
                yield Delete(source, key)
        for location in self._refused_at:
            yield Accepted(source, location)  # what ended a rejection may be no difference
        yield from self.rejections.all()


class LastGoodObjects:
    """The leftovers of one source.

    State: `_locations` by key; the rejections that stand; `_ending`, when those go that are not refused any more.
    """

    def __init__(self, source: str, locations: Mapping[Key, str], rejections: StandingRejections) -> None:
        self._source = source
        self._locations = dict(locations)
        self._rejections = rejections
        self._ending: dict[Key, float] = {}

    def __repr__(self) -> str:
        return f"<LastGoodObjects of {self._source}: {len(self)}, {len(self._ending)} about to go>"

    def __len__(self) -> int:
        return len(self._locations)

    @property
    def due(self) -> float:
        """The time at which the next of them goes."""
        return min(self._ending.values(), default=math.inf)

    def follow(self, events: Iterable[Event], in_force: LookUp, now: float) -> list[Event]:
        """A batch of the source with leftovers kept, and deleted when they go."""
        found = [self._kept(event, in_force) for event in events]
        for key, location in self._locations.items():
            if self._rejections.has(key, location):
                self._ending.pop(key, None)
            else:
                self._ending.setdefault(key, now + GRACE_SECONDS)
        for key in [key for key, at in self._ending.items() if at <= now]:
            self._forget(key)
            found.append(Delete(self._source, key, NOT_REFUSED))
        return found

    def _kept(self, event: Event, in_force: LookUp) -> Event:
        self._rejections.take(event)
        match event:
            case Upsert(item=item):
                self._forget(item_key(item))
            case Delete(key=key):
                self._forget(key)
            case Replace(collection=collection, items=items):
                for item in items:
                    self._forget(item_key(item))
                kept = [in_force(key) for key in self._locations if key[: len(collection)] == collection]
                return attrs.evolve(event, items=(*items, *(item for item in kept if item is not None)))
        return event

    def _forget(self, key: Key) -> None:
        self._locations.pop(key, None)
        self._ending.pop(key, None)


def location_of(item: Item) -> str:
    """The location that an item was read at; empty if it does not say."""
    return item.origin.location if isinstance(item, Config | MeshConfigValue | MeshNetworksValue) else ""


def _is_same(before: Item, after: Item) -> bool:
    """True for equal items that were read at the same place, from the same text."""
    if before is after:
        return True
    if isinstance(before, Config) and isinstance(after, Config):
        here, there = before.origin, after.origin
        return here == there and here.digest == there.digest and before == after
    return before == after
