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
from collections.abc import Callable, Hashable, Iterator
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
        self.readers: set[_Reader] = set()


class _Reader(_Read):
    """Something that also reads: what it read, in order, and which of those reads may have changed since."""

    __slots__ = ("pending", "reads", "stale")

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[_Read, int] = {}
        self.pending: set[_Read] = set()
        self.stale = False


class _Cell(_Read):
    __slots__ = ("index", "key")

    def __init__(self, index: Index[Any, Any], key: Hashable) -> None:
        super().__init__()
        self.index = index
        self.key = key

    def __repr__(self) -> str:
        return f"<{self.index.name}[{self.key!r}]>"


class _Node(_Reader):
    """A derived value."""

    __slots__ = ("args", "computing", "error", "function", "value", "verified_at")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.function = function
        self.args = args
        self.value: Any = _UNSET
        self.error: Exception | None = None
        self.verified_at = -1
        self.computing = False
        self.stale = True

    def __repr__(self) -> str:
        state = "stale" if self.stale else "fresh"
        return f"<{self.function.__name__}{self.args!r} {state}>"


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
        reader = self._memo._active
        if reader is not None:
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = _Cell(self, key)
            if cell not in reader.reads:
                reader.reads[cell] = len(reader.reads)
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
        self._nodes: dict[Query, _Node] = {}
        self._indexes: list[Index[Any, Any]] = []
        self._active: _Reader | None = None
        self._tick = 0
        self._orphans: set[_Node] = set()
        self._calls: Counter[str] = Counter()
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
        query = (function, args)
        node = self._nodes.get(query)
        if node is None:
            node = self._nodes[query] = _Node(function, args)
        reader = self._active
        if reader is not None:
            if node not in reader.reads:
                reader.reads[node] = len(reader.reads)
        elif not node.readers:
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
        return MemoStatistics(
            cells=sum(len(i._cells) for i in self._indexes),
            derived=len(self._nodes),
            computed=sum(self._calls.values()),
            cut_off=self._cut_off,
            spared=self._spared,
            calls=dict(self._calls),
        )

    def collect(self) -> int:
        """Forget derived values that nothing reads and nobody watches; returns how many. Call between changes."""
        forgotten = 0
        while self._orphans:
            node = self._orphans.pop()
            if node.readers or self._nodes.get((node.function, node.args)) is not node:
                continue
            del self._nodes[(node.function, node.args)]
            forgotten += 1
            for read in node.reads:
                self._unread(read, node)
            node.reads = {}
        return forgotten

    # -- the mechanism

    def _refresh(self, node: _Node) -> None:
        """Bring a stale node up to date, calling its function only if a read of it really changed."""
        if node.computing:
            raise CycleError(f"{node!r} needs itself")
        if node.verified_at >= 0:
            pending = node.pending
            order = sorted(pending, key=node.reads.__getitem__) if len(pending) > 1 else pending
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
                pending.clear()
                node.stale = False
                node.verified_at = self._tick
                self._spared += 1
                return
        self._compute(node)

    def _compute(self, node: _Node) -> None:
        before = node.reads
        node.reads = {}
        node.pending.clear()
        node.computing = True
        outer, self._active = self._active, node
        error: Exception | None = None
        value: Any = _UNSET
        self._calls[node.function.__name__] += 1
        try:
            value = node.function(self.view, *node.args)
        except CycleError:
            node.reads, before = before, node.reads
            node.verified_at = -1
            raise
        except Exception as e:
            error = e.with_traceback(None)
        finally:
            self._active = outer
            node.computing = False
            for read in node.reads:
                if read not in before:
                    read.readers.add(node)
            for read in before:
                if read not in node.reads:
                    self._unread(read, node)
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

    def _unread(self, read: _Read, reader: _Reader) -> None:
        read.readers.discard(reader)
        if not read.readers:
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
            for reader in read.readers:
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

    __slots__ = ("_memo", "_on_stale")

    def __init__(self, memo: Memo, on_stale: Callable[[], None]) -> None:
        super().__init__()
        self._memo = memo
        self._on_stale = on_stale

    def get(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **_kwargs: P.kwargs) -> T:
        """As ``Memo.get``; the value is watched from now on. Must not be called from a derived function."""
        memo = self._memo
        assert memo._active is None
        query = (function, args)
        node = memo._nodes.get(query)
        if node is None:
            node = memo._nodes[query] = _Node(function, args)
        if node not in self.reads:
            self.reads[node] = len(self.reads)
            node.readers.add(self)
        self.pending.discard(node)
        if node.stale:
            memo._refresh(node)
        if node.error is not None:
            raise node.error
        return cast(T, node.value)

    def drop(self, function: Callable[..., Any], *args: Any) -> None:
        """Watch a value no more."""
        node = self._memo._nodes.get((function, args))
        if node is not None and self.reads.pop(node, None) is not None:
            self.pending.discard(node)
            self._memo._unread(node, self)

    def take(self) -> list[Query]:
        """The watched values that may have changed since the last call. Get each again, or drop it."""
        queries = [(n.function, n.args) for n in self.pending if isinstance(n, _Node)]
        self.pending.clear()
        self.stale = False
        return queries

    def close(self) -> None:
        """Watch nothing more."""
        for read in self.reads:
            self._memo._unread(read, self)
        self.reads = {}
        self.pending.clear()

    def _stale(self) -> None:
        self._on_stale()
