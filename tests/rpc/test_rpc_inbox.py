"""The inbox of a stream: whatever the pieces, the messages are the same and every byte is credited once."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
import trio
import trio.testing
from grpclib.exceptions import GRPCError, StreamTerminatedError
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.net.rpc.inbox import Inbox


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


async def read_all(inbox: Inbox) -> list[bytes]:
    messages = []
    while (message := await inbox.read_message()) is not None:
        messages.append(message)
    return messages


@given(
    messages=st.lists(st.binary(max_size=300), max_size=20),
    cuts=st.lists(st.integers(0, 6500), max_size=30),
    padding=st.integers(0, 20),
    waits=st.booleans(),
    batch=st.integers(1, 2000),
)
def test_messages_survive_any_cutting_and_every_byte_is_credited_once(
    messages: list[bytes], cuts: list[int], padding: int, waits: bool, batch: int
) -> None:
    data = b"".join(map(framed, messages))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    credited: list[int] = []
    inbox = Inbox(credited.append, limit=300, batch=batch)

    async def run() -> None:
        async def feed() -> None:
            for piece in pieces:
                inbox.add(piece, len(piece) + padding)
                if waits:
                    await trio.testing.wait_all_tasks_blocked()
            inbox.eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            assert await read_all(inbox) == messages

    trio.run(run)
    assert all(size >= batch for size in credited)
    assert sum(credited) + inbox.unacked_size() == len(data) + padding * len(pieces)
    assert inbox.unacked_size() == 0


async def test_bytes_nobody_waits_for_are_not_credited() -> None:
    credited: list[int] = []
    inbox = Inbox(credited.append, limit=1000, batch=1)
    inbox.add(framed(bytes(100)), 105)
    inbox.add(framed(bytes(100))[:50], 50)
    assert credited == []
    await inbox.read_message()
    assert sum(credited) == 105
    with trio.move_on_after(0):
        await inbox.read_message()
    assert sum(credited) == 155


async def test_complete_messages_are_read_before_the_error() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    inbox.add(framed(b"whole"), 10)
    inbox.fail(StreamTerminatedError("gone"))
    assert await inbox.read_message() == b"whole"
    with pytest.raises(StreamTerminatedError, match="gone"):
        await inbox.read_message()


async def test_a_reset_after_the_end_does_not_hide_the_end() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    inbox.eof()
    inbox.fail(StreamTerminatedError("gone"))
    assert await inbox.read_message() is None


async def test_too_large_a_message_is_refused_from_its_prefix_alone() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    inbox.add(struct.pack(">BI", 0, 2**32 - 1), 5)
    with pytest.raises(GRPCError, match="a message of 4294967295 bytes is larger than the limit of 1000 bytes"):
        await inbox.read_message()


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    inbox.add(framed(b"abcdef")[:7], 7)
    with trio.move_on_after(0):
        await inbox.read_message()
    inbox.add(framed(b"abcdef")[7:], 4)
    assert await inbox.read_message() == b"abcdef"


async def test_readers_of_what_is_there_let_others_run() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    for _ in range(1000):
        inbox.add(framed(b"x"), 6)
    inbox.eof()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await read_all(inbox)
        nursery.cancel_scope.cancel()
    assert turns > 10
