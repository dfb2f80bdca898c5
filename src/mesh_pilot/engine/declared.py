"""How derived values are declared and named: ``@derived``, ``Query`` and ``ByName``. A memo table computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ValueReader(Protocol):
    """The part of a memo table by which a derived function reads another."""

    def read(self, declared: Derived[..., Any], args: tuple[Any, ...], /) -> Any: ...


class MemoView(Protocol):
    """The first argument of a derived function: it reads the indexes of one memo table."""

    @property
    def memo(self) -> ValueReader: ...


class Derived(Generic[P, T_co]):
    """A pure function of a view and hashable arguments, whose results a memo table stores."""

    compute: Callable[Concatenate[Any, P], T_co]
    """The function itself: for callers that need the value only once, or whose reads its reads have to be."""

    def __init__(self, function: Callable[Concatenate[Any, P], T_co]) -> None:
        self.compute = function
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<derived {self.__module__}.{self.name}>"

    @property
    def name(self) -> str:
        return self.compute.__name__

    def __call__(self, view: MemoView, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """The value, from the memo table unless one of its reads changed. Arguments are positional.

        Raises the exception that the function raised.
        """
        if kwargs:
            raise TypeError("the arguments of a derived value are positional: they are its key")
        found: T_co = view.memo.read(self, args)  # no cast: a call for each read is a part of what a read takes
        return found

    def query(self, *args: P.args, **kwargs: P.kwargs) -> Query[T_co]:
        """The value's identity. Arguments are positional."""
        if kwargs:
            raise TypeError("the arguments of a derived value are positional: they are its key")
        return Query(self, args)


def derived(function: Callable[Concatenate[Any, P], T]) -> Derived[P, T]:
    """Declare that memo tables store the results of ``function(view, *args)``."""
    return Derived(function)


class Query(NamedTuple, Generic[T_co]):
    """The identity of a derived value: function and arguments. Cheap to make, to hash and to compare."""

    derived: Derived[..., T_co]
    args: tuple[Any, ...]

    def get(self, view: MemoView) -> T_co:
        """The value. Raises the exception that the function raised."""
        found: T_co = view.memo.read(self.derived, self.args)
        return found

    def compute(self, view: MemoView) -> T_co:
        """The value, computed now and not stored."""
        return self.derived.compute(view, *self.args)

    def __repr__(self) -> str:
        return f"{self.derived.name}({', '.join(map(repr, self.args))})"


class ByName(NamedTuple, Generic[T_co]):
    """Derived values that differ in their last argument, the name of a resource. See ``by_name``."""

    derived: Derived[..., T_co]
    args: tuple[Any, ...]
    """All arguments but the name."""

    def query(self, name: str) -> Query[T_co]:
        return Query(self.derived, (*self.args, name))


NAME = "<name>"
"""The placeholder for the name in ``by_name``."""


def by_name(query: Query[T]) -> ByName[T]:
    """``by_name(cluster.query(scope, NAME))``: the clusters of a scope, of any name."""
    *args, name = query.args
    if name is not NAME:
        raise ValueError(f"the last argument of {query!r} must be NAME")
    return ByName(query.derived, tuple(args))
