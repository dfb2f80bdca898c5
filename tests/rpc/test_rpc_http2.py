"""DATA frames that are taken in without h2 mean what they mean to h2, in whatever pieces they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import FrameTooLargeError, ProtocolError
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.net.rpc.http2 import GrpcH2Connection
from tests.support.sample import examples

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


streams = st.sampled_from([1, 3, 5])
sizes = st.sampled_from([0, 1, 5, 300, 16_384, 16_385, 40_000])
frames = st.one_of(
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes),
    st.builds(data, streams, sizes, end=st.booleans(), padding=st.none() | st.integers(0, 20)),
    st.builds(headers, streams, more=st.sampled_from([False] * 9 + [True]), length=st.none() | st.just(300)),
    st.builds(RstStreamFrame, streams),
    st.just(PingFrame(0, b"12345678")),
)


def outcome(connection: H2Connection, pieces: Sequence[bytes]) -> tuple[list[object], bytes, list[int]]:
    """What the pieces mean to a connection, what it answers, and the windows in the end."""
    found: list[object] = []
    try:
        for piece in pieces:
            for event in connection.receive_data(piece):
                if isinstance(event, h2.events.DataReceived):
                    found.append((event.stream_id, bytes(event.data), event.flow_controlled_length))
                else:
                    found.append(repr(event))
    except ProtocolError as error:
        found.append(repr(error))
    windows = [s._inbound_window_manager.current_window_size for s in connection.streams.values()]
    return found, connection.data_to_send(), [connection.inbound_flow_control_window, *windows]


@settings(max_examples=examples(300), deadline=None)
@given(sent=st.lists(frames, max_size=12), cuts=st.lists(st.integers(0, 120_000), max_size=6))
def test_frames_mean_what_they_mean_to_h2(sent: list[Frame], cuts: list[int]) -> None:
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    told = peer.data_to_send() + b"".join(frame.serialize() for frame in [headers(1), headers(3), *sent])
    places = [0, *sorted(min(cut, len(told)) for cut in cuts), len(told)]
    pieces = [told[one:other] for one, other in pairwise(places) if other > one]

    def made(kind: type[H2Connection]) -> H2Connection:
        connection = kind(H2Configuration(client_side=False))
        connection.initiate_connection()
        return connection

    assert outcome(made(GrpcH2Connection), pieces) == outcome(made(H2Connection), pieces)


def test_plain_data_frames_never_reach_h2() -> None:
    connection = GrpcH2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    connection.receive_data(peer.data_to_send() + headers(1).serialize())
    taken: list[Frame] = []
    connection._receive_frame = taken.append  # type: ignore[assignment]
    events = connection.receive_data(b"".join(data(1, 1000).serialize() for _ in range(20)))
    assert (len(events), taken) == (20, [])


@pytest.mark.parametrize("size", [16_385, 2**24 - 1])
def test_a_frame_that_is_too_large_is_refused_by_its_head_and_not_taken_in(size: int) -> None:
    connection = GrpcH2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    connection.receive_data(peer.data_to_send() + headers(1).serialize())
    head = size.to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big")
    connection.receive_data(head[:5])
    with pytest.raises(FrameTooLargeError):
        connection.receive_data(head[5:])
