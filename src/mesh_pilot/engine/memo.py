"""The memo table itself: cells and derived values.

A write only marks: what is stale is found by walking from the cell to its readers, once, and a walk stops at what is
stale already. A read computes: the reads of the last computation are brought up to date in the order in which they were
made, and the function is called only if one of them really changed. So a burst of edits costs one computation, what
is not read costs none, and a value that comes out equal spares all that is above it.

Reads are kept in a dict of each node, not as edges in a graph next to it: they are needed in their order, because a
later read may only have been made for what an earlier one said, and must not be asked for again if that has changed.
Recomputing everything in topological order, as build tools do, loses here: a mesh has a million values, most edits
touch ten, and which values depend on which is only known once they have been computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Set
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar, cast

from mesh_pilot.engine.declared import Derived, Query
from mesh_pilot.engine.nodes import (
    _UNSET,
    FailedPart,
    Observer,
    _explained,
    _Family,
    _has_value,
    _Node,
    _Read,
    _Reader,
    _readers,
    _watched_above,
    _without_frames,
)
from mesh_pilot.engine.reports import Explanation, MemoStatistics

V = TypeVar("V")

MAX_SEARCHED = 20_000
"""The most values of a function that ``Memo.explain`` searches."""


class _Cell(_Read):
    __slots__ = ("index", "key")

    def __init__(self, index: Index[Any, Any], key: Hashable) -> None:
        self.changed_at = 0
        self.readers = None
        self.index = index
        self.key = key

    def __repr__(self) -> str:
        return f"<{self.index.name}[{self.key!r}]>"

    @property
    def layers(self) -> int:
        """The overlays, as a bit mask, in which it has another value."""
        return self.index._layers_at(self.key)


class CycleError(RuntimeError):
    """A derived value depends on itself."""


K = TypeVar("K", bound=Hashable)


class Index(Generic[K, V]):
    """A named family of cells: a mapping that tracks which values read which key.

    ``index[key] = value`` writes, ``del index[key]`` removes, ``index.read(key)`` is a tracked read that gives the
    default for a missing key. ``peek`` and iteration are for the writer: they are not tracked.
    """

    def __init__(self, memo: Memo, name: str, default: V) -> None:
        self.name = name
        self._memo = memo
        self._default = default
        self._data: dict[K, V] = {}
        self._cells: dict[K, _Cell] = {}
        self._variants: list[IndexVariant[K]] = []

    def read(self, key: K) -> V:
        """The value of a key, or the default. The value that is being computed now depends on it."""
        reads = self._memo._reads
        if reads is not None:
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = _Cell(self, key)
            reads[cell] = None
        return self._data.get(key, self._default)

    def peek(self, key: K) -> V:
        return self._data.get(key, self._default)

    def __setitem__(self, key: K, value: V) -> None:
        if self._data.get(key, self._default) == value:
            return
        if value == self._default:
            del self._data[key]
        else:
            self._data[key] = value
        for variant in self._variants:
            variant.compare(key)
        self._touch(key)

    def _touch(self, key: K) -> None:
        """Mark the readers of this key as stale."""
        cell = self._cells.get(key)
        if cell is not None:
            self._memo._cell_changed(cell)

    def __delitem__(self, key: K) -> None:
        self[key] = self._default

    def __iter__(self) -> Iterator[K]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def items(self) -> Iterator[tuple[K, V]]:
        return iter(self._data.items())

    def snapshot(self) -> dict[K, V]:
        """A copy of all values. No key is hashed again, so that 50,000 take a millisecond."""
        return self._data.copy()

    def _layers_at(self, key: K) -> int:
        """The overlays, as a bit mask, in which this key has another value."""
        return sum(variant.bit for variant in self._variants if key in variant.differing)


class IndexVariant(Protocol[K]):
    """An overlay's version of an index, as the index itself needs to know it."""

    @property
    def bit(self) -> int: ...

    @property
    def differing(self) -> Set[K]: ...

    def compare(self, key: K) -> None:
        """The index has another value for this key."""


