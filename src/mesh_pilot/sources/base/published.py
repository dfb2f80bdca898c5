"""The published state of a source, by location, and the events that each new reading comes to: pure, no I/O, no clock.

    state = PublishedState[str]("consul", Precedence.FIRST)
    first = state.announce()                                  # Replace: nothing yet
    events = state.put("consul service web", [endpoints, service])
    events = state.refuse("consul service web", [Problem("Meta.namespace", "is not a namespace")])
    events = state.drop("consul service web")

The rules, for every source:

- A location is what a source reads in one piece: a file, a key of a store, a resource of a server. It holds objects.
- Where several locations hold the same item, one of them is in force (see `Precedence`). The others are rejected as
  duplicates, and the next of them takes over when the first goes.
- A bad object keeps its last good version in force, if that came from its location. So does a location that can't be
  read, and an object that may be in the part of a location that can't be read.
- Events say only what differs from before. An item that moves between locations in one update is never deleted.
- Before `announce` there are no events: nothing was sent, so nothing can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Generic, TypeVar, cast

import attrs

from mesh_pilot.model.config import SHADOWED, Config, Origin, Problem
from mesh_pilot.model.events import Accepted, Delete, Event, Item, Rejected, Replace, Upsert, item_key

Key = tuple[str, ...]
"""The key of an item, as `model.events.item_key` gives it."""

Location = TypeVar("Location", bound=Hashable)

_Subject = Key | str
"""The subject of a rejection: the key of an object, or else the description of a location."""


class Precedence(Enum):
    """The rule that selects, from several locations that hold the same item, the one that is in force."""

    FIRST = auto()
    """The one that held it first."""
    LOWEST = auto()
    """The one that sorts first."""
    LATEST = auto()
    """The one that was read last. The others are not mistake, so nothing is rejected as a duplicate."""


@attrs.frozen
class ValidObject:
    """A good object."""

    key: Key
    item: Item
    line: int = 0
    """1-based line it starts on; 0 where there are no lines."""


@attrs.frozen
class InvalidObject:
    """An object that can't be accepted."""

    problems: tuple[Problem, ...]
    key: Key | None = None
    """None: too broken to tell which object it is."""
    line: int = 0


@attrs.frozen
class UnseenObject:
    """An object that its location held before, and that may be in the part of it that can't be read now."""


