"""The nodes of a memo table: values with their reads and readers."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator
from typing import Any

import attrs

from mesh_pilot.engine.declared import Derived, Query
from mesh_pilot.engine.reports import Explanation

_UNSET: Any = type("_Unset", (), {"__repr__": lambda self: "<not computed>"})()

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_FRAMES = 12
"""The number of innermost calls that are stored with an exception."""


class _Read:
    """A cell or derived value: it has readers, and the time of its last change."""

    __slots__ = ("changed_at", "readers")

    def __init__(self) -> None:
        self.changed_at = 0
        self.readers: _Reader | set[_Reader] | None = None
        """Most have only one reader, and a set would take most of their memory."""

    def join(self, reader: _Reader) -> None:
        readers = self.readers
        if readers is None:
            self.readers = reader
        elif isinstance(readers, set):
            readers.add(reader)
        elif readers is not reader:
            self.readers = {readers, reader}

    def leave(self, reader: _Reader) -> None:
        readers = self.readers
        if isinstance(readers, set):
            readers.discard(reader)
            if not readers:
                self.readers = None
        elif readers is reader:
            self.readers = None


class _Reader(_Read):
    """A derived value or watch: ``pending`` are the reads that may have changed since it was last fresh."""

    __slots__ = ("pending", "stale")

    def __init__(self) -> None:
        super().__init__()
        self.pending: set[_Read] | None = None
        self.stale = False


class Observer(_Reader):
    """A reader outside of the table; ``Watch`` is the one there is."""

    __slots__ = ()

    def notice(self) -> None:
        """Called when it has become stale."""


class _Family:
    """The derived values of one function, in the table or in one of its overlays."""

    __slots__ = ("calls", "derived", "function", "is_variant", "nodes", "view")

    def __init__(self, declared: Derived[..., Any], view: Any, *, is_variant: bool = False) -> None:
        self.derived = declared
        self.function = declared.compute
        self.view = view
        self.is_variant = is_variant
        """True for the values of an overlay."""
        self.nodes: dict[tuple[Any, ...], _Node] = {}
        self.calls = 0


class _Node(_Reader):
    """A derived value. There are many: each slot costs memory."""

    __slots__ = ("args", "computing", "error", "family", "reads", "value", "verified_at")

    def __init__(self, family: _Family, args: tuple[Any, ...]) -> None:
        self.changed_at = 0
        self.readers = None
        self.pending = None
        self.stale = True
        self.family = family
        self.args = args
        self.reads: tuple[_Read, ...] = ()
        """The reads of the last call, in the order of the first reads."""
        self.value: Any = _UNSET
        self.error: Exception | None = None
        self.verified_at = -1
        """When it was last fresh; -1 if that is unknown until the next call."""
        self.computing = False

    def __repr__(self) -> str:
        state = "stale" if self.stale else "fresh"
        return f"<{Query(self.family.derived, self.args)!r} {state}>"


def _readers(read: _Read) -> Collection[_Reader]:
    readers = read.readers
    return readers if isinstance(readers, set) else () if readers is None else (readers,)


def _has_value(node: _Node) -> bool:
    return node.error is None and not node.stale


def _watched_above(nodes: Collection[_Node]) -> Iterator[tuple[Observer, Query[Any]]]:
    """The watched values that values have gone into, each with its watch."""
    stack, seen = list(nodes), set(nodes)
    while stack:
        node = stack.pop()
        for reader in _readers(node):
            if isinstance(reader, Observer):
                yield reader, Query(node.family.derived, node.args)
            elif isinstance(reader, _Node) and reader not in seen and _has_value(reader):
                seen.add(reader)
                stack.append(reader)


def _without_frames(error: Exception) -> Exception:
    """The exception with its traceback as a note: frames would keep alive everything that their variables refer to.

    An exception that passes through several functions has the note of the innermost.
    """
    if not any(note.startswith(TRACEBACK) for note in getattr(error, "__notes__", ())):
        error.add_note("".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES)).rstrip())
    earlier = error.__cause__ or error.__context__
    while earlier is not None and earlier.__traceback__ is not None:
        earlier.__traceback__ = None
        earlier = earlier.__cause__ or earlier.__context__
    return error.with_traceback(None)


def _explained(node: _Node) -> Explanation:
    before = [read for read in node.reads if read.changed_at <= node.changed_at]
    return Explanation(
        query=repr(Query(node.family.derived, node.args)),
        state="failed" if node.error is not None else "stale" if node.stale else "fresh",
        computed_at=node.changed_at,
        cause=_named(max(before, key=lambda read: read.changed_at)) if before else "",
        reads=tuple(map(_named, node.reads)),
        readers=tuple(sorted(map(_named, _readers(node)))),
    )


def _named(read: _Read) -> str:
    return repr(Query(read.family.derived, read.args)) if isinstance(read, _Node) else repr(read)


@attrs.frozen
class FailedPart:
    """A value that raised, and that others are made without."""

    query: Query[Any]
    error: Exception
    concerns: Iterator[tuple[Observer, Query[Any]]]
    """The watched values that are made without it. Searched for as they are read."""
