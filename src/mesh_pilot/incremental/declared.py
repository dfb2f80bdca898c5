"""How derived values are declared and named: ``@derived``, ``Query`` and ``ByName``. A memo table computes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Reader(Protocol):
    """What a memo table does for a derived function that reads another."""

    def read(self, declared: Derived[..., Any], args: tuple[Any, ...], /) -> Any: ...


class View(Protocol):
    """The first argument of a derived function: whatever reads the indexes of one memo table for it."""

    @property
    def memo(self) -> Reader: ...


class Derived(Generic[P, T_co]):
    """A pure function of a view and of arguments that can be hashed, whose results a memo table remembers."""

    compute: Callable[Concatenate[Any, P], T_co]
    """The function itself: for a caller that has use for the value once, or has to be charged with the reads."""

    def __init__(self, function: Callable[Concatenate[Any, P], T_co]) -> None:
        self.compute = function
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<derived {self.__module__}.{self.name}>"

    @property
    def name(self) -> str:
        return self.compute.__name__

    def __call__(self, view: View, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """The value, from memory where nothing it read has changed. Arguments are positional.

        Raises what the function raised.
        """
        if kwargs:
            raise TypeError("the arguments of a derived value are positional: they are its key")
        return cast(T_co, view.memo.read(self, args))

    def query(self, *args: P.args, **kwargs: P.kwargs) -> Query[T_co]:
        """The value's identity. Arguments are positional."""
        if kwargs:
            raise TypeError("the arguments of a derived value are positional: they are its key")
        return Query(self, args)


def derived(function: Callable[Concatenate[Any, P], T]) -> Derived[P, T]:
    """Declare that a memo table remembers the results of ``function(view, *args)``."""
    return Derived(function)


class Query(NamedTuple, Generic[T_co]):
    """A derived value's identity: what derives it, and its arguments. Cheap to make, to hash and to compare."""

    derived: Derived[..., T_co]
    args: tuple[Any, ...]

    def get(self, view: View) -> T_co:
        """The value. Raises what the function raised."""
        return cast(T_co, view.memo.read(self.derived, self.args))

    def compute(self, view: View) -> T_co:
        """The value, computed now and not remembered."""
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
"""Stands for the name in ``by_name``."""


def by_name(query: Query[T]) -> ByName[T]:
    """``by_name(cluster.query(scope, NAME))``: the clusters of a scope, whatever their names."""
    *args, name = query.args
    if name is not NAME:
        raise ValueError(f"the last argument of {query!r} must be NAME")
    return ByName(query.derived, tuple(args))
