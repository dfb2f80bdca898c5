"""The memo table: derived values that remember what they read, and are computed again only when that changed.

Three things live here. *Cells* hold input, written from outside (an index key of the World). *Derived values* are
results of pure functions ``f(view, *args)``; every cell and derived value that ``f`` read is noted, a miss as well
as a hit. A *Watch* stands at the other end: it keeps derived values alive and learns which of them may have changed.

When a cell changes, whatever read it, directly or through others, is marked stale, each with the few reads that may
be to blame; nothing is computed. When a stale value is asked for, those reads are brought up to date in the order
in which they were made, and only if one really came out different is the function called again; if its result is
equal to the last one, what depends on it is not called (early cut-off). The work done is thus proportional to what
a change touches, not to how much was derived.

Functions must be pure: the same reads give an equal value. An exception is remembered like a value, and raised to
whoever asks, until one of the reads changes. Not safe for use from several threads. Knows nothing of meshes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import attrs

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

_UNSET: Any = type("_Unset", (), {"__repr__": lambda self: "<not computed>"})()

Query = tuple[Callable[..., Any], tuple[Any, ...]]
"""A derived value's identity: the function and its arguments."""


class _Read:
    """Something that can be read: it knows its readers and when it last changed."""

    __slots__ = ("changed_at", "readers")

    def __init__(self) -> None:
        self.changed_at = 0
        self.readers: _Reader | set[_Reader] | None = None
        """Most have just one: a set would be the larger part of what they take."""

    def join(self, reader: _Reader) -> None:
        held = self.readers
        if held is None:
            self.readers = reader
        elif isinstance(held, set):
            held.add(reader)
        elif held is not reader:
            self.readers = {held, reader}

    def leave(self, reader: _Reader) -> None:
        held = self.readers
        if isinstance(held, set):
            held.discard(reader)
            if not held:
                self.readers = None
        elif held is reader:
            self.readers = None


class _Reader(_Read):
    """Something that also reads; it knows which of its reads may have changed since it was last up to date."""

    __slots__ = ("pending", "stale")

    def __init__(self) -> None:
        super().__init__()
        self.pending: set[_Read] | None = None
        self.stale = False


class _Cell(_Read):
    __slots__ = ("index", "key")

    def __init__(self, index: Index[Any, Any], key: Hashable) -> None:
        self.changed_at = 0
        self.readers = None
        self.index = index
        self.key = key

    def __repr__(self) -> str:
        return f"<{self.index.name}[{self.key!r}]>"


class _Family:
    """The derived values of one function."""

    __slots__ = ("calls", "function", "nodes")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.nodes: dict[tuple[Any, ...], _Node] = {}
        self.calls = 0


class _Node(_Reader):
    """A derived value. There are many: each field counts."""

    __slots__ = ("args", "computing", "error", "family", "reads", "value", "verified_at")

    def __init__(self, family: _Family, args: tuple[Any, ...]) -> None:
        self.changed_at = 0
        self.readers = None
        self.pending = None
        self.stale = True
        self.family = family
        self.args = args
        self.reads: tuple[_Read, ...] = ()
        """What the last call read, in the order of the first reads."""
        self.value: Any = _UNSET
        self.error: Exception | None = None
        self.verified_at = -1
        """When it was last up to date; -1 where that can't be told without a call."""
        self.computing = False

    def __repr__(self) -> str:
        state = "stale" if self.stale else "fresh"
        return f"<{self.family.function.__name__}{self.args!r} {state}>"


class CycleError(RuntimeError):
    """A derived value that needs itself."""


@attrs.frozen
class MemoStatistics:
    """How much is remembered and how much work was done."""

    cells: int
    """Input keys that something read."""
    derived: int
    """Derived values held."""
    computed: int
    """Calls of functions since the start."""
    cut_off: int
    """Calls whose result was equal to the last one, so that nothing above was called."""
    spared: int
    """Stale values that turned out unchanged without a call."""
    calls: dict[str, int]
    """Calls by function name."""
    held: dict[str, int]
    """Derived values held, by function name."""


K = TypeVar("K", bound=Hashable)


class Index(Generic[K, V]):
    """A family of cells under one name: a mapping that notes who reads which key.

    ``index[key] = value`` writes, ``del index[key]`` removes, ``index.read(key)`` is a tracked read that gives the
    default for a missing key. ``peek`` and iteration are for the writer: they are not tracked.
    """

    def __init__(self, memo: Memo, name: str, default: V) -> None:
        self.name = name
        self._memo = memo
        self._default = default
        self._data: dict[K, V] = {}
        self._cells: dict[K, _Cell] = {}

    def read(self, key: K) -> V:
        """The value of a key, or the default; whoever is being computed now depends on it."""
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


