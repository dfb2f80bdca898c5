"""The virtual hosts of all route tables that one proxy has: a live set for each table, read as one.

Which tables those are is the client's to say, so sets come and go as it asks for tables. Implements
``xds.sets.ResourceSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set

from mesh_pilot.envoy.catalog.resource_sets import LiveSet
from mesh_pilot.incremental import Memo
from mesh_pilot.model.resource import Resource, table_of

GONE_KEPT = 64
"""Tables remembered that the client asks for no more; who lags further behind compares everything."""


class TableSets:
    """Mutable state: the sets of the tables asked for, since when each is there, the names that went with others."""

    def __init__(
        self,
        memo: Memo,
        type_url: str,
        wanted: Callable[[], Set[str]],
        open_table: Callable[[str], LiveSet],
        close_table: Callable[[str], None],
    ) -> None:
        """``wanted`` gives the tables asked for now; the same object as long as they are the same."""
        self.type_url = type_url
        self._memo = memo
        self._wanted = wanted
        self._open = open_table
        self._close = close_table
        self._tables: Set[str] = frozenset()
        self._sets: dict[str, LiveSet] = {}
        self._opened: dict[str, int] = {}
        self._gone: list[tuple[int, tuple[str, ...]]] = []
        self._since = self._revision = memo.advance()

    def __repr__(self) -> str:
        return f"<TableSets of {len(self._sets)} tables at {self._revision}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Those that are open."""
        return tuple(self._sets)

    @property
    def parts(self) -> tuple[LiveSet, ...]:
        """The sets of the tables."""
        self.refresh()
        return tuple(self._sets.values())

    def refresh(self) -> int:
        tables = self._wanted()
        if tables is not self._tables:
            self._follow(tables)
        return max(self._revision, *(held.refresh() for held in self._sets.values()), 0)

    def work(self, names: frozenset[str]) -> Iterator[None]:
        """Make the virtual hosts of the tables asked for, one a step; see ``LiveSet.work``."""
        tables = self._wanted()
        if tables is not self._tables:
            self._follow(tables)
        for held in list(self._sets.values()):
            yield from held.work(names)

    def all(self) -> Mapping[str, Resource]:
        self.refresh()
        return HostsOfTables({table: held.all() for table, held in self._sets.items()})

    def get(self, name: str) -> Resource | None:
        self.refresh()
        held = self._sets.get(table_of(name))
        return None if held is None else held.get(name)

    def touched_since(self, revision: int) -> Set[str] | None:
        self.refresh()
        if revision < self._since:
            return None
        touched: set[str] = set()
        for table, held in self._sets.items():
            names = held.all().keys() if self._opened[table] > revision else held.touched_since(revision)
            if names is None:
                return None
            touched |= names
        for at, gone in self._gone:
            if at > revision:
                touched.update(gone)
        return touched

    def close(self) -> None:
        """Let go of all tables."""
        for table in self._sets:
            self._close(table)
        self._sets.clear()

    def _follow(self, tables: Set[str]) -> None:
        self._tables = tables
        changed = self._sets.keys() ^ tables
        if not changed:
            return
        self._revision = self._memo.advance()
        for table in sorted(changed):
            if table in tables:
                self._sets[table] = self._open(table)
                self._opened[table] = self._revision
            else:
                self._gone.append((self._revision, tuple(self._sets.pop(table).all())))
                self._close(table)
        if len(self._gone) > GONE_KEPT:
            self._since = self._gone[-GONE_KEPT - 1][0]
            del self._gone[:-GONE_KEPT]


class HostsOfTables(Mapping[str, Resource]):
    """A read-only mapping over the virtual hosts of several tables."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Mapping[str, Mapping[str, Resource]]) -> None:
        self._tables = tables

    def __getitem__(self, name: str) -> Resource:
        return self._tables[table_of(name)][name]

    def __iter__(self) -> Iterator[str]:
        for hosts in self._tables.values():
            yield from hosts

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))
