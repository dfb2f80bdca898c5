"""Floods against a running server end with GOAWAY ENHANCE_YOUR_CALM; real clients, however busy, never see one."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import grpc
import pytest
import trio
from h2.events import DataReceived
from hyperframe.frame import GoAwayFrame, PingFrame, SettingsFrame, WindowUpdateFrame
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import Cardinality, Limits, Server, open_channel
from mesh_pilot.net.rpc.transport import SocketTransport
from tests.rpc.rpc_support import UNLIMITED, Bytes, Echo, RawPeer, in_thread, serving, settled

UNARY = "/test.Echo/Unary"
BIDI = "/test.Echo/Bidi"
WAIT = "/test.Echo/Wait"

CALM = struct.pack(">I", 11)
HEADER = [(":method", "POST"), (":scheme", "http"), (":path", WAIT), (":authority", "x"), ("te", "trailers")]


def frames_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of the whole frames in ``data``."""
    while len(data) >= 9 and len(data) >= 9 + (size := int.from_bytes(data[:3], "big")):
        yield data[3], data[9 : 9 + size]
        data = data[9 + size :]


def flood(server: Server, data: bytes, times: int) -> tuple[int, str]:
    """Send ``data`` again and again after opening a stream; the code and text of the GOAWAY that answers it."""
    peer = RawPeer(server.addresses[0])
    peer.request(WAIT)
    received = b""
    with suppress(OSError):
        for _ in range(times):
            peer.socket.sendall(data)
    with suppress(OSError):
        while chunk := peer.socket.recv(65536):
            received += chunk
    peer.close()
    goaways = [payload for kind, payload in frames_of(received) if kind == GoAwayFrame.type]
    return int.from_bytes(goaways[0][4:8], "big"), goaways[0][8:].decode()


def settings_frame(window: int) -> bytes:
    return SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: window}).serialize()


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("data", "name"),
    [
        (PingFrame(0, b"12345678").serialize(), "PING"),
        (settings_frame(0) + settings_frame(70_000), "SETTINGS"),
        (WindowUpdateFrame(1, 1).serialize(), "WINDOW_UPDATE"),
        (bytes(5) + b"\0\0\0\1", "DATA"),
    ],
    ids=["ping", "settings", "window-update", "empty-data"],
)
async def test_a_flood_ends_its_connection_with_a_reason_and_one_line_of_log(data: bytes, name: str) -> None:
    with capture_logs() as logs:
        echo = Echo()
        async with serving(echo) as server:
            for _ in range(3):
                code, text = await in_thread(flood, server, data * 50, 100)
                assert code == 11
                assert text.startswith("too many frames that make work and carry nothing: ")
                assert name in text
            await settled(lambda: server.statistics().connections_open == 0)
            assert server.statistics().connections_cut == 3
            async with open_channel(server.addresses[0]) as channel:
                assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
    (line,) = logs
    assert line["event"] == "a connection was cut off"
    assert name in line["reason"]


async def test_streams_that_are_reset_at_once_end_the_connection() -> None:
    async with serving(Echo()) as server:

        def hurry() -> bytes:
            peer = RawPeer(server.addresses[0])
            with suppress(OSError):
                for stream_id in range(1, 2000, 2):
                    peer.h2.send_headers(stream_id, [*HEADER, ("content-type", "application/grpc")])
                    peer.h2.reset_stream(stream_id, error_code=8)
                    peer.flush()
            received = b""
            with suppress(OSError):
                while chunk := peer.socket.recv(65536):
                    received += chunk
            peer.close()
            return received

        assert CALM in await in_thread(hurry)
        assert server.statistics().streams_total < 400
        await settled(lambda: server.statistics().connections_open == 0)


@pytest.mark.slow
@pytest.mark.parametrize("path", [WAIT, "/no.Such/Method"])
async def test_streams_that_are_refused_for_ever_end_the_connection(path: str) -> None:
    echo = Echo()
    async with serving(echo) as server:

        def refused() -> bytes:
            peer = RawPeer(server.addresses[0])
            headers = [(":path", path) if name == ":path" else (name, value) for name, value in HEADER]
            with suppress(OSError):
                for stream_id in range(1, 20_000, 2):
                    peer.h2.send_headers(stream_id, [*headers, ("content-type", "application/grpc")])
                    peer.flush()
            received = b""
            with suppress(OSError):
                while chunk := peer.socket.recv(65536):
                    received += chunk
            peer.close()
            return received

        assert CALM in await in_thread(refused)
        await settled(lambda: server.statistics().connections_open == 0)
        assert echo.events.count("waiting") <= 100


async def test_a_crowd_that_is_cut_off_at_once_is_one_line_of_log(mock_clock: MockClock) -> None:
    limits = Limits(keepalive_interval_seconds=30, keepalive_timeout_seconds=10, connection_burst=math.inf)
    with capture_logs() as logs:
        async with serving(Echo(), limits=limits) as server:
            peers = [await in_thread(RawPeer, server.addresses[0]) for _ in range(64)]
            await settled(lambda: server.statistics().bytes_received >= 64 * 24)
            for seconds in (10, 30, 10):
                await wait_all_tasks_blocked(0.02)
                mock_clock.jump(seconds)
            await settled(lambda: server.statistics().connections_open == 0)
            assert server.statistics().connections_cut == 64
            for peer in peers:
                peer.close()
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("a connection was cut off", "the peer did not answer a keepalive ping in 10 s")
    ]


