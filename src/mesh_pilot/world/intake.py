"""Intake: which events of the sources take effect, and when. Pure: no I/O, and the caller's clock.

- A source whose picture was restored from an earlier run is *stale* until it has given its first full picture: what it
  sends is collected, and then replaces the restored picture in one step (`world.restored`).
- What a source loses implausibly is *held* (`world.guard`): it is kept until the source has it again, or until
  an operator confirms that it is gone (`Confirmed`). What a source adds and changes takes effect at once.

Why between sources and World: a source knows neither what is in force nor what other sources have, and a World that
kept objects unasked would say in its revisions what no event said. Here both are known, and all that follows
(history, workers, statuses) sees the events that take effect and no others. It is a pure function of events, items in
force and time, because its hard cases are orders of events that no real source would produce in a test.

    admitted = intake.admit(batch, trio.current_time())
    revision = world.apply(admitted.events)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

import attrs

from mesh_pilot.model.events import (
    Confirmed,
    Delete,
    Event,
    Item,
    Rejected,
    Replace,
    SourceAdded,
    SourceRemoved,
    Synced,
    Upsert,
    item_key,
)
from mesh_pilot.model.guard import DEFAULT_GUARD, GuardOptions
from mesh_pilot.world.guard import Guard, HeldObjects, HoldChange, HoldStep, LookUp
from mesh_pilot.world.restored import LastGoodObjects, Resync

Key = tuple[str, ...]

OPERATOR = "confirmed by an operator"
"""The cause of deletions that an operator confirmed,"""

NOT_RETURNED = "still missing after its source had recovered"
"""and of those of objects that were held."""

REMOVED = "the source was removed"
"""The cause of deletions of what a removed source had,"""

HELD = "held: most of its source's objects went soon after it"
"""The cause of the return of an object that went just before others were held."""


EXPECTED_SECONDS = 60.0
"""The time that a source may take to report an object as gone that the API deleted."""


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
class Renewal:
    """A restored picture that its source has confirmed, or replaced."""

    source: str
    confirmed_at: datetime
    """When it was last confirmed before."""
    changed: int
    """The number of items that differ."""
    leftovers: tuple[Key, ...] = ()
    """The items that stay because the source refuses them now (see `world.restored`)."""


@attrs.frozen
class Admitted:
    """The events that take effect, and what they change."""

    events: list[Event] = attrs.field(factory=list)
    changes: list[ItemChange] = attrs.field(factory=list)
    holds: list[HoldChange] = attrs.field(factory=list)
    renewals: list[Renewal] = attrs.field(factory=list)


class Pictures(Protocol):
    """The items in force by source: a World."""

    def item_of(self, source: str, key: Key) -> Item | None: ...

    def items_of(self, source: str) -> dict[Key, Item]: ...

    def current(self, key: Key) -> Sequence[Item]:
        """An item as all sources have it."""

    def rejections(self) -> Sequence[Rejected]: ...


class Intake:
    """The pictures of all sources, and what of them is held or stale."""

    def __init__(
        self,
        pictures: Pictures,
        *,
        guarded: Collection[str] = (),
        in_files: Collection[str] = (),
        guard: GuardOptions | None = DEFAULT_GUARD,
    ) -> None:
        """`guarded`: the sources whose implausible losses are held, `in_files`: those of them whose objects lie in
        files; `guard` None: nothing is held."""
        self._in_force = pictures
        self._guard_options = guard
        self._guards = (
            {name: Guard(name, guard, in_files=name in in_files) for name in guarded} if guard is not None else {}
        )
        self._stagings: dict[str, Resync] = {}
        self._leftovers: dict[str, LastGoodObjects] = {}
        self._expected: dict[Key, float] = {}
        """Objects that are deleted in a store of ours, with the times until which their source may say so."""
        self._authors: dict[Key, tuple[str, float]] = {}
        """Objects that are written in a store of ours, by whom, with the times until which their source may say so."""
        self._leaving: Counter[Key] = Counter()
        """The number of sources that lose an object in the present batch."""
        self._begun: dict[str, dict[Key, Item]] = {}
        """Items that a source begins with, by source that came or went in the present batch; not in force yet."""

    def __repr__(self) -> str:
        return f"<Intake {len(self._stagings)} stale, {len(self.held())} held>"

    def retune(self, options: GuardOptions) -> None:
        """Judge by other limits from the next batch on; where nothing is held, that stays so."""
        if self._guard_options is not None:
            self._guard_options = options
            for guard in self._guards.values():
                guard.options = options

    # -- reading

    def stale(self) -> Mapping[str, datetime]:
        """The sources whose restored picture is in force, and when that was last confirmed."""
        return {source: staging.confirmed_at for source, staging in self._stagings.items()}

    def held(self) -> Mapping[str, HeldObjects]:
        """The held parts of pictures, by source."""
        found = ((source, guard.picture()) for source, guard in self._guards.items())
        return {source: picture for source, picture in found if picture is not None}

    @property
    def due(self) -> float:
        """The time at which `admit` is to be called even without events."""
        return min((part.due for _, part in self._timed()), default=math.inf)

    def _timed(self) -> Iterator[tuple[str, Guard | LastGoodObjects]]:
        """All that may be due, by source."""
        yield from self._guards.items()
        yield from self._leftovers.items()

    # -- writing

    def restored(self, source: str, items: Iterable[Item], confirmed_at: datetime) -> list[Event]:
        """Take a picture of an earlier run as this source's: the events that put it in force."""
        found = {item_key(item): item for item in items}
        self._stagings[source] = Resync(confirmed_at)
        if source in self._guards:
            self._guards[source].take(found)
            self._guards[source].is_on = True
        return [Replace(source, (), tuple(found.values())), Synced(source)]

    def expect_deletion(self, key: Key, now: float) -> None:
        """Somebody deletes an object by the API: that its source has it no more will be no loss."""
        self._expected = {each: until for each, until in self._expected.items() if until > now}
        self._expected[key] = now + EXPECTED_SECONDS

    def written_by(self, key: Key, author: str, now: float) -> None:
        """Somebody writes an object by the API: the next change of it has them in its cause. Empty: no more."""
        self._authors = {each: known for each, known in self._authors.items() if known[1] > now and each != key}
        if author:
            self._authors[key] = (author, now + EXPECTED_SECONDS)

    def admit(self, events: Iterable[Event], now: float) -> Admitted:
        """The events of a batch that take effect now; those of a source are in order."""
        by_source: dict[str, list[Event]] = {}
        for event in events:
            by_source.setdefault(event.source, []).append(event)
        for source, part in self._timed():
            if part.due <= now:
                by_source.setdefault(source, [])
        admitted = Admitted()
        self._leaving.clear()
        self._begun.clear()
        for source, batch in by_source.items():
            self._admit(source, batch, now, admitted)
        return admitted

    def _author(self, key: Key, now: float) -> str:
        """The author of a change of an object, if it was written here just now; one write is one change."""
        author, until = self._authors.pop(key, ("", now))
        return f"by {author}" if until > now else ""

    def _items_of(self, source: str) -> dict[Key, Item]:
        """The items of a source before its events of the present batch, but for its coming and going."""
        begun = self._begun.get(source)
        return begun if begun is not None else self._in_force.items_of(source)

    def _in_force_of(self, source: str) -> LookUp:
        """The same for one item."""
        begun = self._begun.get(source)
        return begun.get if begun is not None else partial(self._in_force.item_of, source)

    def _admit(self, source: str, batch: list[Event], now: float, admitted: Admitted) -> None:
        # A stale source is collected before anything is judged: only a full picture shows what it has lost.
        batch = self._with_source(source, batch, admitted)
        was_stale = source in self._stagings
        if was_stale:
            batch = self._stage(source, batch, now, admitted)
        elif source in self._leftovers:
            batch = self._keep_leftovers(source, batch, now)
        outcome = self._outcome(source, batch)
        outcome.explicit |= {key for key, until in self._expected.items() if until > now and key in outcome.said}
        in_force = self._in_force_of(source)
        if source in self._guards:
            is_return = was_stale and source not in self._stagings
            self._guarded(source, batch, outcome, now, admitted, is_return=is_return)
        else:
            admitted.events.extend(batch)
        for key, after in outcome.said.items():
            before = in_force(key)
            if before is not after:
                cause = ", ".join(filter(None, (outcome.causes.get(key, ""), self._author(key, now))))
                admitted.changes.append(ItemChange(source, key, before, after, cause))
                if after is None:
                    self._leaving[key] += 1

    def _guarded(
        self, source: str, batch: list[Event], outcome: _Outcome, now: float, admitted: Admitted, *, is_return: bool
    ) -> None:
        """Admit a batch of a guarded source as its guard judges, which ``outcome`` follows."""
        guard, in_force = self._guards[source], self._in_force_of(source)
        judgement = guard.judge(
            outcome.said,
            in_force,
            now,
            is_elsewhere=self._is_elsewhere,
            explicit=outcome.explicit,
            accept=any(isinstance(event, Confirmed) for event in batch),
            is_return=is_return,
        )
        put = judgement.put
        # What the guard puts in force comes before the batch, which knows nothing of it, and without what is held.
        for change in judgement.changes:
            admitted.holds.append(change)
            cause = _CAUSES[change.step]
            mine = {key: put[key] for key in change.held.keys if key in put}
            outcome.causes |= dict.fromkeys(mine, cause)
            admitted.events.extend(self._events_of(source, mine, cause))
        guard.is_on = guard.is_on or any(isinstance(event, Synced) for event in batch)
        now_in_force: LookUp = lambda key: put[key] if key in put else in_force(key)  # noqa: E731
        filtered = (_without(guard.held, event, now_in_force) for event in batch) if guard.held else batch
        admitted.events.extend(event for event in filtered if event is not None)
        outcome.said = {**{key: item for key, item in outcome.said.items() if key not in guard.held}, **put}

    def _is_elsewhere(self, key: Key) -> bool:
        """True for an object in force that another source has, too. Endpoints and services are merged: they count."""
        return key[0] == "config" and len(self._in_force.current(key)) - self._leaving[key] > 1

    def _events_of(self, source: str, put: Mapping[Key, Item | None], cause: str) -> Iterator[Event]:
        """The events that put items in force. Rejections of the same objects stand, as in the source."""
        for key, item in put.items():
            yield Delete(source, key, cause) if item is None else Upsert(source, item, cause)
        if put:
            yield from (r for r in self._in_force.rejections() if r.source == source and r.key in put)

    def _with_source(self, source: str, batch: list[Event], admitted: Admitted) -> list[Event]:
        """A batch of a source that may come or go in it, without what it sent before it went. What it had, goes."""
        last = max((n for n, event in enumerate(batch) if isinstance(event, SourceRemoved)), default=None)
        if last is not None:
            for parts in (self._guards, self._stagings, self._leftovers):
                parts.pop(source, None)
            for key, item in self._in_force.items_of(source).items():
                admitted.changes.append(ItemChange(source, key, item, None, REMOVED))
            admitted.events.append(batch[last])
            self._begun[source] = {}
            batch = batch[last + 1 :]
        found: list[Event] = []
        for event in batch:
            if isinstance(event, SourceAdded):
                if self._guard_options is not None:
                    self._guards.setdefault(source, Guard(source, self._guard_options))
                admitted.events.append(attrs.evolve(event, picture=(), confirmed_at=None))
                if event.confirmed_at is not None:
                    admitted.events.extend(self.restored(source, event.picture, event.confirmed_at))
                    self._begun[source] = {item_key(item): item for item in event.picture}
            else:
                found.append(event)
        return found

    # -- restored pictures

    def _stage(self, source: str, batch: list[Event], now: float, admitted: Admitted) -> list[Event]:
        """Collect what a stale source sends; once its picture is full, the events that bring about the difference."""
        staging = self._stagings[source]
        passed: list[Event] = []
        for number, event in enumerate(batch):
            if isinstance(event, Synced):
                del self._stagings[source]
                before = self._items_of(source)
                if leftovers := staging.leftovers(before):
                    self._leftovers[source] = LastGoodObjects(source, leftovers, staging.rejections)
                difference = list(staging.difference(source, before))
                changed = sum(isinstance(event, Upsert | Delete) for event in difference)
                admitted.renewals.append(Renewal(source, staging.confirmed_at, changed, tuple(leftovers)))
                return [*passed, *difference, *self._keep_leftovers(source, batch[number:], now)]
            if not staging.take(event):
                passed.append(event)
        return passed

    def _keep_leftovers(self, source: str, batch: list[Event], now: float) -> list[Event]:
        """A batch in which leftovers of the restored picture stay."""
        leftovers = self._leftovers.get(source)
        if leftovers is None:
            return batch
        found = leftovers.follow(batch, self._in_force_of(source), now)
        if not leftovers:
            del self._leftovers[source]
        return found

    # -- batches

    def _outcome(self, source: str, batch: list[Event]) -> _Outcome:
        outcome = _Outcome()
        for event in batch:
            match event:
                case Upsert(item=item):
                    outcome.say(item_key(item), item, event.cause)
                case Delete(key=key):
                    outcome.say(key, None, event.cause)
                    if event.is_explicit:
                        outcome.explicit.add(key)
                case Replace(collection=collection, items=items):
                    for key in (*self._items_of(source), *outcome.said):
                        if key[: len(collection)] == collection:
                            outcome.say(key, None, event.cause)
                    for item in items:
                        outcome.say(item_key(item), item, event.cause)
        return outcome


@attrs.define
class _Outcome:
    """The items that a batch names, as they are after it, and why; and those of them that somebody deleted. Mutable."""

    said: dict[Key, Item | None] = attrs.field(factory=dict)
    causes: dict[Key, str] = attrs.field(factory=dict)
    explicit: set[Key] = attrs.field(factory=set)

    def say(self, key: Key, item: Item | None, cause: str) -> None:
        self.said[key] = item
        self.causes[key] = cause


_CAUSES = {HoldStep.BEGUN: HELD, HoldStep.RECOVERED: NOT_RETURNED, HoldStep.ACCEPTED: OPERATOR}


def _without(held: Mapping[Key, Item | None], event: Event, in_force: LookUp) -> Event | None:
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
