"""What a peer may make us do without getting anywhere, and whose turn it is: no network."""

from __future__ import annotations

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import Limits
from mesh_pilot.net.rpc.admission import Admission
from mesh_pilot.net.rpc.budget import EnhanceYourCalm, FrameBudget
from mesh_pilot.net.rpc.inbox import Inbox
from mesh_pilot.net.rpc.rate_limits import TokenBucket
from tests.rpc.rpc_support import ServerSide

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x")]


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 20))))
def test_a_bucket_never_gives_more_than_its_burst_and_its_rate(takes: list[tuple[float, float]]) -> None:
    bucket = TokenBucket(rate=10, burst=20)
    now = given = 0.0
    for pause, tokens in takes:
        now += pause
        if bucket.take(tokens, now):
            given += tokens
        assert given <= 20 + 10 * now + 1e-6


def test_a_bucket_says_how_long_to_wait() -> None:
    bucket = TokenBucket(rate=10, burst=2)
    assert [bucket.reserve(1, 5.0) for _ in range(4)] == pytest.approx([0, 0, 0.1, 0.2])
    assert bucket.reserve(1, 5.35) == 0


def test_a_bucket_without_a_rate_is_no_limit_and_what_is_not_taken_is_not_owed() -> None:
    assert [TokenBucket(0, 0).reserve(1, 0) for _ in range(9)] == [0] * 9 and TokenBucket(0, 0).take(99, 0)
    bucket = TokenBucket(1, 1)
    assert [bucket.take(1, 0) for _ in range(9)] == [True] + [False] * 8
    assert bucket.take(1, 1)


def test_what_is_sent_earns_what_its_answers_cost() -> None:
    budget = FrameBudget(rate=1, burst=10)
    for _ in range(1000):
        budget.sent(64 * 1024)
        budget.sent_message()
        for _ in range(2 * 16):  # Go: a WINDOW_UPDATE of the stream and of the connection for every 4 KB
            budget.spend(1, "WINDOW_UPDATE", 0.0)
        budget.spend(1, "PING", 0.0)
    budget.spend(10, "PING", 0.0)


def test_the_reason_names_what_there_was_most_of() -> None:
    budget = FrameBudget(rate=1, burst=10)
    budget.spend(1, "SETTINGS", 0.0)
    with pytest.raises(EnhanceYourCalm, match="10 PING, 1 SETTINGS so far"):
        for _ in range(20):
            budget.spend(1, "PING", 0.0)


def connection(burst: float = 100, streams: int = 1) -> ServerSide:
    """A server's, on which the peer has opened streams."""
    found = ServerSide(Limits(frame_rate=1, frame_burst=burst))
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    for number in range(streams):
        peer.send_headers(2 * number + 1, HEADERS)
    assert not found.take_in(peer.data_to_send())
    found.answers.sent = b""
    return found


def settings_frame(window: int) -> Frame:
    return SettingsFrame(0, settings={4: window})


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("flood", "at_most"),
    [
        ([PingFrame(0, b"12345678")], 100),
        ([SettingsFrame(0)], 20),
        ([settings_frame(1), settings_frame(0)], 20),
        ([WindowUpdateFrame(1, 1)], 100),
        ([WindowUpdateFrame(0, 5000)], 100),
        ([DataFrame(1)], 100),
        ([DataFrame(1, b"x")], 100),
        ([DataFrame(1, b"x" * 100, flags=["PADDED"])], 100),
        ([DataFrame(1, b"x" * 100, flags=["END_STREAM"])], 101),
        ([PriorityFrame(1)], 100),
        ([RstStreamFrame(3)], 20),
        ([ContinuationFrame(3, b"")], 20),
    ],
    ids=lambda value: "-".join(frame.__class__.__name__ for frame in value) if isinstance(value, list) else "",
)
def test_a_flood_is_taken_in_as_far_as_the_budget_goes_and_answered_with_enhance_your_calm(
    flood: list[Frame], at_most: int
) -> None:
    ours = connection()
    if isinstance(flood[0], ContinuationFrame):
        ours.take_in(HeadersFrame(3, b"").serialize())
    if isinstance(flood[0], RstStreamFrame):
        ours.take_in(HeadersFrame(3, Encoder().encode(HEADERS), flags=["END_HEADERS"]).serialize())
    reason = ours.take_in(b"".join(frame.serialize() for frame in flood) * 1000)
    assert "too many frames that make work and carry nothing" in reason
    assert reason.encode().removeprefix(b"protocol error: ") in ours.answers.sent[-200:]
    assert ours.answers.fault == reason
    charged = ours.http2.budget._charged
    assert sum(charged.values()) <= at_most + 2  # one too many; one before


