"""Large mappings and sets with few changes: a copy that shares all that is the same with what it is a copy of.

A mesh of 10,000 services has dicts of 10,000 resources, and each change of one resource copied some of them. Here a
changed copy is the large one, which no longer changes, and what differs from it. As soon as that is a lot, the
next copy is a plain one: after ``sqrt(2 n)`` changes of a mapping of ``n``, so that a change costs about as many steps.

Why not a tree that shares its branches: it would be read in Python, level by level, and nearly all reads are of names
that never changed.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Set, ValuesView
from typing import TypeVar, cast

V = TypeVar("V")

SMALL = 64
"""The size up to which a plain copy is cheaper."""

_GONE = object()


class Composed(Mapping[str, V]):
    """A read-only mapping made of others. Who wants all of it gets a plain copy, which is made much faster than names
    are looked up one by one."""

    __slots__ = ()

    def flat(self) -> dict[str, V]:
        """A plain copy."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self.flat())

    def items(self) -> ItemsView[str, V]:
        return self.flat().items()

    def values(self) -> ValuesView[V]:
        return self.flat().values()


class PatchedMapping(Composed[V]):
    """A mapping that differs from another by few names. Make one with ``patched``."""

    __slots__ = ("_base", "_changes", "_size")

    def __init__(self, base: Mapping[str, V], changes: dict[str, object], size: int) -> None:
        self._base = base
        self._changes = changes
        """The new values; ``_GONE`` for names that are not in it."""
        self._size = size

    def __getitem__(self, name: str) -> V:
        changed = self._changes.get(name)
        if changed is None:
            return self._base[name]
        if changed is _GONE:
            raise KeyError(name)
        return cast(V, changed)

    def __contains__(self, name: object) -> bool:
        changed = self._changes.get(cast(str, name))
        return name in self._base if changed is None else changed is not _GONE

    def __len__(self) -> int:
        return self._size

    def flat(self) -> dict[str, V]:
        copied = self._base.flat() if isinstance(self._base, Composed) else dict(self._base)
        for name, changed in self._changes.items():
            if changed is _GONE:
                copied.pop(name, None)
            else:
                copied[name] = cast(V, changed)
        return copied


def patched(mapping: Mapping[str, V], puts: Mapping[str, V], drops: Iterable[str]) -> Mapping[str, V]:
    """A mapping with values put in, none of them None, and names taken out. The other may not change any more."""
    base, before = mapping, dict[str, object]()
    if isinstance(mapping, PatchedMapping):
        base, before = mapping._base, mapping._changes
    changes = {**before, **dict.fromkeys(drops, _GONE), **puts}
    size = len(mapping) + sum(name not in mapping for name in puts)
    size -= sum(name in mapping for name in drops if name not in puts)
    made = PatchedMapping(base, changes, size)
    return made if is_few(len(changes), len(base)) else made.flat()


def is_few(changes: int, total: int) -> bool:
    """True if a copy of so many with these changes is best made by writing down the changes."""
    return total > SMALL and changes * changes <= 2 * total


class PatchedSet(Set[str]):
    """A set of names that differs from another by few. Make one with ``patched_set``; compare with ``moved``.

    Equal only to itself, so that it can be a key: a ``SnapshotStore`` has equal ones once. What operators give is a
    ``frozenset``; with a small set on the other side ``&`` and ``>=`` cost that one.
    """

    __slots__ = ("__weakref__", "added", "base", "removed")
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, base: frozenset[str], added: frozenset[str], removed: frozenset[str]) -> None:
        self.base = base
        self.added = added
        """The names that only this set has."""
        self.removed = removed
        """The names that only the base has."""

    def __repr__(self) -> str:
        return f"<PatchedSet {len(self)} names, {len(self.added) + len(self.removed)} changes>"

    def __contains__(self, name: object) -> bool:
        return name in self.added or (name in self.base and name not in self.removed)

    def __iter__(self) -> Iterator[str]:
        return iter(self.flat())

    def __len__(self) -> int:
        return len(self.base) + len(self.added) - len(self.removed)

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(names)

    def flat(self) -> frozenset[str]:
        """A plain copy."""
        return (self.base - self.removed) | self.added

    def has_same(self, names: frozenset[str]) -> bool:
        """True if it has the same names."""
        return (
            len(self) == len(names) and self.added <= names and names.isdisjoint(self.removed) and self.flat() == names
        )


Names = frozenset[str] | PatchedSet


def patched_set(names: Names, more: Set[str], fewer: Set[str]) -> Names:
    """The names with some more, and without some; no name is in both."""
    base, added, removed = _parts(names)
    new, lost = frozenset(n for n in more if n not in names), frozenset(n for n in fewer if n in names)
    added, removed = (added - lost) | (new - base), (removed - new) | (lost & base)
    if not added and not removed:
        return base
    patched = PatchedSet(base, added, removed)
    return patched if is_few(len(added) + len(removed), len(base)) else patched.flat()


def moved(before: Names, after: Names) -> frozenset[str]:
    """The names that only one of two sets has. Costs the changes if both are copies of one set."""
    (base, added, removed), (other_base, other_added, other_removed) = _parts(before), _parts(after)
    if base is other_base:
        return (added ^ other_added) | (removed ^ other_removed)
    return flat(before) ^ flat(after)


def is_akin(some: Names, others: Names) -> bool:
    """True if both are copies of one set, or one is a copy of the other."""
    return _parts(some)[0] is _parts(others)[0]


def flat(names: Names) -> frozenset[str]:
    """The names as a plain set."""
    return names.flat() if isinstance(names, PatchedSet) else names


def _parts(names: Names) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    return (names.base, names.added, names.removed) if isinstance(names, PatchedSet) else (names, _NONE, _NONE)


_NONE: frozenset[str] = frozenset()
