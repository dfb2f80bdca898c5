"""Overlays of the World: as it would be if items that clients refuse had the values which these clients are served, and
those that go to other proxies first their old values.

One overlay for each domain with withheld items, and for each side of a rollout. It shares all derived values that do
not depend on these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from mesh_pilot.engine import Memo, MemoOverlay
from mesh_pilot.engine.failures import OwnFailures
from mesh_pilot.model.events import Item, NewValue, Withheld
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.tables import Key, Tables
from mesh_pilot.world.view import View


class Overlay:
    """The World for the clients of one domain.

    Mutable state: the withheld and the old items; its tables and indexes follow those of the World.
    """

    def __init__(self, memo: Memo, world: Tables, domain: str, failed: OwnFailures) -> None:
        self._domain = domain
        self._failed = failed
        self.layer = MemoOverlay(memo)
        base = world.indexes
        indexes = Indexes(self.layer, base.domain, base.root_namespace, base.short_names_in, base.cluster_id)
        self.view = View(indexes)
        self.layer.view = self.view
        self._tables = world.copy(indexes, failed)
        self._withheld: Mapping[Key, Withheld] = {}
        self._new: Mapping[Key, NewValue] = {}

    def __repr__(self) -> str:
        return f"<Overlay without {[*self._withheld, *self._new]} {self.layer!r}>"

    def withhold(
        self, withheld: Iterable[Withheld], new: Iterable[NewValue], current: Callable[[Key], list[Item]]
    ) -> None:
        """Replace the withheld items, and those with old values. ``current`` gives the World's value of an item."""
        keys = dict.fromkeys((*self._withheld, *self._new))
        self._withheld, self._new = {each.key: each for each in withheld}, {each.key: each for each in new}
        for key in sorted(dict.fromkeys((*keys, *self._withheld, *self._new)), key=mesh_first):
            self.write(key, current(key))

    def write(self, key: Key, items: list[Item]) -> None:
        """The World has this value for an item."""
        self._tables.write(key, served_value(self._withheld.get(key), value_before(self._new.get(key), items)))

    def reshard(self, bits: int) -> None:
        self._tables.reshard(bits)

    def flush(self) -> None:
        self._tables.flush()

    def isolated(self, key: Key, kind: str, name: str) -> AbstractContextManager[None]:
        """See ``Tables.isolated``."""
        return self._tables.isolated(key, kind, f"{name} for {self._domain}")

    def close(self) -> None:
        self._failed.clear()
        self.layer.close()


def value_before(new: NewValue | None, items: list[Item]) -> list[Item]:
    """The value of an item where it may still be the old one: only the new value is replaced."""
    if new is not None and new.new == tuple(items):
        return list(new.old)
    return items


def mesh_first(key: Key) -> tuple[bool, Key]:
    """Sort key: the mesh's settings come first, because they decide how the rest is read."""
    return (key[0] not in ("mesh", "networks"), key)


def served_value(withheld: Withheld | None, items: list[Item]) -> list[Item]:
    """The value of an item where it may be withheld: only the refused value is replaced."""
    if withheld is not None and withheld.refused == tuple(items):
        return list(withheld.served)
    return items
