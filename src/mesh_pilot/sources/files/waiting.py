"""Changes of files that wait before they take effect: pure, no I/O, times come in.

The rules:

- What only adds or changes objects counts at once.
- What refuses or takes back an object waits until nothing has changed in any file for a short time: the object may be
  on its way to another file.
- So does, for longer, what was written in place: the rest of the file may be on its way.
- The last content of a file that is being written is kept.
- A file with objects that now holds no document at all was probably truncated: its objects are kept, which is
  reported, until it has been empty for long enough. Deleting the file removes them without that wait.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import attrs

from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, Unreadable
from mesh_pilot.sources.files.index import FileIndex


@attrs.frozen
class FileTiming:
    """Waits, in seconds of Trio's clock."""

    quiet_seconds: float = 0.1
    """The time without a change before an object is refused or taken back: the file may be half written, the object on
    its way to another file."""
    patience_seconds: float = 2.0
    """The time after which objects are rejected and removed even if files never come to rest."""
    settle_seconds: float = 0.5
    """The time without a change before a file that was written in place refuses or takes back an object: its writer may
    close it and go on."""
    open_seconds: float = 30.0
    """The time that the last content of a file that is open for writing stays; then it is read as it is. So is one that
    is written in place and never comes to rest."""
    empty_seconds: float = 10.0
    """The time that a file must have been without any document before its objects are removed."""
    rescan_seconds: float = 30.0
    """The interval of scans without any event: network file systems have none."""
    poll_seconds: float = 1.0
    """The interval of scans where folders can't be watched."""


@attrs.frozen
class _Change:
    """The last reading of a location, which has no effect yet."""

    reading: FileReading
    since: float
    """When the location first changed since it came to rest."""
    at: float
    """When it changed last."""
    in_place: bool
    """True if the same file was written to, rather than replaced by another one."""
    is_reported: bool = False
    """True once it was reported that the file is empty."""


class PendingReadings:
    """The changes that have no effect yet.

    State: `_changes`, the last reading of each location; `_since`, since when any of them waits.
    """

    def __init__(self, timing: FileTiming) -> None:
        self._timing = timing
        self._changes: dict[FileLocation, _Change] = {}
        self._since = math.inf

    def __repr__(self) -> str:
        return f"<Waiting: {len(self._changes)} files>"

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def locations(self) -> Collection[FileLocation]:
        return self._changes.keys()

    @property
    def unreported(self) -> int:
        """The number of changes of which nothing was reported yet: all but those of empty files."""
        return sum(not change.is_reported for change in self._changes.values())

    def add(self, location: FileLocation, reading: FileReading, now: float, *, in_place: bool) -> None:
        """A location has changed."""
        before = self._changes.get(location)
        since = before.since if before else now
        self._changes[location] = _Change(reading, since, now, in_place or (before is not None and before.in_place))
        self._since = min(self._since, now)

    def due(
        self, now: float, index: FileIndex, *, at_rest: bool, written: Collection[FileLocation] = ()
    ) -> Mapping[FileLocation, FileReading]:
        """The changes that take effect now; they are no longer pending.

        `at_rest`: nothing has changed anywhere for the quiet time. `written`: files that are being written.
        """
        due: dict[FileLocation, FileReading] = {}
        for location, change in list(self._changes.items()):
            if location in written:
                continue
            empties = _empties(index, location, change.reading)
            if empties or not index.is_harmless(location, change.reading):
                if now < self._when(change, at_rest):
                    continue
                if empties and not change.is_reported:
                    self._changes[location] = change = attrs.evolve(change, is_reported=True)
                    if now < change.at + self._timing.empty_seconds:
                        due[location] = self._stands_empty(index, location)
                        continue
            due[location] = change.reading
            del self._changes[location]
        self._since = min(self._since, now) if self.unreported else math.inf
        return due

    def next_at(self, *, at_rest: bool, written: Collection[FileLocation] = ()) -> float:
        """When the next change is due, if nothing else happens; infinity: not without a word from outside."""
        times = (self._when(change, at_rest) for location, change in self._changes.items() if location not in written)
        return min(times, default=math.inf)

    def _when(self, change: _Change, at_rest: bool) -> float:
        return max(self._waits(change, at_rest))

    def _waits(self, change: _Change, at_rest: bool) -> Iterator[float]:
        yield change.at
        if not at_rest:
            yield self._since + self._timing.patience_seconds
        if change.in_place:
            yield min(change.at + self._timing.settle_seconds, change.since + self._timing.open_seconds)
        if change.is_reported:
            yield change.at + self._timing.empty_seconds

    def _stands_empty(self, index: FileIndex, location: FileLocation) -> Unreadable:
        seconds = self._timing.empty_seconds
        return Unreadable(
            f"is empty; {index.described(location)} are kept until it has been empty for {seconds:g} s: "
            "delete the file to remove them at once"
        )


def _empties(index: FileIndex, location: FileLocation, reading: FileReading) -> bool:
    """True if a file that had objects holds no document any more."""
    return isinstance(reading, FileContent) and reading.is_empty and index.count_objects(location) > 0
