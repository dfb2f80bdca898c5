"""A value that one task sets and others wait for; and waiting for the first of several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Observable(Generic[T]):
    """The current value, and waiting for another. A waiter that is slow misses values in between, never the last."""

    def __init__(self, value: T) -> None:
        self._value = value
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Observable {type(self._value).__name__}>"

    @property
    def value(self) -> T:
        return self._value

    def set(self, value: T) -> None:
        """Replace the value. An equal one is not a change."""
        if value is self._value or value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = trio.Event()

    def changes(self) -> AsyncIterator[T]:
        """The current value, then each later one. May be left at any time: not a generator to close."""
        return _Changes(self)

    async def follow(self, act: Callable[[T], object]) -> None:
        """Call ``act`` with the current value, then with each later one, forever."""
        async for value in self.changes():
            act(value)

    async def wait_for(self, accepts: Callable[[T], bool]) -> T:
        """The first value, from the current one on, that ``accepts`` is true of."""
        while True:
            changed, value = self._changed, self._value
            if accepts(value):
                return value
            await changed.wait()


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until one of them has returned; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)


class _Changes(AsyncIterator[T]):
    def __init__(self, observed: Observable[T]) -> None:
        self._observed = observed
        self._next: trio.Event | None = None

    async def __anext__(self) -> T:
        if self._next is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._next.wait()
        self._next = self._observed._changed
        return self._observed._value