class Memo:
    """The memo table. ``view`` is the first argument of all functions."""

    def __init__(self) -> None:
        self.view: Any = None
        self._families: dict[Derived[..., Any], _Family] = {}
        self._indexes: list[Index[Any, Any]] = []
        self._active: _Node | None = None
        """The value that is being computed."""
        self._reads: dict[_Read, None] | None = None
        """The reads of that value so far."""
        self._tick = 0
        self._orphans: set[_Node] = set()
        self._layers: dict[_Node, int] = {}
        """The overlays, as a bit mask, in which a derived value may differ: those of its reads. No entry: none."""
        self._overlays: dict[int, Mapping[Derived[..., Any], _Family]] = {}
        """The derived values of each overlay, by its bit."""
        self._next_bit = 1
        self._failing: dict[_Node, None] = {}
        """The values that raised when they were computed last."""
        self._cut_off = 0
        self._spared = 0

    def index(self, name: str, default: V) -> Index[Any, V]:
        """A new family of cells."""
        index: Index[Any, V] = Index(self, name, default)
        self._indexes.append(index)
        return index

    def index_named(self, name: str) -> Index[Any, Any]:
        return next(index for index in self._indexes if index.name == name)

    def read(self, declared: Derived[..., Any], args: tuple[Any, ...]) -> Any:
        """The value for ``Derived.__call__`` and ``Query.get``."""
        # The same as `_read`, which every read would have to call.
        family = self._families.get(declared)
        node = None if family is None else family.nodes.get(args)
        if node is None:
            node = self._node(declared, args)
        reads = self._reads
        if reads is not None and not node.stale:
            reads[node] = None
        else:
            self._note_read(node)
        if node.error is not None:
            raise node.error.with_traceback(None)
        return node.value

    def _read(self, declared: Derived[..., Any], args: tuple[Any, ...]) -> _Node:
        """The fresh node of a derived value, which whatever is being computed has read."""
        family = self._families.get(declared)
        node = None if family is None else family.nodes.get(args)
        if node is None:
            node = self._node(declared, args)
        self._note_read(node)
        return node

    def _note_read(self, node: _Node) -> None:
        reads = self._reads
        if reads is not None:
            reads[node] = None
        elif node.readers is None:
            self._orphans.add(node)
        if node.stale:
            self._refresh(node)

    def statistics(self) -> MemoStatistics:
        calls: Counter[str] = Counter()
        stored: Counter[str] = Counter()
        for family in self._all_families():
            calls[family.derived.name] += family.calls
            stored[family.derived.name] += len(family.nodes)
        return MemoStatistics(
            cells=sum(len(i._cells) for i in self._indexes),
            derived=stored.total(),
            computed=calls.total(),
            cut_off=self._cut_off,
            spared=self._spared,
            calls=dict(calls),
            held=dict(+stored),
        )

    def explain(self, name: str, containing: str = "", limit: int = 20) -> list[Explanation]:
        """Explain up to ``limit`` values of a function, by its name, whose arguments as text contain ``containing``.

        Searches at most ``MAX_SEARCHED`` values, to bound the time.
        """
        families = (family for family in self._all_families() if family.derived.name == name)
        nodes = islice((node for family in families for node in family.nodes.values()), MAX_SEARCHED)
        return [_explained(node) for node in islice((n for n in nodes if containing in repr(n.args)), limit)]

    def _all_families(self) -> Iterator[_Family]:
        """The families of the table and of all overlays."""
        return chain(self._families.values(), *(families.values() for families in self._overlays.values()))

    def failed_parts(self) -> Iterator[FailedPart]:
        """The values that raised and that a reader does without: it caught the exception, and has a value."""
        for node in list(self._failing):
            readers = [r for r in _readers(node) if isinstance(r, _Node) and _has_value(r)]
            if node.error is not None and readers:
                yield FailedPart(Query(node.family.derived, node.args), node.error, _watched_above(readers))

    @property
    def orphans(self) -> int:
        """The number of derived values that ``collect`` has to check."""
        return len(self._orphans)

    def collect(self, most: int | None = None) -> int:
        """Drop derived values without readers and watches, at ``most`` this many. The number of dropped values.

        Call it between changes only.
        """
        dropped = 0
        while self._orphans and (most is None or dropped < most):
            node = self._orphans.pop()
            if node.readers is not None or node.family.nodes.get(node.args) is not node:
                continue
            del node.family.nodes[node.args]
            self._layers.pop(node, None)
            self._failing.pop(node, None)
            dropped += 1
            for read in node.reads:
                self._unread(read, node)
            node.reads = ()
        return dropped

    # -- the mechanism

    def _node(self, declared: Derived[..., Any], args: tuple[Any, ...]) -> _Node:
        """The node of a derived value, new if there is none."""
        family = self._families.get(declared)
        if family is None:
            family = self._families[declared] = _Family(declared, self.view)
        node = family.nodes.get(args)
        if node is None:
            node = family.nodes[args] = _Node(family, args)
        return node

    def _refresh(self, node: _Node) -> None:
        """Refresh a stale node: its function is only called if one of its reads really changed."""
        if node.computing:
            raise CycleError(f"{node!r} needs itself")
        if node.verified_at >= 0:
            pending: Collection[_Read] = node.pending or ()
            # A read may only have been made because of the value of an earlier one: keep their order.
            order = [read for read in node.reads if read in pending] if len(pending) > 1 else pending
            for read in order:
                if isinstance(read, _Node) and read.stale:
                    node.computing = True
                    try:
                        self._refresh(read)
                    finally:
                        node.computing = False
                if read.changed_at > node.verified_at:
                    break
            else:
                node.pending = None
                node.stale = False
                node.verified_at = self._tick
                self._spared += 1
                return
        self._compute(node)

    def _compute(self, node: _Node) -> None:
        reads: dict[_Read, None] = {}
        outer = self._active, self._reads
        family = node.family
        error: Exception | None = None
        value: Any = _UNSET
        node.pending = None
        node.verified_at = -1
        node.computing = True
        family.calls += 1
        self._active, self._reads = node, reads
        try:
            value = family.function(family.view, *node.args)
        except CycleError:
            # Not stored: the error depends on where the cycle was entered.
            for read in reads:
                if read.readers is None:
                    self._unread(read, node)
            raise
        except Exception as e:
            error = _without_frames(e)
        finally:
            self._active, self._reads = outer
            node.computing = False
        self._record_reads(node, reads)
        node.stale = False
        self._tick += 1
        node.verified_at = self._tick
        has_moved = (self._overlays or self._layers) and not family.is_variant and self._note_layers(node, reads)
        if error is None and node.error is None and node.value is not _UNSET and node.value == value and not has_moved:
            self._cut_off += 1
            return
        if error is not None:
            self._failing[node] = None
        elif node.error is not None:
            del self._failing[node]
        node.error = error
        if error is None:
            node.value = value
        node.changed_at = self._tick

    def _note_layers(self, node: _Node, reads: Iterable[_Read]) -> bool:
        """Record the overlays in which a value may differ; True if they are others than before.

        For readers that counts as a change, because a reader in an overlay needs the value there instead.
        """
        layers = 0
        for read in reads:
            layers |= self._layers.get(read, 0) if isinstance(read, _Node) else cast(_Cell, read).layers
        if layers == self._layers.get(node, 0):
            return False
        if layers:
            self._layers[node] = layers
        else:
            del self._layers[node]
        return True

    def _record_reads(self, node: _Node, reads: dict[_Read, None]) -> None:
        before = node.reads
        node.reads = tuple(reads)
        for read in reads:
            if read.readers is None:
                read.readers = node
            else:
                read.join(node)
        for read in before:
            if read not in reads:
                self._unread(read, node)

    def _unread(self, read: _Read, reader: _Reader) -> None:
        read.leave(reader)
        if read.readers is None:
            if isinstance(read, _Node):
                self._orphans.add(read)
            elif isinstance(read, _Cell):
                read.index._cells.pop(read.key, None)

    def _cell_changed(self, cell: _Cell) -> None:
        if self._active is not None:
            raise RuntimeError(f"{cell!r} was written while {self._active!r} was being computed")
        self._tick += 1
        cell.changed_at = self._tick
        stack: list[_Read] = [cell]
        while stack:
            read = stack.pop()
            readers = read.readers
            for reader in readers if isinstance(readers, set) else () if readers is None else (readers,):
                if reader.pending is None:
                    reader.pending = {read}
                else:
                    reader.pending.add(read)
                if not reader.stale:
                    reader.stale = True
                    if isinstance(reader, _Node):
                        stack.append(reader)
                    else:
                        cast(Observer, reader).notice()
