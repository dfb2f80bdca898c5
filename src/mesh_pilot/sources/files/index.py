"""Which object is in force, where several files speak and some of them are broken: pure, no I/O, no clock.

The rules:

- A key belongs to the first good object that has it, in the order of places; within a place only the first object of
  a key counts, good or bad. The others are refused until it goes.
- A bad object holds on to what was in force from its file: its last good version stays until it is good again or gone.
  So does a file that can't be read, or one so broken in part that it can't be told which object is which: a document
  without a name, or a bad object that was not in the file before, may be one that is missing. What stays is told.
- A change says only what differs from before. An object that moves between files in one change is never missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import attrs

from mesh_pilot.model.config import Config, Origin, Problem
from mesh_pilot.model.events import Accepted, Delete, Event, Item, Rejected, Upsert, item_key
from mesh_pilot.sources.files.content import Content, Faulty, Found, Gone, Key, Place, Reading, Unreadable

NAMES_TOLD = 5
"""Objects that a message names; it says how many more there are."""


@attrs.frozen
class _Lost:
    """A claim on a key that was seen in a file before, and may be in the part that can't be read now."""


_Claim = Found | Faulty | _Lost
_LOST = _Lost()
_NOWHERE: frozenset[Place] = frozenset()


@attrs.frozen
class _File:
    """What a file claims."""

    claims: Mapping[Key, _Claim]
    """The first object of each key."""
    problems: tuple[Problem, ...]
    """What is wrong with it apart from its named objects."""
    ever_good: frozenset[Key] = frozenset()
    """The keys of which there was a good object here at any time."""


@attrs.frozen
class _InForce:
    item: Item
    place: Place


@attrs.frozen
class IndexStatistics:
    files: int
    items: int
    """Objects in force."""
    rejected: int
    """Rejections that stand: a bad object each, or a file with what is wrong with it."""


