"""Overlays: a memo table as it would be if some cells had other values.

An overlay has its own version of each index. Derived values are shared with the table, except those that read, directly
or through others, a cell that differs: these are computed for the overlay as well. So an overlay costs what differs.

How it knows: the table records for each of its values the overlays in which a read of it differs (``Memo._layers``),
as if that were a part of the value. A function whose reads are all the same in the overlay has the same result there,
because it is pure; so its value stands for both. A read through an overlay first brings the table's own value up to
date, and depends on it in any case, because that decides which of the two counts.
"""

from __future__ import annotations

from typing import Any, TypeVar

from mesh_pilot.engine.declared import Derived
from mesh_pilot.engine.memo import Index, K, Memo, V
from mesh_pilot.engine.nodes import _Family, _Node

T = TypeVar("T")


class IndexOverlay(Index[K, V]):
    """An overlay's version of an index; begins as a copy. ``differing`` are the keys with another value than the
    index has."""

    def __init__(self, base: Index[K, V], bit: int) -> None:
        super().__init__(base._memo, base.name, base._default)
        self.bit = bit
        self.differing: set[K] = set()
        self._base = base
        self._data = dict(base._data)
        base._variants.append(self)

    def read(self, key: K) -> V:
        self._base.read(key)
        return self._data.get(key, self._default)

    def __setitem__(self, key: K, value: V) -> None:
        if self._data.get(key, self._default) == value:
            return
        if value == self._default:
            del self._data[key]
        else:
            self._data[key] = value
        self.compare(key)
        self._base._touch(key)

    def compare(self, key: K) -> None:
        if self._data.get(key, self._default) == self._base.peek(key):
            self.differing.discard(key)
        else:
            self.differing.add(key)

    def close(self) -> None:
        self._base._variants.remove(self)
        for key in self.differing:
            self._base._touch(key)


class MemoOverlay:
    """A variant of a memo table. ``view`` is the first argument of all functions that are computed for it.

    Mutable state: its indexes, and the derived values that differ.
    """

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self.view: Any = None
        self.bit = memo._next_bit
        memo._next_bit <<= 1  # never used again: a reader may outlive its overlay
        self._indexes: list[IndexOverlay[Any, Any]] = []
        self._families: dict[Derived[..., Any], _Family] = {}
        memo._overlays[self.bit] = self._families

    def __repr__(self) -> str:
        differing = sum(len(index.differing) for index in self._indexes)
        values = sum(len(family.nodes) for family in self._families.values())
        return f"<MemoOverlay of {differing} cells, {values} values>"

    def index(self, name: str, default: V) -> Index[Any, V]:
        """The overlay's version of the table's index of this name."""
        index = IndexOverlay(self.memo.index_named(name), self.bit)
        self._indexes.append(index)
        return index

    def read(self, declared: Derived[..., Any], args: tuple[Any, ...]) -> Any:
        """The value for ``Derived.__call__`` and ``Query.get``."""
        node = self.memo._read(declared, args)
        if self.differs(node):
            node = self.variant(node)
            self.memo._note_read(node)
        if node.error is not None:
            raise node.error.with_traceback(None)
        return node.value

    def differs(self, node: _Node) -> bool:
        """True if a value of the table, which must be fresh, has a variant here."""
        return bool(self.memo._layers.get(node, 0) & self.bit)

    def variant(self, node: _Node) -> _Node:
        """The variant of a value of the table."""
        declared = node.family.derived
        family = self._families.get(declared)
        if family is None:
            family = self._families[declared] = _Family(declared, self.view, is_variant=True)
        found = family.nodes.get(node.args)
        if found is None:
            found = family.nodes[node.args] = _Node(family, node.args)
        return found

    def known_variant(self, node: _Node) -> _Node | None:
        """The variant if it exists."""
        family = self._families.get(node.family.derived)
        return None if family is None else family.nodes.get(node.args)

    def close(self) -> None:
        """End the overlay: nothing differs any more. Whoever still reads it gets the values of the table."""
        for index in self._indexes:
            index.close()
        self.memo._overlays.pop(self.bit, None)
        for family in self._families.values():
            for node in family.nodes.values():
                for read in node.reads:
                    self.memo._unread(read, node)
                node.reads = ()
                self.memo._failing.pop(node, None)
            family.nodes.clear()
        self._families.clear()
