"""Fair sharing of the loop among the connections of a server, and rate limits for new streams and connections.

Trio runs every ready task once per pass. A peer that sends 7,000 frames at once would otherwise hold up one pass until
all are processed; a thousand peers with a millisecond of work each would hold it up for a second. So a connection
processes a little at once and the rest in turns: one slice of one connection per pass, however many there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mesh_pilot.net.rpc.limits import Limits
from mesh_pilot.net.rpc.rate_limits import TokenBucket

__all__ = ["FIRST_WORK", "SLICE_WORK", "Admission", "PacedListener"]

FIRST_WORK = 16.0
"""Units of work (about 20 µs each) that a connection may do after each read; a client's first frames take 10."""
SLICE_WORK = 32.0
"""Units of work in one turn."""


class Admission:
    """The turns and rate limits that all connections of a server share.

    State: the connection whose turn it is, those that wait, and the token buckets of streams, connections and
    retirements.
    """

    def __init__(self, limits: Limits) -> None:
        self._turn = trio.Lock()
        self._entry = trio.Lock()
        self._streams = TokenBucket(limits.stream_rate, limits.stream_burst)
        self._connections = TokenBucket(limits.connection_rate, limits.connection_burst)
        self._retirements = TokenBucket(limits.retirement_rate, 1)

    def __repr__(self) -> str:
        working = self._turn.statistics().tasks_waiting
        entering = self._entry.statistics().tasks_waiting
        return f"<Admission, {working} connections wait for a turn, {entering} for a stream>"

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the turn for the block: one holder per pass of Trio's loop, waiters in order (FIFO)."""
        async with self._turn:
            yield

    async def stream(self, of_connection: trio.Lock) -> None:
        """Wait until a new stream may start. Returns at once, without a checkpoint, below the rate limit.

        Each connection has one stream in the queue, however many it opened. If cancelled, its place is lost.
        """
        if not of_connection.locked() and not self._entry.locked() and self._streams.take(1, trio.current_time()):
            return
        async with of_connection, self._entry:
            await _wait(self._streams)

    async def connection(self) -> None:
        """Wait until a connection may be accepted. Returns at once, without a checkpoint, below the rate limit."""
        await _wait(self._connections)

    async def retirement(self) -> None:
        """Wait until a connection may be retired for its age. If cancelled, its place in the queue stays empty."""
        await _wait(self._retirements)


async def _wait(bucket: TokenBucket) -> None:
    seconds = bucket.reserve(1, trio.current_time())
    if seconds > 0:
        await trio.sleep(seconds)


class PacedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener whose connections are accepted at the server's rate."""

    def __init__(self, listener: trio.SocketListener, admission: Admission) -> None:
        self._listener = listener
        self._admission = admission

    async def accept(self) -> trio.SocketStream:
        stream = await self._listener.accept()
        try:
            await self._admission.connection()
        except BaseException:
            stream.socket.close()
            raise
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()
