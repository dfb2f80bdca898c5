"""Intake: which events of the sources take effect, and when. Pure: no I/O, and the caller's clock.

- A source whose picture was restored from an earlier run is *stale* until it has given its first full picture: what it
  sends is collected, and then replaces the restored picture in one step.
- A picture that loses more than a plausible share of its objects at once is more often an unmounted folder or a purged
  catalog than a wish. What it lost is *held*: it stays in force until the source has it again, or until an operator
  confirms that it is gone (`Confirmed`). What the picture adds and changes takes effect at once.

    admitted = intake.admit(batch, trio.current_time())
    revision = world.apply(admitted.events)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Protocol

import attrs

from mesh_pilot.model.config import Config
from mesh_pilot.model.events import (
    Confirmed,
    Delete,
    Endpoints,
    Event,
    Item,
    Replace,
    Synced,
    Upsert,
    item_key,
)

Key = tuple[str, ...]

OPERATOR = "confirmed by an operator"
"""The cause of deletions that an operator confirmed."""


@attrs.frozen
class GuardOptions:
    """How much of a source's picture may go at once."""

    share: float = 0.5
    """The share of its objects, or of its services with endpoints, that may go."""
    minimum: int = 3
    """So few may always go."""
    seconds: float = 30.0
    """The time within which all that goes counts as gone at once."""


DEFAULT_GUARD = GuardOptions()


@attrs.frozen
class ItemChange:
    """An item of a source that an event changed."""

    source: str
    key: Key
    before: Item | None
    after: Item | None
    """None: deleted."""
    cause: str = ""
    """See `model.events.Upsert`."""


@attrs.frozen
class Admitted:
    """The events that take effect, and what they change."""

    events: list[Event]
    changes: list[ItemChange]


@attrs.frozen
class HeldPicture:
    """The part of a source's picture that is in force although the source has lost it."""

    source: str
    keys: tuple[Key, ...]
    """The items that stay in force."""
    objects: int
    """Items of the source, before it lost them; endpoints are not counted."""
    since: float
    """When the first of them went, on the clock of `admit`."""

    @property
    def reason(self) -> str:
        """Why they are held, for people."""
        gone = len({key[1:] for key in self.keys})
        return f"{gone} of {self.objects} objects went at once"


class Pictures(Protocol):
    """The items in force by source: a World."""

    def item_of(self, source: str, key: Key) -> Item | None: ...

    def items_of(self, source: str) -> dict[Key, Item]: ...


@attrs.define
class _Count:
    """How many things a picture has, of one sort."""

    now: int = 0
    before: int = 0
    """At the beginning of the window."""


class _Picture:
    """A source's picture.

    State: `staged`, the picture that a stale source has sent so far; `held`, what the source says now (None: nothing)
    of the items that are held; `recent`, the items that went within the window, with the time.
    """

    def __init__(self, *, is_guarded: bool) -> None:
        self.is_guarded = is_guarded
        self.is_synced = False
        self.staged: dict[Key, Item] | None = None
        self.confirmed_at: datetime | None = None
        self.held: dict[Key, Item | None] = {}
        self.held_since = 0.0
        self.recent: dict[Key, tuple[float, Item]] = {}
        self.counts = {"objects": _Count(), "populated": _Count()}
        self.window_began = -math.inf

    def note(self, key: Key, before: Item | None, after: Item | None) -> None:
        """An item of the picture in force changes."""
        count = self.counts[_sort(key)]
        count.now += _is_there(after) - _is_there(before)


