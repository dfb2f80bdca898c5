"""The files that are open for writing, by inotify's events: pure, times come in."""

from __future__ import annotations

import math


class Writers:
    """Files that were written to and not closed since, by their real paths. Times are seconds of one clock.

    A file that is being written stands as it was until it is closed. One that stays open for longer than the limit
    counts as it stands from then on: its writer may never close it.

    State: `_since`, when each open file was first written to; `_overdue`, open files past the limit; `_modified`, what
    was written to since `mark`.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._since: dict[str, float] = {}
        self._overdue: set[str] = set()
        self._modified: set[str] = set()

    def __repr__(self) -> str:
        return f"<Writers: {len(self._since)} files open, {len(self._overdue)} overdue>"

    @property
    def open(self) -> frozenset[str]:
        """Files that are being written, within the limit."""
        return frozenset(self._since)

    @property
    def modified(self) -> frozenset[str]:
        """Files that were written to since `mark`, closed or not: a read since then may be partial."""
        return frozenset(self._modified)

    @property
    def next_overdue(self) -> float:
        """When the next file passes the limit; infinity where none is open."""
        return min(self._since.values(), default=math.inf) + self._limit_seconds

    def mark(self) -> None:
        """Forget what was written to before now."""
        self._modified.clear()

    def wrote(self, path: str, now: float) -> bool:
        """A file was written to. True: it is past the limit, and is read as it is."""
        if path in self._overdue:
            return True
        self._modified.add(path)
        self._since.setdefault(path, now)
        return False

    def released(self, path: str) -> None:
        """A file was closed by a writer, moved or deleted."""
        self._since.pop(path, None)
        self._overdue.discard(path)

    def take_overdue(self, now: float) -> list[str]:
        """The files that have passed the limit since the last call."""
        overdue = sorted(path for path, since in self._since.items() if since + self._limit_seconds <= now)
        for path in overdue:
            del self._since[path]
        self._overdue.update(overdue)
        return overdue

    def forget(self) -> None:
        """Events were lost: nothing is known of any file."""
        self._since.clear()
        self._overdue.clear()
