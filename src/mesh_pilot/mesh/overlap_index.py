"""Names that stand in more than one of many sets, worked out from what changed since the last look."""

from __future__ import annotations

from collections.abc import Mapping

from mesh_pilot.incremental import derived
from mesh_pilot.world.view import View


class OverlapIndex:
    """What the sets were at the last look, and which names were in more than one of them.

    A derived value may keep one (``ledger_of(view, ...)``): what ``shared`` answers depends on its argument alone, the
    state only makes the answer cheap. ``in`` speaks of the argument of the last ``shared``: ask it right after.
    """

    def __init__(self) -> None:
        self._sets: dict[int, frozenset[str]] = {}
        self._every: set[str] = set()
        self._more: dict[str, int] = {}
        """In how many sets more than one the others are."""

    def __repr__(self) -> str:
        return f"<Ledger {len(self._every)} names in {len(self._sets)} sets, {len(self._more)} in several>"

    def shared(self, sets: Mapping[int, frozenset[str]]) -> frozenset[str]:
        """The names in more than one of these sets. Costs what differs from the sets of the last call; a set is only
        looked into where it is another object."""
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
        return frozenset(self._more)

    def __contains__(self, name: str) -> bool:
        """Whether a name was in any set at the last look."""
        return name in self._every

    def _add(self, names: frozenset[str]) -> None:
        for name in () if self._every.isdisjoint(names) else self._every & names:
            self._more[name] = self._more.get(name, 0) + 1
        self._every |= names

    def _remove(self, names: frozenset[str]) -> None:
        stay = [name for name in names if name in self._more] if self._more else []
        for name in stay:
            self._more[name] -= 1
            if not self._more[name]:
                del self._more[name]
        self._every -= names
        self._every.update(stay)


@derived
def overlap_index(_: View, *__: object) -> OverlapIndex:
    """A ledger for one derived value, by its name and key. Mutable, unlike other derived values: it is made once, and
    only that derived value may use it."""
    return OverlapIndex()
