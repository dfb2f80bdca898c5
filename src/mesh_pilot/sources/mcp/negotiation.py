"""Negotiation with a server about its gRPC method and its collections.

Servers implement different methods and have different collections. Dialects are tried until one is implemented. A
server that ends the stream over a collection which it lacks, as Galley does, gets a new stream without it, on the same
connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from mesh_pilot.net.rpc import Cardinality, Channel, GRPCError, Status
from mesh_pilot.xds.mcp.messages import MessageStream
from mesh_pilot.xds.mcp.wire import Dialect

log = structlog.get_logger(scope="mcp")

RunStream = Callable[[MessageStream, Dialect, frozenset[str]], Awaitable[None]]
"""Runs one stream until it ends; the third argument is the collections not to request."""


class Negotiation:
    """State, of the current connection: the dialect in use, and the collections that the server lacks."""

    def __init__(self, name: str, collections: tuple[str, ...], dialects: tuple[Dialect, ...]) -> None:
        """``name``: the client, for the log."""
        self._name = name
        self._collections = collections
        self._dialects = dialects
        self._missing: set[str] = set()
        self.dialect = dialects[0]
        """In use, or tried last."""
        self.streams = 0
        """Streams opened since the start."""

    def __repr__(self) -> str:
        return f"<Negotiation {self.dialect.path}, not offered: {len(self._missing)}>"

    @property
    def not_offered(self) -> tuple[str, ...]:
        """Collections that the server said it lacks."""
        return tuple(name for name in self._collections if name in self._missing)

    async def run(self, channel: Channel, run_stream: RunStream) -> None:
        """Open streams until one does not fail for its method or its collections.

        Returns when ``run_stream`` does. Raises the last stream's error; GRPCError also if the server implements none
        of the methods, or has none of the collections.
        """
        dialects = iter(self._dialects)
        self._begin(next(dialects))
        while True:
            try:
                await self._open(channel, run_stream)
                return
            except GRPCError as error:
                if error.status is Status.INVALID_ARGUMENT and (named := self._named(error)):
                    log.info("collection not offered by the server", source=self._name, collection=named)
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

    async def _open(self, channel: Channel, run_stream: RunStream) -> None:
        self.streams += 1
        call = channel.request(self.dialect.path, Cardinality.STREAM_STREAM, bytes, bytes)
        async with call:
            await run_stream(call, self.dialect, frozenset(self._missing))

    def _named(self, error: GRPCError) -> str | None:
        """The collection that an error is about: the longest name in its message."""
        names = {name: self.dialect.name_of(name) for name in self._collections if name not in self._missing}
        found = [name for name, theirs in names.items() if theirs and theirs in (error.message or "")]
        return max(found, key=len, default=None)