@attrs.frozen
class LocationContent:
    """The objects of a location, and what else is wrong with it."""

    objects: Mapping[Key, ValidObject | InvalidObject | UnseenObject] = attrs.field(factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems of the location as a whole, and of objects without a name."""
    line: int = 0
    """The line of the rejection; 0: that of its first problem."""


_EMPTY = LocationContent()


@attrs.frozen
class _InForce(Generic[Location]):
    item: Item
    location: Location


class PublishedState(Generic[Location]):
    """The items and rejections that a source has published.

    State: `_contents`, the last reading of each location; `_holders`, the locations that hold each key, oldest first;
    `_in_force`, the item of each key; `_faults`, the locations with problems, by description; `_rejections`, by
    subject, and `_rejected_at`, the subjects by description; `_is_announced`.
    """

    def __init__(self, source: str, precedence: Precedence, *, describe: Callable[[Location], str] = str) -> None:
        """`describe`: a location for people; it does not change. Several may have the same description."""
        self._source = source
        self._precedence = precedence
        self._describe = describe
        self._contents: dict[Location, LocationContent] = {}
        self._holders: dict[Key, tuple[Location, ...]] = {}
        self._in_force: dict[Key, _InForce[Location]] = {}
        self._faults: dict[str, dict[Location, Rejected]] = {}
        self._rejections: dict[_Subject, Rejected] = {}
        self._rejected_at: dict[str, dict[_Subject, None]] = {}
        self._is_announced = False

    def __repr__(self) -> str:
        state = "announced" if self._is_announced else "not announced"
        return f"<PublishedState of {self._source}: {len(self)} items, {len(self._rejections)} rejected, {state}>"

    def __len__(self) -> int:
        """The number of items in force."""
        return len(self._in_force)

    @property
    def is_announced(self) -> bool:
        return self._is_announced

    @property
    def locations(self) -> Iterable[Location]:
        """Every location that was read and not dropped, good or bad."""
        return self._contents.keys()

    @property
    def keys(self) -> Iterable[Key]:
        """The keys of the items in force."""
        return self._in_force.keys()

    def items(self) -> tuple[Item, ...]:
        """The items in force."""
        return tuple(in_force.item for in_force in self._in_force.values())

    def rejections(self) -> tuple[Rejected, ...]:
        """The rejections in force: one for each bad object, and one for each location with other problems."""
        return tuple(self._rejections.values())

    def content(self, location: Location) -> LocationContent:
        """The last reading of a location; empty if there is none."""
        return self._contents.get(location, _EMPTY)

    def holders(self, key: Key) -> Sequence[Location]:
        """The locations that hold an object, good or bad; oldest first."""
        return self._holders.get(key, ())

    def place_of(self, key: Key, nowhere: Location) -> Location:
        """The location of the item in force of a key; `nowhere` if there is none."""
        found = self._in_force.get(key)
        return found.location if found is not None else nowhere

    # -- readings

    def restart(self) -> None:
        """A new run begins: no events until `announce`."""
        self._is_announced = False

    def announce(self) -> list[Event]:
        """The events that tell everything; from now on, readings return events."""
        self._is_announced = True
        return [Replace(self._source, (), self.items()), *self.rejections()]

    def put(
        self, location: Location, items: Iterable[Item], problems: Iterable[Problem] = (), *, cause: str = ""
    ) -> list[Event]:
        """A location holds these items and no others; they are in force in spite of `problems`, which are reported."""
        objects = {key: ValidObject(key, item) for item in items for key in (item_key(item),)}
        return self.update({location: LocationContent(objects, tuple(problems))}, cause=cause)

    def refuse(
        self, location: Location, problems: Iterable[Problem], *, line: int = 0, key: Key | None = None
    ) -> list[Event]:
        """A location can't be accepted as it is now: its last good items are kept.

        `key`: that of the bad object, if it is known.
        """
        objects = self.content(location).objects
        if key is None:
            return self.update({location: LocationContent(objects, tuple(problems), line)})
        return self.update({location: LocationContent({**objects, key: InvalidObject(tuple(problems), key, line)})})

    def drop(self, location: Location, *, cause: str = "", explicit: bool = False) -> list[Event]:
        """A location is gone; `explicit`: somebody deleted it."""
        return self.update({location: None}, cause=cause, explicit=explicit)

    def update(
        self, readings: Mapping[Location, LocationContent | None], *, cause: str = "", explicit: bool = False
    ) -> list[Event]:
        """Take in several readings as one change; None: the location is gone. `cause` and `explicit` (for what goes):
        see `model.events`."""
        read: dict[Key, None] = {}
        gone: dict[Key, None] = {}
        for location, content in readings.items():
            before = self.content(location).objects
            after = content.objects if content is not None else {}
            self._replace_content(location, content)
            read.update(dict.fromkeys(after))
            gone.update(dict.fromkeys(key for key in reversed(list(before)) if key not in after))
        keys = read | gone  # what comes in the order in which it was read, what goes in the reverse of it
        changed = {key: event for key in keys if (event := self._settle(key, cause, explicit)) is not None}
        locations = {location: None for key in keys for location in self.holders(key)} | dict.fromkeys(readings)
        rejections = self._settle_rejections(keys, locations, changed.keys())
        return [*changed.values(), *rejections] if self._is_announced else []

    def _replace_content(self, location: Location, content: LocationContent | None) -> None:
        before = self.content(location).objects
        after = content.objects if content is not None else {}
        for key in before:
            if key not in after:
                if left := tuple(holder for holder in self._holders[key] if holder != location):
                    self._holders[key] = left
                else:
                    del self._holders[key]
        for key, found in after.items():
            holders = self._holders.get(key, ())
            if location not in holders:
                self._holders[key] = (*holders, location)
            elif self._precedence is Precedence.LATEST and found is not before[key] and isinstance(found, ValidObject):
                self._holders[key] = (*(holder for holder in holders if holder != location), location)
        if content is None:
            self._contents.pop(location, None)
        else:
            self._contents[location] = content

    # -- items

    def _settle(self, key: Key, cause: str, explicit: bool) -> Upsert | Delete | None:
        """Decide which item is in force for a key: the event that this comes to."""
        before = self._in_force.get(key)
        after = self._winner(key, before)
        if after is None:
            if before is None:
                return None
            del self._in_force[key]
            return Delete(self._source, key, cause, explicit)
        self._in_force[key] = after
        if before is not None and before.item == after.item and _read_at(before.item) == _read_at(after.item):
            return None
        return Upsert(self._source, after.item, cause)

    def _winner(self, key: Key, before: _InForce[Location] | None) -> _InForce[Location] | None:
        holders = self._best_first(key)
        for location in holders:
            found = self._contents[location].objects[key]
            if isinstance(found, ValidObject):
                return _InForce(found.item, location)
            if before is not None and before.location == location:
                return before
        # No location has a good one. The item may have moved to where it is bad now: that location keeps it in force.
        return _InForce(before.item, holders[0]) if before is not None and holders else None

    def _best_first(self, key: Key) -> Sequence[Location]:
        holders = self._holders.get(key, ())
        if len(holders) < 2:
            return holders
        match self._precedence:
            case Precedence.FIRST:
                return holders
            case Precedence.LATEST:
                return holders[::-1]
            case Precedence.LOWEST:
                return sorted(cast("tuple[Any, ...]", holders))

    # -- rejections

    def _settle_rejections(
        self, keys: Iterable[Key], locations: Iterable[Location], changed: Collection[_Subject]
    ) -> list[Event]:
        """The events that bring the rejections of these keys and locations up to date.

        Accepted clears every rejection at a location, Upsert and Delete clear that of their key: rejections that still
        hold there are sent again.
        """
        after: dict[_Subject, Rejected | None] = {key: self._object_rejection(key) for key in keys}
        for location in locations:
            description = self._describe(location)
            after[description] = self._location_rejection(location, description)
        ended: set[str] = set()
        to_send: dict[_Subject, None] = {}
        for subject, rejected in after.items():
            before = self._rejections.get(subject)
            if before is not None and (rejected is None or rejected.origin.location != before.origin.location):
                ended.add(before.origin.location)
                self._forget_rejection(subject, before)
            if rejected is not None and (rejected != before or subject in changed):
                to_send[subject] = None
                self._rejections[subject] = rejected
                self._rejected_at.setdefault(rejected.origin.location, {})[subject] = None
        for description in sorted(ended):
            to_send |= self._rejected_at.get(description, {})
        accepted = [Accepted(self._source, description) for description in sorted(ended)]
        return [*accepted, *(self._rejections[subject] for subject in to_send)]

    def _forget_rejection(self, subject: _Subject, rejected: Rejected) -> None:
        del self._rejections[subject]
        at_location = self._rejected_at[rejected.origin.location]
        del at_location[subject]
        if not at_location:
            del self._rejected_at[rejected.origin.location]

    def _object_rejection(self, key: Key) -> Rejected | None:
        """The rejection of a bad object; of several, that of the location that wins."""
        first = self._first_invalid(key)
        if first is None:
            return None
        location, found = first
        return Rejected(self._source, self._origin(location, found.line), found.problems, key)

    def _first_invalid(self, key: Key) -> tuple[Location, InvalidObject] | None:
        for location in self._best_first(key):
            found = self._contents[location].objects[key]
            if isinstance(found, InvalidObject):
                return location, found
        return None

    def _location_rejection(self, location: Location, description: str) -> Rejected | None:
        """The rejection of all locations of this description, of which one was read: problems but for bad objects."""
        content = self.content(location)
        problems = content.problems
        if self._precedence is not Precedence.LATEST and (duplicates := tuple(self._duplicates(location, content))):
            problems = tuple(sorted((*problems, *duplicates), key=lambda problem: problem.line))
        faults = self._faults.setdefault(description, {})
        faults.pop(location, None)
        if problems:
            origin = self._origin(location, content.line or problems[0].line)
            faults[location] = Rejected(self._source, origin, problems)
        if not faults:
            del self._faults[description]
            return None
        first, *others = faults.values()
        every = dict.fromkeys(problem for fault in (first, *others) for problem in fault.problems)
        return attrs.evolve(first, problems=tuple(every)) if others else first

    def _duplicates(self, location: Location, content: LocationContent) -> Iterator[Problem]:
        for key, found in content.objects.items():
            if len(self._holders[key]) == 1 or isinstance(found, UnseenObject):
                continue
            if isinstance(found, ValidObject):
                winner = self._in_force[key].location
                if winner != location:
                    yield duplicate(key, self._origin(winner, _line(self._contents[winner].objects[key])), found.line)
            else:
                first = self._first_invalid(key)
                if first is not None and first[0] != location:
                    yield from found.problems

    def _origin(self, location: Location, line: int) -> Origin:
        return Origin(self._source, self._describe(location), line)


def duplicate(key: Key, where: object, line: int) -> Problem:
    """The problem of an object at `line` that another one shadows, which is at `where`."""
    name = "/".join(key[1:]) or key[0]
    return Problem("", f"{name} {SHADOWED} {where}; this one is ignored until that one goes", line=line)


def _line(found: ValidObject | InvalidObject | UnseenObject) -> int:
    return 0 if isinstance(found, UnseenObject) else found.line


def _read_at(item: Item) -> str:
    return item.origin.location if isinstance(item, Config) else ""