def test_settings_cost_more_the_more_streams_they_touch() -> None:
    few, many = connection(1000), connection(1000, streams=80)
    for ours in (few, many):
        assert ours.take_in(settings_frame(1).serialize() * 1000)
    acks = [ours.answers.sent.count(b"\0\0\0\4\1") for ours in (few, many)]
    assert acks == [199, 39]  # the first SETTINGS cost 5 units, too


def test_no_more_work_is_done_in_a_turn_than_asked_for_and_nothing_is_lost() -> None:
    ours = connection(burst=10_000)
    ours.http2.feed(PingFrame(0, b"12345678").serialize() * 500 + DataFrame(1, b"x" * 100).serialize() * 500)
    turns, more, before = 0, True, 0
    while more:
        more = ours.http2.take_in(16)
        done = ours.http2.budget._charged.get("PING", 0) + len(ours.received(1)) // 100
        assert done - before <= 16 / 0.25 + 1
        before = done
        turns += 1
    assert before == 1000
    assert turns >= (500 * 2 + 500 * 0.25) / 16


def test_a_frame_that_is_too_large_for_its_type_is_refused_by_its_head() -> None:
    for kind, size in ((4, 64 * 6 + 6), (1, 40_000), (9, 40_000), (0x77, 20_000)):
        ours = connection()
        assert "overlong" in ours.take_in(size.to_bytes(3, "big") + bytes((kind, 0, 0, 0, 0, 1)))


def test_a_header_block_of_many_frames_is_bounded() -> None:
    ours = connection(burst=100_000)
    assert not ours.take_in(
        HeadersFrame(3, bytes(16_000)).serialize() + ContinuationFrame(3, bytes(16_000)).serialize()
    )
    reason = ours.take_in(ContinuationFrame(3, bytes(16_000)).serialize())
    assert "a header block of more than 32768 bytes" in reason


async def test_connections_take_turns_one_slice_a_pass() -> None:
    admission = Admission(Limits())
    order: list[str] = []

    async def work(name: str) -> None:
        for _ in range(3):
            async with admission.turn():
                order.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(work, name)
    assert sorted(order[:3]) == sorted(order[3:6]) == sorted(order[6:]) == ["a", "b", "c"]


async def test_streams_are_admitted_at_a_rate_and_connections_come_in_turn(autojump_clock: MockClock) -> None:
    admission = Admission(Limits(stream_rate=10, stream_burst=1))
    entered: list[tuple[str, float]] = []
    start = trio.current_time()

    async def stream(name: str, entry: trio.Lock) -> None:
        await admission.stream(entry)
        entered.append((name, round(trio.current_time() - start, 3)))

    greedy, modest = trio.Lock(), trio.Lock()
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(stream, "greedy", greedy)
        await wait_all_tasks_blocked()
        nursery.start_soon(stream, "modest", modest)
    when = dict(entered)
    assert when["greedy"] == 5.0
    assert when["modest"] <= 0.2


async def test_a_stream_is_admitted_without_a_checkpoint_where_there_is_no_crowd() -> None:
    admission = Admission(Limits())
    with trio.CancelScope() as scope:
        scope.cancel()
        await admission.stream(trio.Lock())
    assert not scope.cancelled_caught


def test_a_message_in_pieces_of_a_few_bytes_takes_the_room_of_its_bytes() -> None:
    inbox = Inbox(lambda _: None, limit=10**9, batch=1000)
    for _ in range(200_000):
        inbox.add(b"abcde", 5)
    assert len(inbox._chunks) < 64 + 1_000_000 // 1024 + 2
    assert b"".join(inbox._chunks) == b"abcde" * 200_000
