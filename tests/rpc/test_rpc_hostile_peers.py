"""Peers that break the rules, hang, or vanish; the server and its other clients must not notice."""

from __future__ import annotations

import math
import random
import socket
from contextlib import suppress

import pytest
import trio
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamReset
from hyperframe.frame import PingFrame, SettingsFrame
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import ConnectionLost, Limits, Server, open_channel, open_listeners
from mesh_pilot.net.rpc.net import address_of
from tests.rpc.rpc_support import Echo, RawPeer, in_thread, serving, settled

UNARY = "/test.Echo/Unary"
BIDI = "/test.Echo/Bidi"
WAIT = "/test.Echo/Wait"


def connect(server: Server) -> socket.socket:
    host, _, port = server.addresses[0].rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(10)
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


async def still_serves(server: Server) -> None:
    """An honest client is answered, and the dishonest connections are gone."""
    async with open_channel(server.addresses[0]) as channel:
        assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
    await settled(lambda: server.statistics().connections_open == 0)
    assert server.statistics().streams_open == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        random.Random(1).randbytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 4, 1, 4, 0, 0, 0, 1]) + b"\xff\xfe\xfd\xfc",
    ],
    ids=["http1", "tls", "noise", "no-frame", "bad-headers"],
)
async def test_garbage_on_the_port_closes_that_connection_only(garbage: bytes) -> None:
    async with serving(Echo()) as server:

        def send_garbage() -> None:
            with connect(server) as sock:
                with suppress(OSError):  # it may have hung up by now
                    sock.sendall(garbage)
                    sock.shutdown(socket.SHUT_WR)
                read_to_end(sock)

        await in_thread(send_garbage)
        await still_serves(server)


async def test_random_bytes_after_a_proper_start_never_hurt_the_server() -> None:
    source = random.Random(7)
    with capture_logs() as logs:
        await fuzz_a_server(source)
    assert logs == []


async def fuzz_a_server(source: random.Random) -> None:
    async with serving(Echo()) as server:

        def fuzz() -> None:
            for _ in range(60):
                peer = RawPeer(server.addresses[0])
                peer.request(BIDI)
                frame = source.randrange(64).to_bytes(3, "big") + bytes([source.randrange(11), source.randrange(256)])
                peer.socket.sendall(frame + bytes([0, 0, 0, source.randrange(4)]) + source.randbytes(200))
                peer.close()

        await in_thread(fuzz)
        await still_serves(server)


async def test_headers_that_are_not_gRPC_are_refused_politely() -> None:
    async with serving(Echo()) as server:

        def ask() -> list[str]:
            peer = RawPeer(server.addresses[0])
            statuses = []
            for stream_id, headers in [
                (1, {":method": "GET"}),
                (3, {"content-type": "text/plain"}),
                (5, {"grpc-timeout": "soon"}),
                (7, {"data-bin": "A"}),
            ]:
                peer.request(UNARY, stream_id=stream_id, **headers)
                (answer,) = (each for each in peer.events_until(ResponseReceived) if isinstance(each, ResponseReceived))
                fields = dict(answer.headers)
                statuses.append(fields[":status"] + ":" + fields.get("grpc-status", ""))
            peer.close()
            return statuses

        assert await in_thread(ask) == ["405:", "415:", "200:3", "200:3"]
        await still_serves(server)


@pytest.mark.parametrize("size", [17_000, 30_000])
async def test_a_call_with_too_long_a_token_gets_a_status_and_the_connection_goes_on(size: int) -> None:
    async with serving(Echo()) as server:

        def ask() -> list[str]:
            peer = RawPeer(server.addresses[0])
            statuses = []
            for stream_id, token in ((1, "a" * size), (3, "a" * 12_000)):
                peer.request(UNARY, stream_id=stream_id, authorization=f"Bearer {token}")
                peer.message(b"x", stream_id=stream_id, end_stream=True)
                (answer,) = (each for each in peer.events_until(ResponseReceived) if isinstance(each, ResponseReceived))
                fields = dict(answer.headers)
                statuses.append(fields.get("grpc-status", "") + fields.get("grpc-message", ""))
            peer.close()
            return statuses

        with capture_logs() as logs:
            refused, served = await in_thread(ask)
        assert refused.startswith("8") and "at most 16384 are read" in refused
        assert served == ""
        assert server.statistics().oversized_headers == 1
        assert server.statistics().connections_cut == 0
        (line,) = (entry for entry in logs if entry["event"] == "a call was refused")
        assert "is its token too long" in line["reason"] and "aaa" not in str(logs)


