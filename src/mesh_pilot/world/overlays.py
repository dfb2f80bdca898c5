"""Overlays of the World: as it would be if items that clients refuse had the values which these clients are served.

One overlay for each domain with withheld items. It shares all derived values that do not depend on these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from mesh_pilot.failures import OwnFailures
from mesh_pilot.incremental import Memo, MemoOverlay
from mesh_pilot.model.events import Item, Withheld
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.tables import Key, Tables
from mesh_pilot.world.view import View


class Overlay:
    """The World for the clients of one domain.

    Mutable state: the withheld items; its tables and indexes follow those of the World.
    """

    def __init__(self, memo: Memo, world: Tables, domain: str, failed: OwnFailures) -> None:
        self._domain = domain
        self._failed = failed
        self.layer = MemoOverlay(memo)
        base = world.indexes
        indexes = Indexes(self.layer, base.domain, base.root_namespace, base.short_names_in)
        self.view = View(indexes)
        self.layer.view = self.view
        self._tables = world.copy(indexes, failed)
        self._withheld: Mapping[Key, Withheld] = {}

    def __repr__(self) -> str:
        return f"<Overlay without {[*self._withheld]} {self.layer!r}>"

    def withhold(self, withheld: Iterable[Withheld], current: Callable[[Key], list[Item]]) -> None:
        """Replace the withheld items. ``current`` gives the World's value of an item."""
        before, self._withheld = self._withheld, {each.key: each for each in withheld}
        for key in dict.fromkeys((*before, *self._withheld)):
            self.write(key, current(key))

    def write(self, key: Key, items: list[Item]) -> None:
        """The World has this value for an item."""
        self._tables.write(key, served_value(self._withheld.get(key), items))

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


def served_value(withheld: Withheld | None, items: list[Item]) -> list[Item]:
    """The value of an item where it may be withheld: only the refused value is replaced."""
    if withheld is not None and withheld.refused == tuple(items):
        return list(withheld.served)
    return items