class Intake:
    """The pictures of all sources, and what of them is held or stale."""

    def __init__(
        self, pictures: Pictures, *, guarded: Collection[str] = (), guard: GuardOptions | None = DEFAULT_GUARD
    ) -> None:
        """`guarded`: the sources that are told apart from a fault when they shrink; `guard` None: none are."""
        self._in_force = pictures
        self._guard = guard or DEFAULT_GUARD
        self._guarded = frozenset(guarded if guard is not None else ())
        self._pictures: dict[str, _Picture] = {}

    def __repr__(self) -> str:
        return f"<Intake {len(self.stale())} stale, {len(self.held())} held>"

    # -- reading

    def stale(self) -> Mapping[str, datetime | None]:
        """The sources whose restored picture is in force, and when that was last confirmed."""
        return {name: picture.confirmed_at for name, picture in self._pictures.items() if picture.staged is not None}

    def held(self) -> Mapping[str, HeldPicture]:
        """The held parts of pictures, by source."""
        return {
            name: HeldPicture(name, tuple(picture.held), picture.counts["objects"].before, picture.held_since)
            for name, picture in self._pictures.items()
            if picture.held
        }

    # -- writing

    def restored(self, source: str, items: Iterable[Item], confirmed_at: datetime) -> list[Event]:
        """Take a picture of an earlier run as this source's: the events that put it in force."""
        picture = self._picture(source)
        picture.staged = {}
        picture.is_synced = True
        picture.confirmed_at = confirmed_at
        found = tuple(items)
        for item in found:
            picture.note(item_key(item), None, item)
        return [Replace(source, (), found), Synced(source)]

    def admit(self, events: Iterable[Event], now: float) -> Admitted:
        """The events of a batch that take effect now, in order."""
        by_source: dict[str, list[Event]] = {}
        for event in events:
            by_source.setdefault(event.source, []).append(event)
        admitted = Admitted([], [])
        for source, batch in by_source.items():
            self._admit(source, batch, now, admitted)
        return admitted

    def _picture(self, source: str) -> _Picture:
        if source not in self._pictures:
            self._pictures[source] = _Picture(is_guarded=source in self._guarded)
        return self._pictures[source]

    def _admit(self, source: str, batch: list[Event], now: float, admitted: Admitted) -> None:
        picture = self._picture(source)
        if picture.staged is not None:
            batch = list(self._stage(source, picture, picture.staged, batch))
        said, causes = self._outcome(source, batch)
        confirmed = any(isinstance(event, Confirmed) for event in batch)
        back = self._hold(source, picture, said, now, confirmed=confirmed)
        for event in batch:
            kept = _without(picture.held, event, partial(self._in_force.item_of, source)) if picture.held else event
            if kept is not None:
                admitted.events.append(kept)
        picture.is_synced = picture.is_synced or any(isinstance(event, Synced) for event in batch)
        for key, item in back.items():
            said[key] = item
            causes.setdefault(key, OPERATOR if confirmed else "")
            admitted.events.append(Delete(source, key) if item is None else Upsert(source, item))
        for key, after in said.items():
            before = self._in_force.item_of(source, key)
            if key not in picture.held or key in back:
                picture.note(key, before, after)
                if before is not after:
                    admitted.changes.append(ItemChange(source, key, before, after, causes.get(key, "")))

    def _stage(self, source: str, picture: _Picture, staged: dict[Key, Item], batch: list[Event]) -> Iterator[Event]:
        """Collect what a stale source sends; once its picture is full, the events that bring about the difference."""
        for event in batch:
            if picture.staged is None:
                yield event
                continue
            match event:
                case Upsert(item=item):
                    staged[item_key(item)] = item
                case Delete(key=key):
                    staged.pop(key, None)
                case Replace(collection=collection, items=items):
                    for key in [key for key in staged if key[: len(collection)] == collection]:
                        del staged[key]
                    staged.update((item_key(item), item) for item in items)
                case Synced():
                    picture.staged = None
                    yield from self._difference(source, staged)
                    yield event
                case _:
                    yield event

    def _difference(self, source: str, staged: Mapping[Key, Item]) -> Iterator[Event]:
        before = self._in_force.items_of(source)
        for key, item in staged.items():
            old = before.get(key)
            if old is None or not _is_same(old, item):
                yield Upsert(source, item)
        for key in before:
            if key not in staged:
                yield Delete(source, key)

    def _outcome(self, source: str, batch: list[Event]) -> tuple[dict[Key, Item | None], dict[Key, str]]:
        """The items that a batch names, as they are after it, and why."""
        said: dict[Key, Item | None] = {}
        causes: dict[Key, str] = {}
        for event in batch:
            match event:
                case Upsert(item=item):
                    key = item_key(item)
                    said[key] = item
                    causes[key] = event.cause
                case Delete(key=key):
                    said[key] = None
                    causes[key] = event.cause
                case Replace(collection=collection, items=items):
                    for key in (*self._in_force.items_of(source), *said):
                        if key[: len(collection)] == collection:
                            said[key] = None
                            causes[key] = event.cause
                    for item in items:
                        said[item_key(item)] = item
                        causes[item_key(item)] = event.cause
        return said, causes

    # -- guards

    def _hold(
        self, source: str, picture: _Picture, said: Mapping[Key, Item | None], now: float, *, confirmed: bool
    ) -> dict[Key, Item | None]:
        """Decide what is held. Returns what is not held any more, or comes back, with the value to put in force."""
        for key in picture.held.keys() & said.keys():
            if _is_there(said[key]):
                del picture.held[key]
            else:
                picture.held[key] = said[key]
        gone = {
            key: item
            for key, after in said.items()
            if key not in picture.held
            and not _is_there(after)
            and (item := self._in_force.item_of(source, key)) is not None
            and _is_there(item)
        }
        if not gone and not picture.held:
            return {}
        if confirmed:
            return self._release(picture)
        if not (picture.is_guarded and picture.is_synced):
            return {}
        self._open_window(picture, now)
        if self._is_plausible(source, picture, said, gone):
            picture.recent.update((key, (now, item)) for key, item in gone.items())
            return self._release(picture)
        if not picture.held:
            picture.held_since = now
        for key in gone:
            picture.held[key] = said[key]
        back: dict[Key, Item | None] = {}
        for key, (_, item) in picture.recent.items():
            current = said[key] if key in said else self._in_force.item_of(source, key)
            if not _is_there(current):
                picture.held[key] = current
                back[key] = item
        picture.recent.clear()
        return back

    def _release(self, picture: _Picture) -> dict[Key, Item | None]:
        released, picture.held = picture.held, {}
        if released:
            picture.recent.clear()
            picture.window_began = -math.inf
        return released

    def _open_window(self, picture: _Picture, now: float) -> None:
        if picture.held:
            return
        if now - picture.window_began > self._guard.seconds:
            picture.window_began = now
            for count in picture.counts.values():
                count.before = count.now
        horizon = now - self._guard.seconds
        picture.recent = {key: entry for key, entry in picture.recent.items() if entry[0] >= horizon}
        for count in picture.counts.values():
            count.before = max(count.before, count.now)

    def _is_plausible(
        self, source: str, picture: _Picture, said: Mapping[Key, Item | None], gone: Collection[Key]
    ) -> bool:
        new = [
            key for key, item in said.items() if _is_there(item) and not _is_there(self._in_force.item_of(source, key))
        ]
        for sort, count in picture.counts.items():
            missing = sum(_sort(key) == sort for key in (*gone, *picture.held))
            left = count.now - missing + sum(_sort(key) == sort for key in new)
            if count.before - left >= self._guard.minimum and left < count.before * (1 - self._guard.share):
                return False
        return True


def _without(held: Mapping[Key, Item | None], event: Event, in_force: Callable[[Key], Item | None]) -> Event | None:
    """An event without what it does to items that are held; None if nothing is left of it."""
    match event:
        case Delete(key=key):
            return None if key in held else event
        case Upsert(item=item):
            return None if item_key(item) in held else event
        case Replace(collection=collection, items=items):
            kept = [in_force(key) for key in held if key[: len(collection)] == collection]
            said = tuple(item for item in items if item_key(item) not in held)
            return attrs.evolve(event, items=(*said, *(item for item in kept if item is not None)))
        case _:
            return event


def _sort(key: Key) -> str:
    return "populated" if key[0] == "endpoints" else "objects"


def _is_there(item: Item | None) -> bool:
    """True for an item that is there; a service without endpoints counts as one that has lost them."""
    return bool(item.endpoints) if isinstance(item, Endpoints) else item is not None


def _is_same(before: Item, after: Item) -> bool:
    """True for equal items that were read at the same place."""
    if isinstance(before, Config) and isinstance(after, Config) and before.origin != after.origin:
        return False
    return before == after
