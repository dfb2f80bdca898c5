"""Overlays of the World: as it would be if items that clients refuse had the values which these clients are served, and
those that go to other proxies first their old values.

One overlay for each domain with withheld items, and for each side of a rollout. It shares all derived values that do
not depend on these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import count

from mesh_pilot.engine import Memo, MemoOverlay
from mesh_pilot.engine.failures import OBJECT, Failures, OwnFailures
from mesh_pilot.model.events import Item, NewValue, Withheld
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.tables import Key, Tables
from mesh_pilot.world.view import View

EVERYONE = ""
"""The domain of all clients."""

_CANARY, _WAITING = " in the canary", " outside the canary"
"""Ends of the names of overlays, while a rollout makes a difference."""


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


class Overlays:
    """The overlays that clients are served, and which client has which.

    State: `_overlays`, by group of domains and side of the rollout; `_groups`, that of each domain from which anything
    is withheld, with `_contents` and the number of `_members`; `_canary`; `_followers`, by domain who is told of a
    change.
    """

    def __init__(self, memo: Memo, tables: Tables, current: Callable[[Key], list[Item]], failed: Failures) -> None:
        """``current`` gives the World's value of an item."""
        self._memo = memo
        self._tables = tables
        self._indexes = tables.indexes
        self._current = current
        self._failed = failed
        self._overlays: dict[str, Overlay] = {}
        self._groups: dict[str, str] = {}
        self._contents: dict[str, tuple[Withheld, ...]] = {}
        self._members: Counter[str] = Counter()
        self._numbers = count()
        self._canary: frozenset[str] = frozenset()
        self._followers: dict[str, dict[Callable[[], None], None]] = {}

    def __len__(self) -> int:
        return len(self._overlays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._overlays)

    def overlay_of(self, domains: Iterable[str], node: str) -> Overlay | None:
        """The overlay for a client of these domains with this node id; None: it is served the World itself."""
        return self._overlays.get(self._group_of(domains) + self._side_of(node)) if self._overlays else None

    def withheld_from(self, domains: Iterable[str]) -> tuple[Withheld, ...]:
        """The items withheld from a client of these domains: those of the narrowest one that says any, or none."""
        if not self._indexes.withheld:
            return ()
        return next((found for found in map(self._indexes.withheld.peek, domains) if found is not None), ())

    def _group_of(self, domains: Iterable[str]) -> str:
        domain = next((domain for domain in domains if self._indexes.withheld.peek(domain) is not None), EVERYONE)
        return self._groups.get(domain, EVERYONE)

    def old_values(self, node: str) -> tuple[NewValue, ...]:
        """The changed objects of which a client with this node id is served the old value."""
        rollout = self._indexes.rollout.peek(())
        return self._sides().get(self._side_of(node), ()) if rollout is not None else ()

    def values_in_force(self, key: Key) -> list[tuple[Item, ...]]:
        """The values of an item that clients are served, before anything is withheld from them."""
        rollout = self._indexes.rollout.peek(())
        changes = rollout.changes if rollout is not None else ()
        return [tuple(self._current(key)), *(each.old for each in changes if each.key == key)]

    def _side_of(self, node: str) -> str:
        rollout = self._indexes.rollout.peek(())
        if rollout is None or not rollout.changes:
            return ""
        has_new = node in self._canary or (rollout.is_running and rollout.share >= 100)
        return (_CANARY if rollout.held else "") if has_new else _WAITING

    def _sides(self) -> Mapping[str, tuple[NewValue, ...]]:
        """The sides of the rollout with the changes that their clients do not get, by end of an overlay's name."""
        rollout = self._indexes.rollout.peek(())
        if rollout is None or not rollout.changes:
            return {"": ()}
        held = rollout.held
        return {(_CANARY if held else ""): held, _WAITING: rollout.changes}

    def follow(self, domains: Iterable[str], notice: Callable[[], None]) -> None:
        """Call ``notice``, within the write, when what is withheld in one of these domains changes.

        A derived value could tell as well, but each client would need a separate one.
        """
        for domain in domains:
            self._followers.setdefault(domain, {})[notice] = None

    def unfollow(self, domains: Iterable[str], notice: Callable[[], None]) -> None:
        for domain in domains:
            followers = self._followers.get(domain, {})
            followers.pop(notice, None)
            if not followers:
                self._followers.pop(domain, None)

    def write(self, key: Key, items: list[Item]) -> None:
        """The World has this value for an item."""
        for overlay in self._overlays.values():
            with overlay.isolated(key, OBJECT, "/".join(key[1:]) or key[0]):
                overlay.write(key, items)

    def publish(self, changed: Collection[Key]) -> None:
        """Follow what the World has published: the quarantines and the rollout, shards, and stale indexes."""
        if not self._overlays and not any(key[0] in ("quarantine", "rollout") for key in changed):
            return
        for key in changed:
            if key[0] == "quarantine":
                self._regroup(key[1])
                self._tell(key[1])
            elif key[0] == "rollout":
                rollout = self._indexes.rollout.peek(())
                self._canary = frozenset(rollout.canary) if rollout is not None else frozenset()
                for group in (EVERYONE, *self._contents):
                    self._set_overlays(group)
                self._tell(EVERYONE)
        for overlay in self._overlays.values():
            overlay.reshard(self._indexes.shard_bits.peek(()))
            overlay.flush()

    def _regroup(self, domain: str) -> None:
        """Domains from which the very same is withheld are one group, and share its overlays."""
        withheld, old = self._indexes.withheld.peek(domain), self._groups.pop(domain, None)
        if old is not None:
            self._members[old] -= 1
        new = next((group for group, content in self._contents.items() if content == withheld), None)
        if withheld:
            if new is None:
                new = old if old is not None and not self._members[old] else f"quarantine {next(self._numbers)}"
                self._contents[new] = withheld
                self._set_overlays(new)
            self._groups[domain] = new
            self._members[new] += 1
        if old is not None and not self._members[old]:
            del self._members[old], self._contents[old]
            self._set_overlays(old)

    def _set_overlays(self, group: str) -> None:
        """Make the overlays of a group, change them, or end them."""
        withheld, sides = self._contents.get(group, ()), self._sides()
        for side in ("", _CANARY, _WAITING):
            name, old = group + side, sides.get(side)
            if old is None or not (withheld or (old and group == EVERYONE)):
                overlay = self._overlays.pop(name, None)
                if overlay is not None:
                    overlay.close()
                continue
            if name not in self._overlays:
                self._overlays[name] = Overlay(self._memo, self._tables, name.strip(), OwnFailures(self._failed))
            self._overlays[name].withhold(withheld, old, self._current)

    def _tell(self, domain: str) -> None:
        for notice in [*self._followers.get(domain, ())]:
            notice()


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
