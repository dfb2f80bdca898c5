"""The index of files: the objects in force, if several files hold them and some are broken. Pure, no I/O, no clock.

The rules, in addition to those of `sources.base.published`:

- The object of a key that is in force is that of the lowest location; within a file only the first object of a key
  counts, good or bad.
- A file that can't be read, or is so broken in part that objects can't be told apart, keeps its objects in
  force: a document without a name, or a bad object that was not in the file before, may be one that is missing. The
  rejection of the file names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

import attrs

from mesh_pilot.model.config import Problem
from mesh_pilot.model.events import Event, Item, Rejected
from mesh_pilot.sources.base.published import (
    InvalidObject,
    Key,
    LocationContent,
    Precedence,
    PublishedState,
    UnseenObject,
    ValidObject,
    duplicate,
)
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, Gone, Unreadable

MAX_NAMES = 5
"""Objects that a message names; it says how many more there are."""


@attrs.frozen
class IndexStatistics:
    files: int
    items: int
    """Objects in force."""
    rejected: int
    """Rejections in force: one for each bad object, and one for each file with other problems."""


class FileIndex:
    """Turns the contents of files, and how they change, into events.

        index = FileIndex("files")
        index.state.announce()
        events = index.update({FileLocation(0, "a.yaml"): content, FileLocation(0, "b.yaml"): Gone()})

    State: `state`, what was published; `_ever_good`, by file, the keys of which it had a good object at any time.
    """

    def __init__(self, source: str) -> None:
        self.state = PublishedState[FileLocation](source, Precedence.LOWEST, describe=lambda location: str(location))
        self._ever_good: dict[FileLocation, frozenset[Key]] = {}

    def __repr__(self) -> str:
        state = self.statistics()
        return f"<FileIndex: {state.files} files, {state.items} items, {state.rejected} rejected>"

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(len(self._ever_good), len(self.state), len(self.state.rejections()))

    def items(self) -> tuple[Item, ...]:
        """The objects in force."""
        return self.state.items()

    def rejections(self) -> tuple[Rejected, ...]:
        return self.state.rejections()

    def count_objects(self, location: FileLocation) -> int:
        """The number of objects of a file, good or bad."""
        return len(self.state.content(location).objects)

    def described(self, location: FileLocation) -> str:
        """The objects of a file, for people."""
        return _names(self.state.content(location).objects)

    def is_harmless(self, location: FileLocation, reading: FileReading) -> bool:
        """True if a reading only adds or changes objects: it rejects nothing and removes nothing."""
        keys = set()
        match reading:
            case Unreadable():
                return False
            case FileContent(entries):
                for entry in entries:
                    if isinstance(entry, InvalidObject) or entry.key in keys:
                        return False
                    keys.add(entry.key)
        if any(holder != location for key in keys for holder in self.state.holders(key)):
            return False
        return self.state.content(location).objects.keys() <= keys

    def update(self, changes: Mapping[FileLocation, FileReading]) -> list[Event]:
        """The events that these changes come to, taken as one."""
        return self.state.update({location: self._judged(location, changes[location]) for location in sorted(changes)})

    def _judged(self, location: FileLocation, reading: FileReading) -> LocationContent | None:
        known = self.state.content(location)
        match reading:
            case Gone():
                self._ever_good.pop(location, None)
                return None
            case Unreadable(reason):
                self._ever_good.setdefault(location, frozenset())
                return LocationContent(known.objects, (Problem("", reason),))
            case FileContent():
                ever_good = self._ever_good.get(location, frozenset())
                content = _judged(reading, known, ever_good)
                good = {key for key, found in content.objects.items() if isinstance(found, ValidObject)}
                self._ever_good[location] = frozenset(good | (ever_good & content.objects.keys()))
                return content


def _judged(content: FileContent, known: LocationContent, ever_good: Collection[Key]) -> LocationContent:
    """The objects of a file of which `known` was read before, with those that may be in a part that can't be read."""
    was_partial = any(isinstance(found, UnseenObject) for found in known.objects.values())
    objects: dict[Key, ValidObject | InvalidObject] = {}
    problems: list[Problem] = []
    is_whole = not content.unnamed_line
    for entry in content.entries:
        if entry.key is None:
            is_whole = False
            problems += entry.problems
            continue
        first = objects.setdefault(entry.key, entry)
        if first is not entry:
            if isinstance(entry, ValidObject):
                problems.append(duplicate(entry.key, f"line {first.line}", entry.line))
            else:
                problems += entry.problems
        elif isinstance(entry, InvalidObject) and entry.key not in ever_good:
            # A name that was cut short may be the first half of another.
            is_whole = is_whole and not was_partial and entry.key in known.objects
    unseen = {} if is_whole else {key: UnseenObject() for key in known.objects if key not in objects}
    if unseen:
        reason = f"not found in the file now: {_names(unseen)}; what was read before is kept until the file is good"
        problems.append(Problem("", f"{reason} (fix the broken document, or remove it)", line=_first_faulty(content)))
    problems.sort(key=lambda problem: problem.line)
    return LocationContent({**unseen, **objects}, tuple(problems))


def _first_faulty(content: FileContent) -> int:
    """The line of the first document that is not a good object."""
    bad = next((entry.line for entry in content.entries if isinstance(entry, InvalidObject)), 0)
    return min(filter(None, (bad, content.unnamed_line)), default=0)


def _names(keys: Collection[Key]) -> str:
    """Objects for people: a few by name, the others counted."""
    names = ["/".join(key[1:]) or key[0] for key in islice(keys, MAX_NAMES)]
    rest = len(keys) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")
