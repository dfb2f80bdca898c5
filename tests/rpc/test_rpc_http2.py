"""Frames that are taken in without h2 mean what they mean to h2, in whatever pieces they arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.net.rpc import Limits
from tests.rpc.rpc_support import ClientSide, ServerSide
from tests.support.sample import examples

LIMITS = Limits(stream_window=65535, connection_window=65535, frame_burst=100_000)
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x")]


def data(stream_id: int, size: int, *, end: bool = False, padding: int | None = None) -> Frame:
    frame = DataFrame(stream_id, bytes(number % 251 for number in range(size)))
    if end:
        frame.flags.add("END_STREAM")
    if padding is not None:
        frame.flags.add("PADDED")
        frame.pad_length = padding
    return frame


def headers(stream_id: int, *, more: bool = False, length: int | None = None) -> Frame:
    block = H2Connection(H2Configuration(client_side=True)).encoder.encode(
        [*HEADERS, *([("content-length", str(length))] if length is not None else [])], huffman=False
    )
    frame = HeadersFrame(stream_id, block)
    if not more:
        frame.flags.add("END_HEADERS")
    return frame


def answer(stream_id: int, *, end: bool = False, status: str = "200") -> Frame:
    """Of a server: headers, or trailers where headers have come."""
    frame = HeadersFrame(stream_id, Encoder().encode([(":status", status)] if not end else [("grpc-status", "0")]))
    frame.flags.add("END_HEADERS")
    if end:
        frame.flags.add("END_STREAM")
    return frame


streams = st.sampled_from([1, 3, 5])
sizes = st.sampled_from([0, 1, 5, 300, 16_384, 16_385, 40_000])
frames = st.one_of(
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes, end=st.booleans(), padding=st.none() | st.integers(0, 20)),
    st.builds(headers, streams, more=st.sampled_from([False] * 9 + [True]), length=st.none() | st.just(300)),
    st.builds(RstStreamFrame, streams),
    st.builds(WindowUpdateFrame, st.sampled_from([0, 1, 3, 5]), st.sampled_from([1, 1000, 2**31 - 70_000])),
    st.builds(SettingsFrame, settings=st.fixed_dictionaries({4: st.sampled_from([0, 100, 100_000])})),
    st.just(PingFrame(0, b"12345678")),
)


answers = st.builds(answer, streams, end=st.booleans(), status=st.sampled_from(["200", "100", "503"]))


def preface() -> bytes:
    """All that a client sends before its first request."""
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    return peer.data_to_send()


def frames_of(data: bytes) -> Iterator[bytes]:
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        yield data[:end]
        data = data[end:]


Outcome = tuple[dict[int, tuple[bytes, str]], list[bytes], int, list[tuple[int, int]], bool]
"""Of each stream its bytes and its end; the answers; the windows; whether the connection is at its end."""


def by_h2(side: type[ServerSide], frames: Sequence[bytes]) -> Outcome:
    """What frames mean to h2, with the settings of ours."""
    ours = side(LIMITS)
    connection = ours.http2.h2
    received: dict[int, bytes] = defaultdict(bytes)
    ends = dict.fromkeys(ours.streams, "")
    failed = False
    for frame in frames:
        try:
            for event in connection.receive_data(frame):
                match event:
                    case h2.events.RequestReceived():
                        ends[event.stream_id] = ""
                    case h2.events.DataReceived():
                        received[event.stream_id] += event.data
                    case h2.events.StreamEnded():
                        ends[event.stream_id] = "ended"
                    case h2.events.StreamReset():
                        ends[event.stream_id] = ends[event.stream_id] or f"reset {event.error_code}"
        except ProtocolError:
            failed = True
            break
    windows = [(connection.outbound_flow_control_window, connection.inbound_flow_control_window)]
    windows += [
        (stream.outbound_flow_control_window, stream.inbound_flow_control_window)
        for stream in connection.streams.values()
        if stream.open
    ]
    streams = {stream_id: (received[stream_id], end) for stream_id, end in ends.items()}
    return streams, sorted(frames_of(connection.data_to_send())), len(connection.streams), windows, failed


def by_us(side: type[ServerSide], pieces: Sequence[bytes]) -> Outcome:
    """What the same bytes, in any pieces, mean to us."""
    ours = side(LIMITS)
    failed = bool(ours.take_in(*pieces))
    connection = ours.http2.h2
    streams = {}
    for stream_id, stream in ours.streams.items():
        is_reset = stream.terminated is not None and hasattr(stream.terminated, "code")
        end = "ended" if stream.inbox.ended else f"reset {stream.terminated.code}" if is_reset else ""  # type: ignore[union-attr]
        streams[stream_id] = ours.received(stream_id), end
    windows = [(connection.outbound_flow_control_window, ours.http2._window)]
    windows += [
        (stream.h2.outbound_flow_control_window, stream.window) for stream in ours.streams.values() if stream.h2.open
    ]
    return streams, sorted(frames_of(ours.answers.sent)), len(connection.streams), windows, failed


def cut_up(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[one:other] for one, other in pairwise(places) if other > one]


lists_of_cuts = st.lists(st.integers(0, 120_000), max_size=6)


@settings(max_examples=examples(300), deadline=None)
@given(sent=st.lists(frames, max_size=12), cuts=lists_of_cuts)
def test_frames_mean_to_a_server_what_they_mean_to_h2(sent: list[Frame], cuts: list[int]) -> None:
    whole = [preface(), *(frame.serialize() for frame in [headers(1), headers(3), *sent])]
    assert by_us(ServerSide, cut_up(b"".join(whole), cuts)) == by_h2(ServerSide, whole)


@settings(max_examples=examples(300), deadline=None)
@given(sent=st.lists(st.one_of(frames, answers), max_size=12), cuts=lists_of_cuts)
def test_frames_mean_to_a_client_what_they_mean_to_h2(sent: list[Frame], cuts: list[int]) -> None:
    whole = [frame.serialize() for frame in [SettingsFrame(0), answer(1), answer(3), *sent]]
    assert by_us(ClientSide, cut_up(b"".join(whole), cuts)) == by_h2(ClientSide, whole)


def test_plain_data_frames_and_window_updates_never_reach_h2() -> None:
    ours = ServerSide()
    ours.take_in(preface() + headers(1).serialize())
    taken: list[Frame] = []
    ours.http2.h2._receive_frame = taken.append  # type: ignore[assignment]
    widened = WindowUpdateFrame(1, 1000).serialize() + WindowUpdateFrame(0, 500).serialize()
    assert not ours.take_in(b"".join(data(1, 1000).serialize() + widened for _ in range(20)))
    assert (len(ours.received(1)), taken) == (20_000, [])
    assert ours.http2.h2.outbound_flow_control_window == 65535 + 20 * 500
    assert ours.streams[1].h2.outbound_flow_control_window == 65535 + 20 * 1000


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 2**24 - 1])
def test_a_frame_that_is_too_large_is_refused_by_its_head_and_not_taken_in(size: int) -> None:
    ours = ServerSide()
    ours.take_in(preface() + headers(1).serialize())
    head = size.to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big")
    assert not ours.take_in(head[:5])
    assert "Received overlong frame" in ours.take_in(head[5:])
    assert [frame[3] for frame in frames_of(ours.answers.sent)][-1] == GoAwayFrame.type


def test_streams_that_have_read_all_never_keep_the_window_of_their_connection() -> None:
    """What each of them owes too little to be worth a frame may be the whole window together."""
    ours = ServerSide(Limits(stream_window=100_000, connection_window=400_000, frame_burst=100_000))
    ours.take_in(preface() + b"".join(headers(number).serialize() for number in range(1, 200, 2)))
    for _ in range(3):
        for number in range(1, 200, 2):
            message = DataFrame(number, b"\0" + (3000).to_bytes(4, "big") + bytes(3000)).serialize()
            assert not ours.take_in(message)
            ours.streams[number].inbox._take_message(3000)
    assert ours.http2._window > 100_000


def test_peers_with_the_same_settings_share_them_until_one_changes_its_own() -> None:
    one, other, third = (ServerSide() for _ in range(3))
    for side in (one, other, third):
        assert not side.take_in(preface(), SettingsFrame(0, settings={4: 70_000, 0xFFF: 1}).serialize())
    assert one.http2.h2.remote_settings is other.http2.h2.remote_settings
    assert not one.take_in(SettingsFrame(0, settings={4: 80_000}).serialize(), headers(1).serialize())
    assert not other.take_in(headers(1).serialize())
    found = [
        (side.http2.h2.remote_settings[4], side.streams[1].h2.outbound_flow_control_window) for side in (one, other)
    ]
    assert found == [(80_000, 80_000), (70_000, 70_000)]
    assert other.http2.h2.remote_settings is third.http2.h2.remote_settings
    assert not other.take_in(SettingsFrame(0, settings={4: 80_000}).serialize())
    assert other.http2.h2.remote_settings is one.http2.h2.remote_settings
