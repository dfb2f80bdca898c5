"""A proxy whose scope has changed: what cannot be made for the new scope stays as it was in the old one.

A Sidecar, Gateway or EnvoyFilter that begins to select a proxy gives it other sets of resources. If our code fails at
just that object, these have no last good version. The proxy does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from mesh_pilot.engine.patched import Composed, Names
from mesh_pilot.engine.snapshots import EMPTY, Join, Selection, Snapshot, SnapshotStore
from mesh_pilot.envoy.catalog.joined_sets import JoinedSet
from mesh_pilot.envoy.catalog.resource_sets import Missing, ResourceSet
from mesh_pilot.model.resource import Resource, table_of


class KeptResources:
    """The resources of one type for the new scope, and in place of those that cannot be made the earlier ones.

    Implements ``xds.ads.resources.TypeResources``. State: what the proxy had before, until all can be made.
    """

    def __init__(self, store: SnapshotStore, now: JoinedSet | VirtualHostSets, before: Snapshot) -> None:
        self.now = now
        self._store = store
        self._before = before

    def __repr__(self) -> str:
        return f"<KeptResources {len(self._before)} from before {self.now!r}>"

    @property
    def latest(self) -> Snapshot:
        """The resources handed out last."""
        return self._filled(self.now.latest)

    def snapshot(self) -> Snapshot:
        return self._filled(self.now.snapshot())

    def select(self, names: Names) -> Snapshot:
        return self._filled(self.now.select(names), names)

    def get(self, name: str) -> Resource | None:
        found = self.now.get(name)
        return found if found is not None else self._filled(EMPTY).entries.get(name)

    def parts(self) -> Iterator[ResourceSet]:
        return self.now.parts()

    def awaited(self) -> frozenset[str]:
        return self.now.awaited()

    def work(self, names: Names) -> Iterator[None]:
        return self.now.work(names)

    def _filled(self, current: Snapshot, names: Names | None = None) -> Snapshot:
        """With the earlier resources, of these names only, that are missing because of a failure."""
        if self._before is EMPTY:
            return current
        missing = self.now.missing()
        if not missing:
            self._before = EMPTY
            return current
        kept = [
            resource
            for name, resource in self._before.entries.items()
            if name not in current.entries and (names is None or name in names) and missing.may_have(name)
        ]
        return self._store.edit(current, kept) if kept else current


# -- the virtual hosts of all route tables that one proxy has: a set for each table, read as one


class VirtualHostSets:
    """The virtual hosts of one proxy: implements ``xds.ads.resources.TypeResources``.

    Mutable state: the sets of the requested tables, and their snapshot.
    """

    def __init__(
        self,
        store: SnapshotStore,
        requested: Callable[[], Names],
        open_table: Callable[[str], ResourceSet],
        close_table: Callable[[str], None],
    ) -> None:
        """``requested`` gives the tables requested now; the same object as long as they are the same."""
        self._requested = requested
        self._open = open_table
        self._close = close_table
        self._tables: Names = frozenset()
        self._sets: dict[str, ResourceSet] = {}
        self._join = Join(store, HostsOfTables)
        self._selection = Selection(store)
        self.latest = EMPTY
        """The resources handed out last."""

    def __repr__(self) -> str:
        return f"<VirtualHostSets of {len(self._sets)} tables>"

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that are open."""
        return tuple(self._sets)

    def snapshot(self) -> Snapshot:
        self._follow()
        self.latest = self._join.of({table: live.snapshot() for table, live in self._sets.items()})
        return self.latest

    def missing(self) -> Missing:
        """The resources that the tables lack because of failures."""
        found = Missing()
        for live in self._sets.values():
            found |= live.missing()
        return found

    def select(self, names: Names) -> Snapshot:
        return self._selection.of(self.snapshot(), names)

    def get(self, name: str) -> Resource | None:
        self._follow()
        live = self._sets.get(table_of(name))
        return None if live is None else live.get(name)

    def parts(self) -> Iterator[ResourceSet]:
        """The sets of the tables that are open."""
        return iter(self._sets.values())

    def awaited(self) -> frozenset[str]:
        return frozenset()

    def work(self, names: Names) -> Iterator[None]:
        """Generate the virtual hosts of the requested tables, one a step; see ``ResourceSet.work``."""
        self._follow()
        for live in list(self._sets.values()):
            yield from live.work(names)

    def close(self) -> None:
        """Close all tables."""
        for table in self._sets:
            self._close(table)
        self._sets.clear()

    def _follow(self) -> None:
        """Open the tables that are newly requested, and close the others."""
        tables = self._requested()
        if tables is self._tables:
            return
        self._tables = tables
        for table in sorted(self._sets.keys() ^ tables):
            if table in tables:
                self._sets[table] = self._open(table)
            else:
                del self._sets[table]
                self._close(table)


class HostsOfTables(Composed[Resource]):
    """A read-only mapping over the virtual hosts of several tables."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Mapping[Hashable, Snapshot]) -> None:
        self._tables = {table: hosts.entries for table, hosts in tables.items()}

    def __getitem__(self, name: str) -> Resource:
        return self._tables[table_of(name)][name]

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def flat(self) -> dict[str, Resource]:
        copied: dict[str, Resource] = {}
        for hosts in self._tables.values():
            copied.update(hosts.items())
        return copied