class FileIndex:
    """Turns what files say, and how that changes, into events.

        index = FileIndex("files")
        events = index.update({Place(0, "a.yaml"): content, Place(0, "b.yaml"): Gone()})

    State: `_files`, what each place claims; `_claims`, the same by key; `_in_force`, what was last sent for each key;
    `_standing`, the rejections that were sent and not taken back.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._files: dict[Place, _File] = {}
        self._claims: dict[Key, set[Place]] = {}
        self._in_force: dict[Key, _InForce] = {}
        self._standing: dict[Key | Place, Rejected] = {}

    def __repr__(self) -> str:
        state = self.statistics()
        return f"<FileIndex: {state.files} files, {state.items} items, {state.rejected} rejected>"

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(len(self._files), len(self._in_force), len(self._standing))

    def items(self) -> tuple[Item, ...]:
        """Everything in force."""
        return tuple(held.item for held in self._in_force.values())

    def rejections(self) -> tuple[Rejected, ...]:
        """Everything that stands refused."""
        return tuple(self._standing.values())

    def claims(self, place: Place) -> int:
        """How many objects a place has, good or bad."""
        known = self._files.get(place)
        return len(known.claims) if known else 0

    def described(self, place: Place) -> str:
        """The objects of a place, for people."""
        known = self._files.get(place)
        return _names(known.claims if known else ())

    def is_harmless(self, place: Place, reading: Reading) -> bool:
        """Whether it only adds or changes objects: it refuses nothing and takes nothing back."""
        known = self._files.get(place)
        keys = set()
        match reading:
            case Unreadable():
                return False
            case Content(entries):
                for entry in entries:
                    if isinstance(entry, Faulty) or entry.key in keys:
                        return False
                    keys.add(entry.key)
        if any(not self._claims.get(key, _NOWHERE) <= {place} for key in keys):
            return False
        return known is None or known.claims.keys() <= keys

    def update(self, changes: Mapping[Place, Reading]) -> tuple[Event, ...]:
        """The events that lead from what was said before to what is said now, all changes taken together."""
        keys: dict[Key, None] = {}
        for place in sorted(changes):
            keys.update(dict.fromkeys(self._read(place, changes[place])))
        changed = list(self._settle(keys))
        places = {place for key in keys for place in self._claims.get(key, ())} | changes.keys()
        return (*changed, *self._restate(keys, places, {_key_of(event) for event in changed}))

    def _read(self, place: Place, reading: Reading) -> Iterable[Key]:
        """Take in what a place says; the keys that it claimed or claims."""
        known = self._files.get(place)
        before = known.claims if known else {}
        match reading:
            case Gone():
                self._files.pop(place, None)
                after: Mapping[Key, _Claim] = {}
            case Unreadable(reason):
                after = before
                self._files[place] = _File(after, (Problem("", reason),), known.ever_good if known else frozenset())
            case Content():
                file = _file(reading, known)
                after = file.claims
                self._files[place] = file
        for key in before:
            if key not in after:
                self._claims[key].discard(place)
                if not self._claims[key]:
                    del self._claims[key]
        for key in after:
            if key not in before:
                self._claims.setdefault(key, set()).add(place)
        return {**before, **after}

    def _settle(self, keys: Iterable[Key]) -> Iterator[Upsert | Delete]:
        """Decide what is in force for each key; yields what differs from before."""
        for key in keys:
            before = self._in_force.get(key)
            after = self._winner(key, before)
            if after is None:
                if before is not None:
                    del self._in_force[key]
                    yield Delete(self._source, key)
                continue
            self._in_force[key] = after
            if before is None or before.item != after.item or _location(before.item) != _location(after.item):
                yield Upsert(self._source, after.item)

    def _winner(self, key: Key, before: _InForce | None) -> _InForce | None:
        places = self._claims.get(key, set())
        for place in sorted(places):
            claim = self._files[place].claims[key]
            if isinstance(claim, Found):
                return _InForce(claim.item, place)
            if before is not None and before.place == place:
                return before
        # Nobody has a good one. It may have moved to where it is broken now: that holds on to it.
        return _InForce(before.item, min(places)) if before is not None and places else None

    def _restate(self, keys: Collection[Key], places: Collection[Place], changed: Collection[Key]) -> Iterator[Event]:
        """Say anew what stands refused, where that changed.

        What is over is told by location, so whatever else stands at such a location is told again; and so is what
        stands for a key that was just upserted, which by itself would end a rejection of it.
        """
        before = self._standing
        touched: set[Key | Place] = {*keys, *places}
        after = {slot: standing for slot, standing in before.items() if slot not in touched}
        for key in keys:
            if (bad := self._rejected_object(key)) is not None:
                after[key] = bad
        for place in sorted(places):
            if (bad := self._rejected_file(place)) is not None:
                after[place] = bad
        self._standing = after
        over = {
            standing.origin.location
            for slot, standing in before.items()
            if slot not in after or after[slot].origin.location != standing.origin.location
        }
        for location in sorted(over):
            yield Accepted(self._source, location)
        for slot, standing in after.items():
            if before.get(slot) != standing or standing.origin.location in over or slot in changed:
                yield standing

    def _rejected_object(self, key: Key) -> Rejected | None:
        first = self._first_bad(key)
        if first is None:
            return None
        place, claim = first
        return Rejected(self._source, Origin(self._source, place.shown, claim.line), claim.problems, key)

    def _first_bad(self, key: Key) -> tuple[Place, Faulty] | None:
        for place in sorted(self._claims.get(key, ())):
            claim = self._files[place].claims[key]
            if isinstance(claim, Faulty):
                return place, claim
        return None

    def _rejected_file(self, place: Place) -> Rejected | None:
        """What is wrong with a file apart from its bad objects: together, for they have no name of their own."""
        file = self._files.get(place)
        if file is None:
            return None
        problems = [*file.problems, *self._duplicates(place, file)]
        if not problems:
            return None
        problems.sort(key=lambda problem: problem.line)
        return Rejected(self._source, Origin(self._source, place.shown, problems[0].line), tuple(problems))

    def _duplicates(self, place: Place, file: _File) -> Iterator[Problem]:
        for key, claim in file.claims.items():
            if len(self._claims[key]) == 1 or isinstance(claim, _Lost):
                continue
            held = self._in_force.get(key)
            if isinstance(claim, Found) and held is not None and held.place != place:
                yield _duplicate(key, self._origin(key, held.place), claim.line)
            elif isinstance(claim, Faulty):
                first = self._first_bad(key)
                if first is not None and first[0] != place:
                    yield from claim.problems

    def _origin(self, key: Key, place: Place) -> Origin:
        claim = self._files[place].claims[key]
        return Origin(self._source, place.shown, 0 if isinstance(claim, _Lost) else claim.line)


def _file(content: Content, known: _File | None) -> _File:
    """What content claims, where the same file was `known` as this until now."""
    before = known.claims if known else {}
    ever_good = known.ever_good if known else frozenset()
    is_missing_some = any(isinstance(claim, _Lost) for claim in before.values())
    claims: dict[Key, Found | Faulty] = {}
    problems: list[Problem] = []
    whole = not content.unnamed_line
    for entry in content.entries:
        if entry.key is None:
            whole = False
            problems += entry.problems
            continue
        first = claims.setdefault(entry.key, entry)
        if first is not entry:
            if isinstance(entry, Found):
                problems.append(_duplicate(entry.key, f"line {first.line}", entry.line))
            else:
                problems += entry.problems
        elif isinstance(entry, Faulty) and entry.key not in ever_good and (is_missing_some or entry.key not in before):
            whole = False  # cut short, its name may be the first half of another
    lost: Mapping[Key, _Claim] = {} if whole else {key: _LOST for key in before if key not in claims}
    if lost:
        reason = (
            f"not found in the file now: {_names(lost)}; what was read before stays in force until the file is good"
        )
        problems.append(Problem("", f"{reason} (mend the broken document, or remove it)", line=_first_faulty(content)))
    good = {key for key, claim in claims.items() if isinstance(claim, Found)}
    all_claims: Mapping[Key, _Claim] = {**lost, **claims}
    return _File(all_claims, tuple(problems), frozenset(good | (ever_good & all_claims.keys())))


def _duplicate(key: Key, where: object, line: int) -> Problem:
    name = "/".join(key[1:]) or key[0]
    return Problem("", f"{name} is already defined at {where}; this one is ignored until that one goes", line=line)


def _first_faulty(content: Content) -> int:
    """The line of the first document that is not a good object."""
    bad = next((entry.line for entry in content.entries if isinstance(entry, Faulty)), 0)
    return min(filter(None, (bad, content.unnamed_line)), default=0)


def _names(keys: Collection[Key]) -> str:
    """Objects for people: a few by name, the others counted."""
    names = ["/".join(key[1:]) or key[0] for key in islice(keys, NAMES_TOLD)]
    rest = len(keys) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")


def _key_of(event: Upsert | Delete) -> Key:
    return item_key(event.item) if isinstance(event, Upsert) else event.key


def _location(item: Item) -> str:
    return item.origin.location if isinstance(item, Config) else ""
