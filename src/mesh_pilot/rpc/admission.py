"""Fair shares among the connections of one server: who may work, and who may come in.

Trio runs every task that is ready once a pass. A peer that sends 7,000 frames in a piece would make one pass as long
as all of them; a thousand peers that each make a millisecond of work, as long as a second. So a connection does a
little at once, and more only in its turn: one slice of one connection a pass, whatever their number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mesh_pilot.rpc.limits import Limits
from mesh_pilot.rpc.token_bucket import TokenBucket

__all__ = ["FIRST_WORK", "SLICE_WORK", "Admission", "PacedListener"]

FIRST_WORK = 16.0
"""Units of about 20 µs that a connection may do each time it has read: the first frames of a client, with its request,
are 10."""
SLICE_WORK = 32.0
"""Units of work in one turn."""


class Admission:
    """What all connections of a server share.

    State: whose turn it is, who waits for it, and the tokens of new streams and connections.
    """

    def __init__(self, limits: Limits) -> None:
        self._turn = trio.Lock()
        self._entry = trio.Lock()
        self._streams = TokenBucket(limits.stream_rate, limits.stream_burst)
        self._connections = TokenBucket(limits.connection_rate, limits.connection_burst)

    def __repr__(self) -> str:
        working = self._turn.statistics().tasks_waiting
        entering = self._entry.statistics().tasks_waiting
        return f"<Admission, {working} connections wait for a turn, {entering} for a stream>"

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The block is the only one of its kind in a pass of Trio's loop; those who wait come in order."""
        async with self._turn:
            yield

    async def stream(self, of_connection: trio.Lock) -> None:
        """Wait until a new stream may start; at once, without a checkpoint, unless there is a crowd.

        A connection has one stream in line, whatever the number that it opened. If cancelled, the place is lost.
        """
        if not of_connection.locked() and not self._entry.locked() and self._streams.take(1, trio.current_time()):
            return
        async with of_connection, self._entry:
            await _wait(self._streams)

    async def connection(self) -> None:
        """Wait until another connection may be accepted; at once, without a checkpoint, unless there is a crowd."""
        await _wait(self._connections)


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