class Memo:
    """The table. ``view`` is what functions get as their first argument: whatever reads the indexes for them."""

    def __init__(self) -> None:
        self.view: Any = None
        self._families: dict[Callable[..., Any], _Family] = {}
        self._indexes: list[Index[Any, Any]] = []
        self._active: _Node | None = None
        """What is being computed."""
        self._reads: dict[_Read, None] | None = None
        """What it has read so far."""
        self._tick = 0
        self._orphans: set[_Node] = set()
        self._cut_off = 0
        self._spared = 0

    def index(self, name: str, default: V) -> Index[Any, V]:
        """A new family of cells."""
        index: Index[Any, V] = Index(self, name, default)
        self._indexes.append(index)
        return index

    def get(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **_kwargs: P.kwargs) -> T:
        """The value of ``function(view, *args)``, from memory where nothing it read has changed.

        Raises what the function raised.
        """
        if _kwargs:
            raise TypeError("a derived value's key is positional")
        family = self._families.get(function)
        node = None if family is None else family.nodes.get(args)
        if node is None:
            node = self._node(function, args)
        reads = self._reads
        if reads is not None:
            reads[node] = None
        elif node.readers is None:
            self._orphans.add(node)
        if node.stale:
            self._refresh(node)
        if node.error is not None:
            raise node.error
        return cast(T, node.value)

    def advance(self) -> int:
        """The next moment of the table's own clock, which orders changes; no two calls give the same."""
        self._tick += 1
        return self._tick

    def statistics(self) -> MemoStatistics:
        calls: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for function, family in self._families.items():
            calls[function.__name__] += family.calls
            held[function.__name__] += len(family.nodes)
        return MemoStatistics(
            cells=sum(len(i._cells) for i in self._indexes),
            derived=held.total(),
            computed=calls.total(),
            cut_off=self._cut_off,
            spared=self._spared,
            calls=dict(calls),
            held=dict(+held),
        )

    def collect(self) -> int:
        """Forget derived values that nothing reads and nobody watches; returns how many. Call between changes."""
        forgotten = 0
        while self._orphans:
            node = self._orphans.pop()
            if node.readers is not None or node.family.nodes.get(node.args) is not node:
                continue
            del node.family.nodes[node.args]
            forgotten += 1
            for read in node.reads:
                self._unread(read, node)
            node.reads = ()
        return forgotten

    # -- the mechanism

    def _node(self, function: Callable[..., Any], args: tuple[Any, ...]) -> _Node:
        """The node of a derived value, made where there is none."""
        family = self._families.get(function)
        if family is None:
            family = self._families[function] = _Family(function)
        node = family.nodes.get(args)
        if node is None:
            node = family.nodes[args] = _Node(family, args)
        return node

    def _refresh(self, node: _Node) -> None:
        """Bring a stale node up to date, calling its function only if a read of it really changed."""
        if node.computing:
            raise CycleError(f"{node!r} needs itself")
        if node.verified_at >= 0:
            pending: Collection[_Read] = node.pending or ()
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
            value = family.function(self.view, *node.args)
        except CycleError:
            for read in reads:
                if read.readers is None:
                    self._unread(read, node)
            raise
        except Exception as e:
            error = e.with_traceback(None)
        finally:
            self._active, self._reads = outer
            node.computing = False
        self._note_reads(node, reads)
        node.stale = False
        self._tick += 1
        node.verified_at = self._tick
        if error is None and node.error is None and node.value is not _UNSET and node.value == value:
            self._cut_off += 1
            return
        node.error = error
        if error is None:
            node.value = value
        node.changed_at = self._tick

    def _note_reads(self, node: _Node, reads: dict[_Read, None]) -> None:
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
            held = read.readers
            for reader in held if isinstance(held, set) else () if held is None else (held,):
                if reader.pending is None:
                    reader.pending = {read}
                else:
                    reader.pending.add(read)
                if not reader.stale:
                    reader.stale = True
                    if isinstance(reader, _Node):
                        stack.append(reader)
                    else:
                        cast(Watch, reader)._stale()


class Watch(_Reader):
    """Keeps derived values alive and tells, once, when any of them may have changed.

    ``on_stale`` is called from within the write that caused it, and must not read or write. After that nothing more
    is said until ``take`` was called.
    """

    __slots__ = ("_memo", "_on_stale", "_watched")

    def __init__(self, memo: Memo, on_stale: Callable[[], None]) -> None:
        super().__init__()
        self._memo = memo
        self._on_stale = on_stale
        self._watched: dict[_Node, None] = {}

    def get(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **_kwargs: P.kwargs) -> T:
        """As ``Memo.get``; the value is watched from now on. Must not be called from a derived function."""
        memo = self._memo
        assert memo._active is None
        node = memo._node(function, args)
        if node not in self._watched:
            self._watched[node] = None
            node.join(self)
        if self.pending:
            self.pending.discard(node)
        if node.stale:
            memo._refresh(node)
        if node.error is not None:
            raise node.error
        return cast(T, node.value)

    def drop(self, function: Callable[..., Any], *args: Any) -> None:
        """Watch a value no more."""
        family = self._memo._families.get(function)
        node = None if family is None else family.nodes.get(args)
        if node is not None and node in self._watched:
            del self._watched[node]
            if self.pending:
                self.pending.discard(node)
            self._memo._unread(node, self)

    def take(self) -> list[Query]:
        """The watched values that may have changed since the last call. Get each again, or drop it."""
        queries = [(n.family.function, n.args) for n in self.pending or () if isinstance(n, _Node)]
        self.pending = None
        self.stale = False
        return queries

    def close(self) -> None:
        """Watch nothing more."""
        for node in self._watched:
            self._memo._unread(node, self)
        self._watched = {}
        self.pending = None

    def _stale(self) -> None:
        self._on_stale()
