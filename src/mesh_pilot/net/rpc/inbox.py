"""The inbox of a stream: what has arrived, cut into messages; and the flag that tasks wait for."""

from __future__ import annotations

from collections.abc import Callable

import outcome
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from mesh_pilot.net.rpc.codec import PREFIX

__all__ = ["TURNS", "Inbox", "Signal"]

TURNS = 32
"""Reads or sends of one stream that may succeed without waiting before other tasks get their turn."""


_AT_ONCE = 8
"""Messages of one frame that are taken at once; a frame may have thousands, and each is work."""

_CHUNKS, _CHUNK_SIZE = 64, 1024
"""More chunks than this, and smaller ones on average, are joined: a chunk of a few bytes takes ten times their room."""


class Signal:
    """A flag that tasks wait for, and that can be cleared again. Most never have a waiter: they are small."""

    __slots__ = ("_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._set = is_set
        self._waiting: trio.Event | None = None

    def set(self) -> None:
        self._set = True
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        """Return at once when set (without a checkpoint), else once it was set."""
        if not self._set:
            if self._waiting is None:
                self._waiting = trio.Event()
            await self._waiting.wait()


class Inbox:
    """The bytes received on one stream, cut into messages, for one reader.

    ``credit`` hands flow-control bytes back to the peer. Bytes are handed back when their message is taken, or when a
    reader waits for the rest of it: a peer is never ahead of the reader by more than the window and a message.

    The reader is a task that waits (`read_message`), or a function that is given each message as it arrives
    (`receive_at_once`), which costs no switch of tasks.
    """

    def __init__(self, credit: Callable[[int], None], *, limit: int, batch: int) -> None:
        self._credit = credit
        self._limit = limit
        self._batch = batch
        self._chunks: list[bytes | memoryview] = []
        self._size = 0
        self._owed = 0
        self._ahead = 0
        self.ended = False
        """True once the peer has half-closed."""
        self._error: Exception | None = None
        self._reader: trio.lowlevel.Task | None = None
        """The task that waits for more."""
        self._reads = 0
        self._take: Callable[[bytes], bool] | None = None
        self._on_news: Callable[[], None] | None = None
        self._declined: bytes | None = None
        """The first message, if it was not taken at once."""

    def receive_at_once(self, take: Callable[[bytes], bool], on_news: Callable[[], None]) -> None:
        """Give each message to ``take`` when it is complete. If that returns False, the message waits for
        `read_message`, and ``on_news`` is called; so it is at the end, and at an error. Neither waits nor raises."""
        self._take, self._on_news = take, on_news

    def release(self) -> None:
        """Drop the functions of `receive_at_once`: the stream has no reader any more."""
        self._take = self._on_news = None

    def add(self, data: bytes, ack_size: int) -> int:
        """Take a DATA frame of ``ack_size`` bytes, padding included; returns how many messages were taken at once."""
        # What nearly every frame is, a message for a reader that is there, is not stored and taken out again.
        if not self._size and ack_size == len(data) and self._is_whole(data):
            is_taken_at_once = self._take is not None and self._declined is None
            if is_taken_at_once or self._reader is not None:
                self._owed += ack_size
                if self._owed >= self._batch:
                    self._owe(0)
                if self._reader is None:
                    return self._offer(data[PREFIX.size :])
                self._wake(data[PREFIX.size :])
                return 0
        if data:
            self._chunks.append(data)
            self._size += len(data)
            if len(self._chunks) > _CHUNKS + self._size // _CHUNK_SIZE:
                self._chunks = [b"".join(self._chunks)]
        if ack_size != len(data):
            self._owe(ack_size - len(data))
        if self._take is not None and self._reader is None:
            return self._offer_all()
        self._wake()
        return 0

    def _offer(self, message: bytes) -> int:
        """Have the first message taken at once, if it can be: 1, or else 0."""
        assert self._take is not None
        if self._take(message):
            return 1
        self._declined = message
        self._wake()
        return 0

    def _offer_all(self) -> int:
        """Have the messages that are complete taken at once, some of them; whoever reads sees to the rest."""
        taken = 0
        try:
            while self._declined is None and (length := self._length_of_whole()) is not None:
                if taken == _AT_ONCE:
                    self._wake()
                    break
                taken += self._offer(self._take_message(length))
            else:
                self._credit_part()
        except GRPCError:
            self._wake()  # which raises it again
        return taken

    def _credit_part(self) -> None:
        """Let the peer send the rest of a message that has come in part, unless another one waits for its reader."""
        if self._declined is None and self._size > self._ahead:
            self._owe(self._size - self._ahead)
            self._ahead = self._size

    def _is_whole(self, data: bytes) -> bool:
        """True if ``data`` is one message that may be handed to the reader."""
        size = len(data) - PREFIX.size
        return 0 <= size <= self._limit and PREFIX.unpack_from(data) == (0, size)

    def eof(self) -> None:
        """The peer has half-closed."""
        self.ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """The stream is gone: readers get ``error`` after the messages that are complete, unless the end came first."""
        if not self.ended:
            self._error = error
        self._wake()

    def _wake(self, message: bytes | None = None) -> None:
        """Wake the reader: it is given a message, or has to look at what there is."""
        if (reader := self._reader) is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader, outcome.Value(message))
        elif self._on_news is not None:
            self._on_news()

    def unacked_size(self) -> int:
        """Bytes that the peer must still be credited with once the stream is released."""
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
        if len(first) == size:
            del self._chunks[0]
            return bytes(first[PREFIX.size :])
        count, missing = 0, size
        for chunk in self._chunks:
            if len(chunk) > missing:
                break
            count += 1
            missing -= len(chunk)
        parts = self._chunks[:count]
        del self._chunks[:count]
        if missing:
            rest = memoryview(self._chunks[0])
            parts.append(rest[:missing])
            self._chunks[0] = rest[missing:]
        parts[0] = memoryview(parts[0])[PREFIX.size :]
        return b"".join(parts)

    @property
    def has_message(self) -> bool:
        """True if a whole message is there: the next read does not wait for the peer. Raises as that does."""
        return self._declined is not None or self._length_of_whole() is not None

    @property
    def is_readable(self) -> bool:
        """True if `read_message` does not wait for the peer: there is a message, the end or an error."""
        try:
            return self.has_message or self.ended or self._error is not None
        except GRPCError:
            return True

    async def read_message(self) -> bytes | None:
        """The next message, None at the end.

        Raises GRPCError for a message that is too large, compressed or cut short, StreamTerminatedError when the stream
        is gone. Nothing is lost if cancelled.
        """
        if self._declined is not None:
            declined, self._declined = self._declined, None
            return declined
        while (length := self._length_of_whole()) is None:
            if self._error is not None:
                raise self._error
            if self.ended:
                if self._size:
                    raise GRPCError(Status.INTERNAL, "the stream ended in the middle of a message")
                return None
            self._credit_part()
            if self._reader is not None:
                raise trio.BusyResourceError("another task is receiving on this stream")
            self._reader = trio.lowlevel.current_task()
            message: bytes | None = await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
            if message is not None:
                return message
        self._reads += 1
        if not self._reads % TURNS:
            await trio.lowlevel.checkpoint()
        return self._take_message(length)

    def _length_of_whole(self) -> int | None:
        """The length of the first message; None while it is not whole. Raises GRPCError."""
        if self._size < PREFIX.size:
            return None
        if len(self._chunks[0]) < PREFIX.size:
            self._join_prefix()
        compressed, length = PREFIX.unpack_from(self._chunks[0])
        if length > self._limit:
            text = f"a message of {length} bytes is larger than the limit of {self._limit} bytes"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        if compressed:
            raise GRPCError(Status.UNIMPLEMENTED, "the message is compressed; send it with grpc-encoding: identity")
        return int(length) if self._size >= length + PREFIX.size else None

    def _join_prefix(self) -> None:
        while len(self._chunks[0]) < PREFIX.size:
            self._chunks[:2] = [b"".join(self._chunks[:2])]

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED
