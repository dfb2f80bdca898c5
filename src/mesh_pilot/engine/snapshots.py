"""Snapshots: what there is of a type at one time, and the one way to learn how two snapshots differ.

A ``Snapshot`` is an immutable set of resources by name. Whatever generates resources hands out a snapshot, the same
object until something changed; a stream compares it with the snapshot that its client holds::

    store.diff(client_state, source.snapshot())  # the names to send

Three properties make this cheap:

* A snapshot's digest is the sum of the digests of its resources. An edit costs what it touches, the order of edits
  leaves no trace, and replicas with the same resources have the same digest. Its text is the ``version_info``.
* A snapshot remembers its latest ancestors by digest, each with the names that changed next, like the commits of a
  branch. ``diff`` goes back to the nearest common ancestor and looks only at the names touched since. Without one it
  compares everything.
* A ``SnapshotStore`` holds equal snapshots once and remembers the latest results of functions of immutable values. The
  hundredth stream in the same state finds what the first one worked out.

Pure: no I/O and no clock; all mutable state is in the ``SnapshotStore`` that a catalog owns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Set, Sized
from functools import cached_property
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import attrs

from mesh_pilot.engine.patched import SMALL, Composed, Names, PatchedSet, flat, moved, patched, patched_set
from mesh_pilot.model.resource import Resource

P = ParamSpec("P")
T = TypeVar("T")

NO_NAMES: frozenset[str] = frozenset()

MAX_ANCESTORS = 32
"""Ancestors that a snapshot remembers. A stream that lags further behind compares everything."""

FEW_NAMES = 8
"""Changes of up to this many names are followed name by name, however small the set is."""

LARGE_CHANGE = 8
"""Beyond that, a change of more than 1/8 of the names is found by comparing everything, which streams share."""

MAX_CACHED_NAMES = 1_000_000
"""Capacity of a store's cache, in names: hundred results for a mesh of 10,000 services."""

BYTES_PER_NAME = 50
"""Bytes as a cache key weigh as much as one name for each so many."""

MAX_RETAINED = 32
"""Snapshots of disconnected clients that a store retains."""

RETAINED_TRIMS = 3
"""Calls of ``trim`` that such a snapshot survives."""

_DIGEST_MASK = (1 << 128) - 1


@attrs.frozen(eq=False)
class Snapshot:
    """Resources by name; never changed. Get one from a ``SnapshotStore``, so that equal ones are one object."""

    digest: int
    entries: Mapping[str, Resource] = attrs.field(repr=lambda entries: str(len(entries)))
    history: tuple[tuple[int, frozenset[str]], ...] = attrs.field(default=(), repr=False)
    """The digests of the latest ancestors, oldest first, each with the names by which its successor may differ."""

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return True

    @property
    def version(self) -> str:
        """The digest as text: the same for the same resources in any process."""
        return f"{self.digest:032x}"

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.entries)

    @cached_property
    def listing(self) -> tuple[Resource, ...]:
        """The resources in the order in which they are sent: by name."""
        return tuple([resource for _, resource in sorted(self.entries.items())])

    def history_with(self, changed: frozenset[str]) -> tuple[tuple[int, frozenset[str]], ...]:
        """The history of a successor that may differ by these names."""
        if is_large(len(changed), len(self.entries)):
            return ()
        return (*self.history[1 - MAX_ANCESTORS :], (self.digest, changed))


EMPTY = Snapshot(0, {})
"""Without any resource."""


def snapshot_of(resources: Iterable[Resource]) -> Snapshot:
    """A snapshot outside of any store."""
    entries = {resource.name: resource for resource in resources}
    return Snapshot(sum([resource.digest for resource in entries.values()]) & _DIGEST_MASK, entries)