async def test_a_flusher_that_became_ready_as_its_socket_was_closed_ends_in_silence() -> None:
    """A peer that does not read, and then is gone: its socket is readable and writable in the same pass."""
    for _ in range(20):  # Trio runs the tasks of a pass in random order
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        async with trio.open_nursery() as nursery:
            transport = SocketTransport(ours, nursery, tls=None, write_buffer=1000)
            transport.write(bytes(3_000_000))
            nursery.start_soon(_abort_at_the_end, transport)
            await wait_all_tasks_blocked()
            theirs.close()
        assert transport.is_closing


async def _abort_at_the_end(transport: SocketTransport) -> None:
    await transport.read()
    transport.abort()


async def test_a_window_of_a_byte_is_used_ten_times_a_second(mock_clock: MockClock) -> None:
    async with serving(Echo()) as server:

        def ask() -> RawPeer:
            peer = RawPeer(server.addresses[0])
            peer.socket.sendall(settings_frame(0))
            peer.request(BIDI)
            peer.message(b"a message of thirty-one bytes..")
            return peer

        def open_by_a_byte(peer: RawPeer, times: int) -> int:
            peer.socket.sendall(WindowUpdateFrame(1, 1).serialize() * times)
            return times

        peer = await in_thread(ask)
        received = bytearray()

        async def data_frames() -> list[int]:
            peer.socket.settimeout(0.05)
            with suppress(TimeoutError):
                while True:
                    received.extend(await in_thread(peer.socket.recv, 65536))
            return [len(payload) for kind, payload in frames_of(bytes(received)) if kind == 0]

        await in_thread(open_by_a_byte, peer, 5)
        await wait_all_tasks_blocked(0.05)
        assert await data_frames() == []
        mock_clock.jump(0.1)
        await wait_all_tasks_blocked(0.05)
        assert await data_frames() == [5]
        await in_thread(open_by_a_byte, peer, 31)  # enough for the rest: sent at once
        await wait_all_tasks_blocked(0.05)
        assert await data_frames() == [5, 31]
        peer.close()


async def test_a_window_that_stays_tiny_lets_a_message_through(autojump_clock: MockClock) -> None:
    """Slowly, but a client whose window is a byte is served."""
    ready = trio.Event()

    class Sender(Echo):
        async def bidi(self, stream: Bytes) -> None:
            await stream.send_message(b"12345678")
            ready.set()

    async with serving(Sender()) as server:

        def drip() -> bytes:
            peer = RawPeer(server.addresses[0])
            peer.socket.sendall(settings_frame(1))
            peer.request(BIDI)
            data = b""
            while len(data) < 13:
                for event in peer.h2.receive_data(peer.socket.recv(65536)):
                    if isinstance(event, DataReceived):
                        data += event.data
                        peer.socket.sendall(WindowUpdateFrame(1, 1).serialize())
            peer.close()
            return data

        autojump_clock.autojump_threshold = 0.01
        assert await in_thread(drip) == b"\0\0\0\0\x0812345678"


# -- well-behaved clients


class Pusher(Echo):
    """Sends as much as is asked for: ``count`` messages of ``size`` bytes."""

    async def count(self, stream: Bytes) -> None:
        count, size = map(int, (await stream.recv_message() or b"").split())
        for _ in range(count):
            await stream.send_message(bytes(size))


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(5000, 20), (200, 100_000), (6, 8_000_000)])
async def test_grpcio_takes_a_lot_and_never_exceeds_its_budget(count: int, size: int) -> None:
    """With the PINGs and SETTINGS by which it measures bandwidth, and its WINDOW_UPDATEs."""
    with capture_logs() as logs:
        async with serving(Pusher()) as server:

            def take() -> int:
                with grpc.insecure_channel(server.addresses[0], UNLIMITED) as channel:
                    return sum(1 for _ in channel.unary_stream("/test.Echo/Count")(f"{count} {size}".encode()))

            assert await in_thread(take) == count
            assert server.statistics().connections_cut == 0
    assert logs == []


@pytest.mark.slow
async def test_grpcio_sends_a_lot_and_never_exceeds_its_budget() -> None:
    async with serving(Echo()) as server:

        def send() -> bytes:
            with grpc.insecure_channel(server.addresses[0], UNLIMITED) as channel:
                small = channel.stream_unary("/test.Echo/Join")(b"" for _ in range(5000))
                large = channel.stream_unary("/test.Echo/Join")(bytes(1_000_000) for _ in range(20))
                return small + large[:1]

        assert await in_thread(send) == b"\0"
        assert server.statistics().connections_cut == 0


@pytest.mark.slow
async def test_a_thousand_unary_calls_in_a_row_and_a_hundred_at_once_are_served() -> None:
    async with serving(Echo()) as server, open_channel(server.addresses[0]) as channel:
        for _ in range(1000):
            assert await channel.unary(UNARY, b"x", bytes) == b"x"
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(partial(channel.unary, UNARY, b"x", bytes))
        assert server.statistics().connections_cut == 0


async def test_a_client_that_cancels_calls_now_and_then_stays() -> None:
    async with serving(Echo()) as server, open_channel(server.addresses[0]) as channel:
        for _ in range(100):
            async with channel.request(WAIT, Cardinality.STREAM_STREAM, bytes, bytes) as call:
                await call.send_request()
                assert await call.recv_message() == b"hello"
                await call.cancel()
        assert await channel.unary(UNARY, b"x", bytes) == b"x"
