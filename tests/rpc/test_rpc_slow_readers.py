"""Clients that do not read: their handlers wait, memory stays bounded, nobody else notices."""

from __future__ import annotations

import grpc
import trio
from trio.testing import wait_all_tasks_blocked

from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.rpc.rpc_support import Bytes, Echo, RawPeer, in_thread, serving, settled

UNARY = "/test.Echo/Unary"
FLOOD = "/test.Echo/Flood"


async def stalled(echo: Echo) -> int:
    """Wait until the flooding handler sends no more; returns how often it did."""
    sent = -1
    while sent != echo.events.count("sent"):
        sent = echo.events.count("sent")
        await wait_all_tasks_blocked(0.1)
    return sent


async def test_a_handler_waits_for_a_grpcio_client_that_does_not_read() -> None:
    echo = Echo()
    async with serving(echo) as server:
        channel = grpc.insecure_channel(server.addresses[0])
        replies = channel.unary_stream(FLOOD)(b"")
        await echo.until("sent")
        sent = await stalled(echo)
        assert sent < 500  # 32 MiB: grpcio's window and the kernel's buffers
        assert server.connections()[0].bytes_waiting <= 512 * 1024
        async with open_channel(server.addresses[0]) as other:
            assert await other.unary(UNARY, bytes(1_000_000), bytes) == bytes(1_000_000)

        def read(count: int) -> None:
            for _ in range(count):
                assert len(next(replies)) == 64 * 1024

        await in_thread(read, sent + 20)
        assert echo.events.count("sent") > sent
        replies.cancel()
        await echo.until("cancelled")
        await in_thread(channel.close)
        await settled(lambda: server.statistics().connections_open == 0)


async def test_a_handler_waits_for_a_socket_that_is_full_whatever_the_window() -> None:
    echo = Echo()
    async with serving(echo) as server:
        peer = RawPeer(server.addresses[0])

        def ask() -> None:
            peer.h2.update_settings({4: 2**31 - 1})
            peer.h2.increment_flow_control_window(2**31 - 1 - 65535)
            peer.request(FLOOD)
            peer.message(b"", end_stream=True)

        await in_thread(ask)
        await echo.until("sent")
        await stalled(echo)
        assert 64 * 1024 < server.connections()[0].bytes_waiting <= 512 * 1024
        await in_thread(peer.close)
        await echo.until("cancelled")
        await settled(lambda: server.statistics().connections_open == 0)


async def test_a_large_message_is_not_queued_as_a_whole_for_a_peer_that_would_take_it_as_one_frame() -> None:
    class Large(Echo):
        async def unary(self, stream: Bytes) -> None:
            await stream.recv_message()
            await stream.send_message(bytes(16_000_000))

    async with serving(Large()) as server:
        peer = RawPeer(server.addresses[0])

        def ask() -> None:
            peer.h2.update_settings({4: 2**31 - 1, 5: 2**24 - 1})
            peer.h2.increment_flow_control_window(2**31 - 1 - 65535)
            peer.request(UNARY)
            peer.message(b"", end_stream=True)

        await in_thread(ask)
        await settled(lambda: server.connections()[0].bytes_waiting > 64 * 1024)
        await wait_all_tasks_blocked(0.1)
        assert server.connections()[0].bytes_waiting <= 512 * 1024
        assert server.statistics().connections_cut == 0
        await in_thread(peer.close)


async def test_streams_of_one_connection_share_it_when_one_of_them_is_not_read() -> None:
    echo = Echo()
    async with serving(echo) as server, open_channel(server.addresses[0]) as channel:
        async with channel.request(FLOOD, Cardinality.UNARY_STREAM, bytes, bytes) as unread:
            await unread.send_message(b"")
            await echo.until("sent")
            sent = await stalled(echo)
            assert sent <= 80  # 5 MiB: the stream's window of 4 MiB
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
            assert await channel.unary(UNARY, bytes(8_000_000), bytes) == bytes(8_000_000)
            assert await unread.recv_message() == bytes(64 * 1024)
        await echo.until("cancelled")


async def test_a_client_that_sends_to_a_handler_that_does_not_read_waits() -> None:
    echo = Echo()
    async with serving(echo) as server, open_channel(server.addresses[0]) as channel:
        async with channel.request("/test.Echo/Wait", Cardinality.STREAM_STREAM, bytes, bytes) as call:
            sent = 0

            async def send() -> None:
                nonlocal sent
                while True:
                    await call.send_message(bytes(64 * 1024))
                    sent += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await echo.until("waiting")
                before = -1
                while sent != before:
                    before = sent
                    await wait_all_tasks_blocked(0.1)
                assert 0 < sent <= 64  # the 4 MiB of the stream's window
                assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
                nursery.cancel_scope.cancel()
        await echo.until("cancelled")


async def test_what_a_handler_leaves_unread_does_not_use_up_the_connection() -> None:
    class Rude(Echo):
        async def join(self, stream: Bytes) -> None:
            """Return after the first message, whatever else comes."""
            await stream.recv_message()
            await stream.send_message(b"enough")

    async with serving(Rude()) as server, open_channel(server.addresses[0]) as channel:
        for _ in range(30):  # 30 MB through a window of 16 MiB
            async with channel.request("/test.Echo/Join", Cardinality.STREAM_UNARY, bytes, bytes) as call:
                for _ in range(10):
                    await call.send_message(bytes(100_000))
                await call.end()
                assert await call.recv_message() == b"enough"
