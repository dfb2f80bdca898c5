"""Watches: what keeps derived values alive, and learns which of them may have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from mesh_pilot.engine.declared import Query
from mesh_pilot.engine.memo import Memo
from mesh_pilot.engine.nodes import Observer, _Node
from mesh_pilot.engine.overlay import MemoOverlay

T = TypeVar("T")

Layer = Memo | MemoOverlay
"""A memo table, or a variant of it."""


class Watch(Observer):
    """Keeps derived values alive, and reports when any of them may have changed.

    ``on_stale`` is called within the write that caused the change, and must not read or write. It is not called again
    until ``take`` was called.
    """

    __slots__ = ("_memo", "_on_stale", "_overlay", "_watched")

    def __init__(self, layer: Layer, on_stale: Callable[[], None]) -> None:
        super().__init__()
        self._overlay = layer if isinstance(layer, MemoOverlay) else None
        self._memo = layer.memo if isinstance(layer, MemoOverlay) else layer
        self._on_stale = on_stale
        self._watched: dict[_Node, None] = {}

    def get(self, query: Query[T]) -> T:
        """The value, and watch it from now on. Must not be called from a derived function.

        Raises the exception that the function raised.
        """
        memo, overlay = self._memo, self._overlay
        assert memo._active is None
        node = self._watch(memo._node(query.derived, query.args))
        if overlay is not None:
            if overlay.differs(node):
                node = self._watch(overlay.variant(node))
            elif (variant := overlay.known_variant(node)) is not None:
                self._drop(variant)
        if node.error is not None:
            raise node.error.with_traceback(None)
        return cast(T, node.value)

    def _watch(self, node: _Node) -> _Node:
        """Watch a node from now on, and bring it up to date."""
        if node not in self._watched:
            self._watched[node] = None
            node.join(self)
        if self.pending:
            self.pending.discard(node)
        if node.stale:
            self._memo._refresh(node)
        return node

    def drop(self, query: Query[Any]) -> None:
        """Stop watching a value."""
        family = self._memo._families.get(query.derived)
        node = None if family is None else family.nodes.get(query.args)
        if node is None:
            return
        self._drop(node)
        if self._overlay is not None and (variant := self._overlay.known_variant(node)) is not None:
            self._drop(variant)

    def _drop(self, node: _Node) -> None:
        if node in self._watched:
            del self._watched[node]
            if self.pending:
                self.pending.discard(node)
            self._memo._unread(node, self)

    def take(self) -> list[Query[Any]]:
        """The watched values that may have changed since the last call. ``get`` or ``drop`` each of them."""
        queries = [Query(n.family.derived, n.args) for n in self.pending or () if isinstance(n, _Node)]
        if self._overlay is not None:
            queries = list(dict.fromkeys(queries))
        self.pending = None
        self.stale = False
        return queries

    def __repr__(self) -> str:
        return f"<Watch of {len(self._watched)} values>"

    def close(self) -> None:
        """Stop watching all values."""
        for _ in self.close_slowly():
            pass

    def close_slowly(self) -> Iterator[None]:
        """Stop watching all values, one at each step."""
        while self._watched:
            node, _ = self._watched.popitem()
            if self.pending:
                self.pending.discard(node)
            self._memo._unread(node, self)
            yield
        self._watched = {}
        self.pending = None

    def notice(self) -> None:
        self._on_stale()
