"""Functions whose latest results are kept, as long as all that they keep is not too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NAMES_KEPT = 100_000
"""How many names the results of a function may have together: ten of a mesh with 10,000 services, a thousand of
scopes with 100."""

_all: list[Kept[..., Any]] = []

_MARK = object()
"""Stands among the keys where the last ``trim`` was."""


def forget() -> None:
    """Keep nothing of what was kept so far."""
    for each in _all:
        each.clear()


def trim() -> int:
    """Keep nothing that was not asked for since the last call; returns how much that was, in names."""
    return sum([each.trim() for each in _all])


class Kept(Generic[P, T]):
    """A function of immutable values that remembers its latest results.

    State: those, least recently used first, and their weight. Before the mark are those not used since ``trim``.
    """

    def __init__(self, function: Callable[P, T], weigh: Callable[P, int]) -> None:
        """``weigh`` gives the names that a result has, from the same arguments."""
        self._function = function
        self._weigh = weigh
        self._results: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._weight = 0
        _all.append(self)

    def __repr__(self) -> str:
        return f"<Kept {self._function.__name__}: {len(self._results.keys() - {_MARK})} results, {self._weight} names>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        found = self._results.get(args)
        if found is not None:
            self._results.move_to_end(args)
            known: T = found[0]
            return known
        result, weight = self._function(*args, **kwargs), self._weigh(*args, **kwargs) + 1
        self._results[args] = (result, weight)
        self._weight += weight
        while self._weight > NAMES_KEPT and len(self._results) > 1:
            _, (_, weight) = self._results.popitem(last=False)
            self._weight -= weight
        return result

    def trim(self) -> int:
        """Forget results that were not used since the last call; returns their weight."""
        before = self._weight
        if _MARK in self._results:
            while (first := next(iter(self._results))) is not _MARK:
                self._weight -= self._results.pop(first)[1]
            self._results.move_to_end(_MARK)
        else:
            self._results[_MARK] = (None, 0)
        return before - self._weight

    def clear(self) -> None:
        self._results.clear()
        self._weight = 0


def kept(weigh: Callable[P, int]) -> Callable[[Callable[P, T]], Kept[P, T]]:
    """Decorates a function of positional arguments."""
    return lambda function: Kept(function, weigh)
