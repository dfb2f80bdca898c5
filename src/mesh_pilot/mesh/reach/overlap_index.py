"""Finds names that occur in more than one of many sets, from the changes since the last call."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.engine import derived
from mesh_pilot.world.view import View


class OverlapIndex:
    """The sets of the last call, and the names that occurred in more than one of them.

    The result of ``shared`` depends on its argument alone: the state only makes it cheap. ``in`` refers to the argument
    of the last ``shared``, and must be used right after it.
    """

    def __init__(self) -> None:
        self._sets: dict[int, frozenset[str]] = {}
        self._all: set[str] = set()
        self._extra: dict[str, int] = {}
        """The number of sets after the first, for names in several sets."""

    def __repr__(self) -> str:
        return f"<OverlapIndex {len(self._all)} names in {len(self._sets)} sets, {len(self._extra)} in several>"

    def shared(self, sets: Mapping[int, frozenset[str]]) -> frozenset[str]:
        """The names in more than one of these sets.

        Costs the difference to the sets of the last call; a set that is the same object is not read.
        """
        changed = [(key, names) for key, names in sets.items() if self._sets.get(key) is not names]
        for key in self._sets.keys() - sets.keys():
            self._remove(self._sets.pop(key))
        for key, names in changed:
            before = self._sets.get(key)
            if before is not None:
                self._remove(before - names)
        for key, names in changed:
            before = self._sets.get(key)
            self._add(names if before is None else names - before)
            self._sets[key] = names
        return frozenset(self._extra)

    def __contains__(self, name: str) -> bool:
        """True if a name was in any set of the last call."""
        return name in self._all

    def _add(self, names: frozenset[str]) -> None:
        for name in () if self._all.isdisjoint(names) else self._all & names:
            self._extra[name] = self._extra.get(name, 0) + 1
        self._all |= names

    def _remove(self, names: frozenset[str]) -> None:
        still_used = [name for name in names if name in self._extra] if self._extra else []
        for name in still_used:
            self._extra[name] -= 1
            if not self._extra[name]:
                del self._extra[name]
        self._all -= names
        self._all.update(still_used)


@derived
def overlap_index(_: View, *__: object) -> OverlapIndex:
    """The index of one derived value, by name and key. Unlike other derived values it is mutable: only that derived
    value may use it."""
    return OverlapIndex()