async def test_headers_beyond_measure_end_the_connection_and_are_counted() -> None:
    async with serving(Echo()) as server:

        def ask() -> None:
            peer = RawPeer(server.addresses[0])
            peer.request(UNARY, **{f"x-{n}": "0" * 4000 for n in range(20)})
            peer.events_until(ConnectionTerminated)
            peer.close()

        await in_thread(ask)
        await settled(lambda: server.statistics().connections_cut == 1)
        await still_serves(server)


async def test_a_reset_in_the_middle_of_a_message_cancels_the_handler_and_spares_the_connection() -> None:
    echo = Echo()
    async with serving(echo) as server:

        def reset() -> list[object]:
            peer = RawPeer(server.addresses[0])
            peer.request(BIDI)
            peer.message(b"whole")
            peer.events_until(DataReceived)
            peer.message(b"cut short", cut=8)
            peer.h2.reset_stream(1, error_code=8)
            peer.request(UNARY, stream_id=3)
            peer.message(b"ping", stream_id=3, end_stream=True)
            events = peer.events_until(DataReceived)
            peer.close()
            return events

        events = await in_thread(reset)
        assert any(isinstance(event, DataReceived) and event.stream_id == 3 for event in events)
        assert echo.streams[0].cancelled
        assert "half-closed" not in echo.events
        await still_serves(server)


async def test_a_stream_that_ends_in_the_middle_of_a_message_gets_a_status() -> None:
    async with serving(Echo()) as server:

        def end() -> dict[str, str]:
            peer = RawPeer(server.addresses[0])
            peer.request(UNARY)
            peer.message(b"cut short", cut=8, end_stream=True)
            (answer,) = (each for each in peer.events_until(ResponseReceived) if isinstance(each, ResponseReceived))
            peer.close()
            return dict(answer.headers)

        answer = await in_thread(end)
        assert answer["grpc-status"] == "13"
        assert answer["grpc-message"] == "the stream ended in the middle of a message"
        await still_serves(server)


async def test_a_unary_call_without_a_request_gets_a_status() -> None:
    async with serving(Echo()) as server:

        def ask() -> dict[str, str]:
            peer = RawPeer(server.addresses[0])
            peer.request(UNARY, end_stream=True)
            (answer,) = (each for each in peer.events_until(ResponseReceived) if isinstance(each, ResponseReceived))
            peer.close()
            return dict(answer.headers)

        assert (await in_thread(ask))["grpc-message"] == "the call needs a request, and none came"


async def test_a_compressed_message_is_refused() -> None:
    async with serving(Echo()) as server:

        def send() -> dict[str, str]:
            peer = RawPeer(server.addresses[0])
            peer.request(UNARY, grpc_encoding="gzip")
            peer.h2.send_data(1, b"\1\0\0\0\1x", end_stream=True)
            peer.flush()
            (answer,) = (each for each in peer.events_until(ResponseReceived) if isinstance(each, ResponseReceived))
            peer.close()
            return dict(answer.headers)

        assert (await in_thread(send))["grpc-status"] == "12"


@pytest.mark.parametrize("farewell", ["half-close", "close", "reset"])
async def test_a_peer_that_hangs_up_cancels_its_handlers(farewell: str) -> None:
    echo = Echo()
    async with serving(echo) as server:

        def hang_up() -> None:
            peer = RawPeer(server.addresses[0])
            peer.request(WAIT)
            peer.events_until(DataReceived)
            match farewell:
                case "half-close":
                    peer.socket.shutdown(socket.SHUT_WR)
                    read_to_end(peer.socket)
                case "reset":
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()

        await in_thread(hang_up)
        await echo.until("cancelled")
        await still_serves(server)


async def test_a_peer_that_ignores_pings_is_closed(mock_clock: MockClock) -> None:
    echo = Echo()
    async with serving(echo, limits=Limits(keepalive_interval_seconds=30, keepalive_timeout_seconds=10)) as server:
        peer = RawPeer(server.addresses[0])
        await in_thread(peer.request, WAIT)
        await echo.until("waiting")
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(10)  # the preface came in time
        await wait_all_tasks_blocked()
        mock_clock.jump(30)
        await wait_all_tasks_blocked()
        assert server.statistics().connections_open == 1
        mock_clock.jump(10)
        await echo.until("cancelled")
        assert PingFrame(0).serialize()[3:5] in await in_thread(read_to_end, peer.socket)
        peer.close()
        await settled(lambda: server.statistics().connections_open == 0)


