"""Finding out how a server can be asked, and for what.

Servers differ in the methods that they implement and in the collections that they have. Each dialect is tried until
one is implemented. A server that ends the stream because it does not have a collection, as Galley does, is asked again
without it, on the same connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from mesh_pilot.rpc import Cardinality, Channel, GRPCError, Status
from mesh_pilot.sources.mcp.intake import Call
from mesh_pilot.sources.mcp.wire import Dialect

log = structlog.get_logger(scope="mcp")

Converse = Callable[[Call, Dialect, frozenset[str]], Awaitable[None]]
"""Speaks on one stream until it ends; given the collections not to ask for."""


class Asking:
    """How one server is asked. State: the dialect in use, and what the server lacks; both of the current connection."""

    def __init__(self, name: str, collections: tuple[str, ...], dialects: tuple[Dialect, ...]) -> None:
        """``name`` is that of who asks, for the log."""
        self._name = name
        self._collections = collections
        self._dialects = dialects
        self._missing: set[str] = set()
        self.dialect = dialects[0]
        """In use, or tried last."""
        self.streams = 0
        """Opened since the start."""

    def __repr__(self) -> str:
        return f"<Asking {self.dialect.path}, not offered: {len(self._missing)}>"

    @property
    def not_offered(self) -> tuple[str, ...]:
        """Collections that the server said it does not have."""
        return tuple(name for name in self._collections if name in self._missing)

    async def read(self, channel: Channel, converse: Converse) -> None:
        """Open streams until one of them is not ended for reasons of how it was asked.

        Returns when ``converse`` does. Raises how the last stream ended; GRPCError also where the server has no method
        of ours, or none of the collections.
        """
        dialects = iter(self._dialects)
        self._begin(next(dialects))
        while True:
            try:
                await self._stream(channel, converse)
                return
            except GRPCError as error:
                if error.status is Status.INVALID_ARGUMENT and (named := self._named(error)):
                    log.info("the server does not have this collection", source=self._name, collection=named)
                    self._missing.add(named)
                    if len(self._missing) < len(self._collections):
                        continue
                elif error.status is not Status.UNIMPLEMENTED:
                    raise
                following = next(dialects, None)
                if following is None:
                    raise
                self._begin(following)

    def _begin(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._missing = {name for name in self._collections if dialect.name_of(name) is None}

    async def _stream(self, channel: Channel, converse: Converse) -> None:
        self.streams += 1
        call = channel.request(self.dialect.path, Cardinality.STREAM_STREAM, bytes, bytes)
        async with call:
            await converse(call, self.dialect, frozenset(self._missing))

    def _named(self, error: GRPCError) -> str | None:
        """The collection that an error is about: the longest name in its message."""
        names = {name: self.dialect.name_of(name) for name in self._collections if name not in self._missing}
        found = [name for name, theirs in names.items() if theirs and theirs in (error.message or "")]
        return max(found, key=len, default=None)