def is_large(changes: int, total: int) -> bool:
    """True if so many changes in a set of this size are found faster by comparing everything."""
    return changes > max(FEW_NAMES, total // LARGE_CHANGE)


def union(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The names of both; one of the two objects where that is enough."""
    return others if not some else some if not others or others is some else some | others


def without(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """The names that are not among the others; the same object if none is."""
    if not some or some is others:
        return NO_NAMES
    return some if some.isdisjoint(others) else (some - others) or NO_NAMES  # each new one takes 200 bytes


def absent(names: Iterable[str], there: Container[str]) -> frozenset[str]:
    """The names that are not there. Costs the names, however many are there."""
    return frozenset([name for name in names if name not in there]) or NO_NAMES


class WeightedLru:
    """The latest results of functions of immutable values, up to a total weight.

    A result weighs as many names as its arguments hold. State: the results, least recently used first, and their
    weight. Those before the mark were not used since the last ``trim``.
    """

    _MARK = object()

    def __init__(self, capacity: int = MAX_CACHED_NAMES) -> None:
        self._capacity = capacity
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._weight = 0

    def __repr__(self) -> str:
        return f"<WeightedLru {len(self._results.keys() - {self._MARK})} results, {self._weight} names>"

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result for these positional arguments."""
        assert not kwargs
        key = (function, *args)
        found = self._results.get(key)
        if found is not None:
            self._results.move_to_end(key)
            known: T = found[0]
            return known
        result, weight = function(*args, **kwargs), 1 + sum(map(_weight, args))
        self._results[key] = (result, weight)
        self._weight += weight
        while self._weight > self._capacity and len(self._results) > 1:
            _, (_, weight) = self._results.popitem(last=False)
            self._weight -= weight
        return result

    def trim(self) -> int:
        """Forget results that were not used since the last call; returns their weight."""
        before = self._weight
        if self._MARK in self._results:
            while (first := next(iter(self._results))) is not self._MARK:
                self._weight -= self._results.pop(first)[1]
            self._results.move_to_end(self._MARK)
        else:
            self._results[self._MARK] = (None, 0)
        return before - self._weight

    def clear(self) -> None:
        self._results.clear()
        self._weight = 0


def _weight(argument: object) -> int:
    if isinstance(argument, bytes):
        return len(argument) // BYTES_PER_NAME
    return len(argument) if isinstance(argument, Sized) else 0


@attrs.frozen(eq=False)
class Joined(Composed[Resource]):
    """A read-only mapping over several mappings without a key in common."""

    parts: tuple[Mapping[str, Resource], ...]

    def __getitem__(self, name: str) -> Resource:
        for part in self.parts:
            if name in part:
                return part[name]
        raise KeyError(name)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def flat(self) -> dict[str, Resource]:
        copied: dict[str, Resource] = {}
        for part in self.parts:
            copied.update(part.items())
        return copied


class SnapshotStore:
    """Snapshots and sets of names, equal ones once, and what streams work out from them.

    Mutable state: weak tables of the snapshots and names in use, the cache of results, and the snapshots of clients
    that disconnected lately.
    """

    def __init__(self) -> None:
        self._snapshots: WeakValueDictionary[int, Snapshot] = WeakValueDictionary({0: EMPTY})
        self._names: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()
        self._patched_names: WeakValueDictionary[Hashable, PatchedSet] = WeakValueDictionary()
        self._cache = WeightedLru()
        self._retained: dict[Snapshot, int] = {}
        """Each with the number of ``trim`` calls that it still survives; the latest last."""

    def __repr__(self) -> str:
        return f"<SnapshotStore {len(self._snapshots)} in use, {len(self._retained)} retained, {self._cache!r}>"

    # -- sharing

    def names(self, names: Iterable[str]) -> Names:
        """A set of names, the same object for all who use the same names."""
        made = frozenset(names)
        found = self._names.get(hash(made))
        if found == made:
            return found
        if len(made) > SMALL:
            for each in list(self._patched_names.values()):
                if each.has_same(made):
                    return each
        self._names[hash(made)] = made
        return made

    def renamed(self, names: Names, more: Set[str], fewer: Set[str]) -> Names:
        """The names with some more, and without some, no name in both: the same object for all who use the same."""
        made = patched_set(names, more, fewer)
        if not isinstance(made, PatchedSet):
            return self.names(made)
        return self._patched_names.setdefault((id(made.base), made.added, made.removed), made)

    def shared(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a pure function of immutable values, from the cache if another stream asked for it."""
        return self._cache.call(function, *args, **kwargs)

    def lookup(self, version: str) -> Snapshot | None:
        """The snapshot with this version, if it is in use or retained."""
        try:
            return self._snapshots.get(int(version, 16))
        except ValueError:
            return None

    def retain(self, snapshot: Snapshot) -> None:
        """Keep what a disconnecting client holds for a while: it comes back with this version."""
        self._retained.pop(snapshot, None)
        self._retained[snapshot] = RETAINED_TRIMS
        if len(self._retained) > MAX_RETAINED:
            del self._retained[next(iter(self._retained))]

    def trim(self) -> int:
        """Drop results not used since the last call and snapshots retained for long; returns their size in names.

        Call it every half a minute or so.
        """
        expired = [snapshot for snapshot, trims in self._retained.items() if trims <= 1]
        for snapshot in expired:
            del self._retained[snapshot]
        for snapshot in self._retained:
            self._retained[snapshot] -= 1
        return sum(map(len, expired)) + self._cache.trim()

    def clear(self) -> None:
        """Drop everything that is not in use."""
        self._retained.clear()
        self._cache.clear()

    # -- making snapshots

    def edit(self, base: Snapshot, puts: Iterable[Resource] = (), drops: Iterable[str] = ()) -> Snapshot:
        """A snapshot with resources put in and names taken out. Copies the entries only if there is no equal one."""
        puts, drops = tuple(puts), tuple(drops)
        entries, digest = base.entries, base.digest
        for name in drops:
            digest -= _digest_of(entries.get(name))
        for resource in puts:
            digest += resource.digest - _digest_of(entries.get(resource.name))
        digest &= _DIGEST_MASK
        found = self._snapshots.get(digest)
        if found is not None:
            return found
        edited = patched(entries, {resource.name: resource for resource in puts}, drops)
        changed = frozenset([*drops, *[resource.name for resource in puts]])
        return self.add(Snapshot(digest, edited, base.history_with(changed)))

    def select(self, table: Snapshot, names: Names) -> Snapshot:
        """The resources of these names; the table itself if it has no others."""
        return self._cache.call(self._select, table, names)

    def _select(self, table: Snapshot, names: Names) -> Snapshot:
        if len(table) <= len(names) and len(table.names) == len(table) and table.names <= names:
            return table
        get = table.entries.get
        return self.edit(EMPTY, [resource for name in names if (resource := get(name)) is not None])

    def overlay(self, base: Snapshot, more: Snapshot) -> Snapshot:
        """Both snapshots in one. A name in both is the same resource."""
        return self._cache.call(self._overlay, base, more)

    def _overlay(self, base: Snapshot, more: Snapshot) -> Snapshot:
        return self.edit(base, [resource for name, resource in more.entries.items() if name not in base.entries])

    def find(self, digest: int) -> Snapshot | None:
        """The snapshot with this digest, if it is in use or retained."""
        return self._snapshots.get(digest)

    def add(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot from elsewhere, or the equal one that is here."""
        return self._snapshots.setdefault(snapshot.digest, snapshot)

    # -- comparing

    def diff(self, before: Snapshot, after: Snapshot) -> frozenset[str]:
        """The names that only one of the two has, or in another version."""
        if before is after:
            return NO_NAMES
        if not before.entries or not after.entries:
            return after.names if not before.entries else before.names
        return self._cache.call(_diff, before, after)


class Join:
    """The snapshot of several parts without a name in common, kept up to date as parts change, come and go.

    Copies no entries. State: the last parts, by keys of the caller's, and their snapshot.
    """

    def __init__(
        self, store: SnapshotStore, merge: Callable[[Mapping[Hashable, Snapshot]], Mapping[str, Resource]]
    ) -> None:
        """``merge`` gives a view of the entries of all parts."""
        self._store = store
        self._merge = merge
        self.parts: Mapping[Hashable, Snapshot] = {}
        self._joined = EMPTY

    def of(self, parts: Mapping[Hashable, Snapshot]) -> Snapshot:
        if parts != self.parts:
            self._joined = self._join(parts)
            self.parts = parts
        return self._joined

    def _join(self, parts: Mapping[Hashable, Snapshot]) -> Snapshot:
        if len(parts) == 1:
            return self._store.add(*parts.values())
        digest = sum([part.digest for part in parts.values()]) & _DIGEST_MASK
        found = self._store.find(digest)
        if found is not None:
            return found
        changed = NO_NAMES
        for key in parts.keys() | self.parts.keys():
            changed = union(changed, self._store.diff(self.parts.get(key, EMPTY), parts.get(key, EMPTY)))
        return self._store.add(Snapshot(digest, self._merge(parts), self._joined.history_with(changed)))


def joined(parts: Mapping[Hashable, Snapshot]) -> Mapping[str, Resource]:
    """A view of the entries of a few parts."""
    return Joined(tuple(part.entries for part in parts.values()))


class Selection:
    """The resources of some names in a table, kept up to date as the table or the names change.

    Costs what changed since the last time. State: the last table, names and result.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self.table = EMPTY
        self.names: Names = NO_NAMES
        self.found = EMPTY

    def begin_as(self, other: Selection) -> None:
        """Be as another one is now: the next result costs what differs from its last."""
        self.table, self.names, self.found = other.table, other.names, other.found

    def of(self, table: Snapshot, names: Names) -> Snapshot:
        if table is self.table and names is self.names:
            return self.found
        store, found = self._store, self.found
        changed, other = store.diff(self.table, table), NO_NAMES
        if names is not self.names:
            other = store.shared(moved, self.names, names)
        self.table, self.names = table, names
        if is_large(len(changed) + len(other), len(names)):
            self.found = store.select(table, names)
        else:
            touched = union(changed, other)
            now = {name: table.entries.get(name) if name in names else None for name in touched}
            drops = [name for name, resource in now.items() if resource is None and name in found.entries]
            self.found = store.edit(found, [resource for resource in now.values() if resource is not None], drops)
        return self.found


class Lacking:
    """The names that a table lacks, kept up to date as the table or the names change.

    Costs what changed since the last time. State: the last table, names and result.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._table = EMPTY
        self._names: Names = NO_NAMES
        self._found: Names = NO_NAMES

    def begin_as(self, other: Lacking) -> None:
        """Be as another one is now: the next result costs what differs from its last."""
        self._table, self._names, self._found = other._table, other._names, other._found

    def of(self, table: Snapshot, names: Names) -> Names:
        if table is self._table and names is self._names:
            return self._found
        store = self._store
        touched = union(store.diff(self._table, table), store.shared(moved, self._names, names))
        if is_large(len(touched), len(names)):
            found = store.shared(_lacking, table, names)
        else:
            now = frozenset([name for name in touched if name in names and name not in table.entries])
            found = flat(self._found) - touched | now
        self._table, self._names, self._found = table, names, store.names(found)
        return self._found


def _lacking(table: Snapshot, names: Names) -> frozenset[str]:
    return absent(names, table.entries)


def _digest_of(resource: Resource | None) -> int:
    return 0 if resource is None else resource.digest


def _diff(before: Snapshot, after: Snapshot) -> frozenset[str]:
    old, new = before.entries, after.entries
    touched = _touched_since_common_ancestor(before, after)
    if touched is not None:
        return frozenset([name for name in touched if _version_in(old, name) != _version_in(new, name)])
    found = [name for name, now in new.items() if (was := old.get(name)) is None or was.version != now.version]
    return (before.names - after.names).union(found)


def _touched_since_common_ancestor(before: Snapshot, after: Snapshot) -> set[str] | None:
    """The names touched on either way from the nearest common ancestor, None without one."""
    steps_of = {digest: len(before.history) - at for at, (digest, _) in enumerate(before.history)}
    steps_of[before.digest] = 0
    touched: set[str] = set()
    for digest, changed in ((after.digest, NO_NAMES), *reversed(after.history)):
        touched |= changed
        steps = steps_of.get(digest)
        if steps is not None:
            for _, changed_before in before.history[len(before.history) - steps :]:
                touched |= changed_before
            return touched
    return None


def _version_in(entries: Mapping[str, Resource], name: str) -> str | None:
    resource = entries.get(name)
    return None if resource is None else resource.version