async def test_a_peer_that_answers_pings_stays(mock_clock: MockClock) -> None:
    limits = Limits(keepalive_interval_seconds=30, keepalive_timeout_seconds=10)
    async with serving(Echo(), limits=limits) as server, open_channel(server.addresses[0]):
        await settled(lambda: server.statistics().bytes_received > 0)
        before = server.statistics().bytes_received
        for _ in range(20):
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(10)
        await wait_all_tasks_blocked(0.01)
        assert server.statistics().connections_open == 1
        assert server.statistics().bytes_received > before


async def test_a_channel_notices_a_server_that_ignores_pings(mock_clock: MockClock) -> None:
    (listener,) = await open_listeners("127.0.0.1:0")
    limits = Limits(keepalive_interval_seconds=30, keepalive_timeout_seconds=10)

    async def greet_and_fall_silent() -> None:
        async with await listener.accept() as peer:
            await peer.send_all(SettingsFrame(0).serialize())
            await trio.sleep_forever()

    async def pass_time() -> None:
        for seconds in (10, 30, 10):
            await wait_all_tasks_blocked(0.02)
            mock_clock.jump(seconds)

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(greet_and_fall_silent)
        async with open_channel(address_of(listener.socket), limits=limits) as channel:
            nursery.start_soon(pass_time)
            with pytest.raises(ConnectionLost, match="did not answer a keepalive ping in 10 s"):
                await channel.unary(UNARY, b"", bytes)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("greeting", "complaint"),
    [
        (b"", "the connection is lost: closed by the peer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the connection is lost: .*"),
    ],
)
async def test_a_channel_to_what_is_no_grpc_server_says_so(greeting: bytes, complaint: str) -> None:
    (listener,) = await open_listeners("127.0.0.1:0")

    async def greet() -> None:
        async with await listener.accept() as peer:
            await peer.receive_some()
            await peer.send_all(greeting)

    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        with pytest.raises(ConnectionLost, match=complaint):
            async with open_channel(address_of(listener.socket)):
                pass


async def test_a_peer_that_says_nothing_is_closed(mock_clock: MockClock) -> None:
    async with serving(Echo()) as server:
        sock = await in_thread(connect, server)
        await settled(lambda: server.statistics().connections_open == 1)
        await wait_all_tasks_blocked()
        mock_clock.jump(10)
        await settled(lambda: server.statistics().connections_open == 0)
        await in_thread(read_to_end, sock)
        sock.close()


async def test_a_flood_of_pings_whose_answers_are_not_read_ends_the_connection() -> None:
    async with serving(Echo()) as server:

        def flood() -> None:
            peer = RawPeer(server.addresses[0])
            pings = PingFrame(0, b"12345678").serialize() * 10_000
            with pytest.raises(OSError):
                for _ in range(1000):
                    peer.socket.sendall(pings)
            peer.close()

        await in_thread(flood)
        await still_serves(server)


async def test_streams_opened_and_reset_in_a_hurry_do_not_pile_up() -> None:
    most = 0

    class Watched(Echo):
        async def wait(self, stream: object) -> None:
            nonlocal most
            most = max(most, server.statistics().streams_open)
            await trio.sleep_forever()

    async with serving(Watched(), limits=Limits(max_concurrent_streams=10, frame_burst=math.inf)) as server:

        def hurry() -> None:
            peer = RawPeer(server.addresses[0])
            for stream_id in range(1, 4000, 2):
                peer.request(WAIT, stream_id=stream_id)
                peer.h2.reset_stream(stream_id, error_code=8)
            peer.flush()
            peer.close()

        await in_thread(hurry)
        await still_serves(server)
        assert server.statistics().streams_total > 100
        assert most <= 20


async def test_more_streams_than_allowed_are_refused() -> None:
    async with serving(Echo(), limits=Limits(max_concurrent_streams=1)) as server:

        def two_streams() -> list[object]:
            peer = RawPeer(server.addresses[0])
            peer.request(WAIT)
            peer.request(WAIT, stream_id=3)
            events = peer.events_until(StreamReset)
            peer.close()
            return events

        (reset,) = (event for event in await in_thread(two_streams) if isinstance(event, StreamReset))
        assert (reset.stream_id, reset.error_code) == (3, 7)
