"""A client that calls share: opened by the first, closed after the last, so that nothing has to run next to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")

MAX_AGE_SECONDS = 60.0
"""The age at which a client is given to no more calls: the files that it was made from may have changed."""
CLOSE_SECONDS = 1.0


@attrs.define
class _Lease(Generic[T]):
    manager: AbstractAsyncContextManager[T]
    client: T
    until: float
    users: int = 0


class SharedClient(Generic[T]):
    """Mutable state: the client that new calls get, and how many use it."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._lease: _Lease[T] | None = None
        self._opening = trio.Lock()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[T]:
        """The client, for the length of the block. Raises what making one raises."""
        async with self._opening:
            if self._lease is None or trio.current_time() >= self._lease.until:
                manager = self._make()
                client = await manager.__aenter__()
                self._lease = _Lease(manager, client, trio.current_time() + MAX_AGE_SECONDS)
            lease = self._lease
            lease.users += 1
        try:
            yield lease.client
        finally:
            lease.users -= 1
            if not lease.users:
                if self._lease is lease:
                    self._lease = None
                with trio.move_on_after(CLOSE_SECONDS, shield=True):
                    await lease.manager.__aexit__(None, None, None)
