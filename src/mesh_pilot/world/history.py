"""The history of items: which changed after a revision, and their values then.

Quarantine needs it: suspects are what changed since a client last accepted a resource. Bounded by ``MAX_CHANGES``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mesh_pilot.model.events import Item

Key = tuple[str, ...]

MAX_CHANGES = 1000
"""The number of changes that are remembered; each keeps the replaced item in memory."""

Value = tuple[Item, ...]
"""An item as all sources have it, the one that wins first; empty if none has it."""


class History:
    """The latest changes, oldest first, and the first revision that they all belong to."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, Key, Value]] = deque()
        self._complete_since = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, revision: int, key: Key, before: Value) -> None:
        """An item had the value ``before`` until this revision."""
        if len(self._changes) == MAX_CHANGES:
            self._complete_since = self._changes.popleft()[0]
        self._changes.append((revision, key, before))

    def since(self, revision: int) -> dict[Key, Value]:
        """The items that changed after a revision, oldest change first, with their values at that revision.

        If the history does not go back that far: those that it has, with the oldest values that it has.
        """
        found: dict[Key, Value] = {}
        for _, key, before in reversed(list(self._newer(max(revision, self._complete_since)))):
            found.setdefault(key, before)
        return found

    def _newer(self, revision: int) -> Iterator[tuple[int, Key, Value]]:
        """Changes after a revision, newest first."""
        for change in reversed(self._changes):
            if change[0] <= revision:
                return
            yield change
