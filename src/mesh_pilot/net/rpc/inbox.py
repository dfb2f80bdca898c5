"""The receive buffer of a stream and the event to wait on, on Trio: replacements for grpclib's Buffer and asyncio's
Event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from mesh_pilot.net.rpc.codec import PREFIX

__all__ = ["TURNS", "Inbox", "Signal"]

TURNS = 32
"""Reads or sends of one stream that may succeed without waiting before other tasks get their turn."""


_CHUNKS, _CHUNK_SIZE = 64, 1024
"""More chunks than this, and smaller ones on average, are joined: a chunk of a few bytes takes ten times their room."""


class Signal:
    """asyncio.Event's methods on Trio: a flag that tasks wait for, and that can be cleared again."""

    __slots__ = ("_lot", "_set")

    def __init__(self, *, is_set: bool = False) -> None:
        self._set = is_set
        self._lot = trio.lowlevel.ParkingLot()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._lot:
            self._lot.unpark_all()

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Return at once when set (without a checkpoint), else once it was set."""
        if not self._set:
            await self._lot.park()


class Inbox:
    """The bytes received on one stream, cut into messages; replaces grpclib's Buffer.

    ``credit`` hands flow-control bytes back to the peer. Bytes are handed back when their message is taken, or when a
    reader waits for the rest of it: a peer is never ahead of the reader by more than the window.
    """

    def __init__(self, credit: Callable[[int], None], *, limit: int, batch: int) -> None:
        self._credit = credit
        self._limit = limit
        self._batch = batch
        self._chunks: deque[bytes | memoryview] = deque()
        self._size = 0
        self._owed = 0
        self._ahead = 0
        self.ended = False
        """True once the peer has half-closed."""
        self._error: Exception | None = None
        self._arrived = Signal()
        self._reads = 0

    def add(self, data: bytes, ack_size: int) -> None:
        """Take a DATA frame of ``ack_size`` bytes, padding included."""
        if data:
            self._chunks.append(data)
            self._size += len(data)
            if len(self._chunks) > _CHUNKS + self._size // _CHUNK_SIZE:
                self._chunks = deque((b"".join(self._chunks),))
        self._owe(ack_size - len(data))
        self._arrived.set()

    def eof(self) -> None:
        """The peer has half-closed."""
        self.ended = True
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """The stream is gone: readers get ``error`` after the messages that are complete, unless the end came first."""
        if not self.ended:
            self._error = error
        self._arrived.set()

    def unacked_size(self) -> int:
        """Bytes that the peer must still be credited with. grpclib calls this when the stream is released."""
        size = self._owed + self._size - self._ahead
        self._owed = 0
        self._ahead = self._size
        return size

    def _owe(self, size: int) -> None:
        self._owed += size
        if self._owed >= self._batch:
            owed, self._owed = self._owed, 0
            self._credit(owed)

    def _take_message(self, length: int) -> bytes:
        """Remove a prefix and the ``length`` bytes after it, all of which have arrived."""
        size = PREFIX.size + length
        self._size -= size
        early = min(size, self._ahead)
        self._ahead -= early
        self._owe(size - early)
        first = self._chunks[0]
        if len(first) > size:
            self._chunks[0] = memoryview(first)[size:]
            return bytes(first[PREFIX.size : size])
        self._chunks.popleft()
        if len(first) == size:
            return bytes(first[PREFIX.size :])
        parts = [memoryview(first)[PREFIX.size :]]
        missing = size - len(first)
        while missing:
            part = memoryview(self._chunks.popleft())
            if len(part) > missing:
                self._chunks.appendleft(part[missing:])
                part = part[:missing]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    async def read_message(self) -> bytes | None:
        """The next message, None at the end.

        Raises GRPCError for a message that is too large, compressed or cut short, StreamTerminatedError when the stream
        is gone. Nothing is lost if cancelled.
        """
        self._reads += 1
        if not self._reads % TURNS:
            await trio.lowlevel.checkpoint()
        if not await self._wait_for(PREFIX.size):
            return None
        compressed, length = PREFIX.unpack(self._peek_prefix())
        if length > self._limit:
            text = f"a message of {length} bytes is larger than the limit of {self._limit} bytes"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        if compressed:
            raise GRPCError(Status.UNIMPLEMENTED, "the message is compressed; send it with grpc-encoding: identity")
        if self._size < length + PREFIX.size:
            await self._wait_for(length + PREFIX.size)
        return self._take_message(length)

    def _peek_prefix(self) -> bytes | memoryview:
        while len(self._chunks[0]) < PREFIX.size:
            first = self._chunks.popleft()
            self._chunks[0] = b"".join((first, self._chunks[0]))
        return self._chunks[0][: PREFIX.size]

    async def _wait_for(self, size: int) -> bool:
        """Wait until ``size`` bytes have arrived; False if the stream ended between messages."""
        while self._size < size:
            if self._error is not None:
                raise self._error
            if self.ended:
                if self._size:
                    raise GRPCError(Status.INTERNAL, "the stream ended in the middle of a message")
                return False
            self._owe(self._size - self._ahead)
            self._ahead = self._size
            self._arrived.clear()
            await self._arrived.wait()
        return True
