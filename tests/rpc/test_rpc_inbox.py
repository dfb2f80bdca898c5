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


@given(
    messages=st.lists(st.binary(max_size=300), max_size=20),
    cuts=st.lists(st.integers(0, 6500), max_size=30),
    padding=st.sampled_from([0, 3]),
    declines=st.lists(st.booleans(), max_size=30),
    batch=st.integers(1, 2000),
)
def test_what_is_taken_at_once_and_what_is_declined_comes_in_order(
    messages: list[bytes], cuts: list[int], padding: int, declines: list[bool], batch: int
) -> None:
    data = b"".join(map(framed, messages))
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(edges)]
    credited: list[int] = []
    read: list[bytes] = []
    inbox = Inbox(credited.append, limit=300, batch=batch)
    answers = iter(declines)
    is_busy = False

    def take(message: bytes) -> bool:
        if is_busy or next(answers, False):
            return False
        read.append(message)
        return True

    async def run() -> None:
        nonlocal is_busy
        news = trio.Event()

        def tell() -> None:
            nonlocal is_busy
            is_busy = True
            news.set()

        async def read_declined() -> None:
            nonlocal is_busy, news
            while True:
                await news.wait()
                news = trio.Event()
                while inbox.is_readable:
                    message = await inbox.read_message()
                    if message is None:
                        return
                    read.append(message)
                    await trio.lowlevel.checkpoint()
                is_busy = False

        inbox.receive_at_once(take, tell)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_declined)
            for piece in pieces:
                inbox.add(piece, len(piece) + padding)
                if len(piece) % 2:
                    await trio.lowlevel.checkpoint()
            inbox.eof()

    trio.run(run)
    assert read == messages
    assert sum(credited) + inbox.unacked_size() == len(data) + padding * len(pieces)


async def test_a_frame_of_a_thousand_messages_is_not_taken_at_once_alone() -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    taken: list[bytes] = []
    news: list[bool] = []
    inbox.receive_at_once(lambda message: taken.append(message) is None, lambda: news.append(True))
    assert inbox.add(framed(b"x") * 1000, 6000) == len(taken) < 10
    assert news == [True]
    inbox.eof()
    assert len(await read_all(inbox)) + len(taken) == 1000


@pytest.mark.parametrize("wrong", [struct.pack(">BI", 1, 3) + b"abc", struct.pack(">BI", 0, 5000)])
async def test_a_wrong_message_is_left_to_who_can_refuse_it(wrong: bytes) -> None:
    inbox = Inbox(lambda size: None, limit=1000, batch=1)
    taken: list[bytes] = []
    news: list[bool] = []
    inbox.receive_at_once(lambda message: taken.append(message) is None, lambda: news.append(True))
    inbox.add(framed(b"right") + wrong, 10 + len(wrong))
    assert (taken, news, inbox.is_readable) == ([b"right"], [True], True)
    with pytest.raises(GRPCError):
        await inbox.read_message()


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
