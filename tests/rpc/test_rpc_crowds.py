"""Many connections at once, and what one message to all of them costs."""

from __future__ import annotations

import grpc
import pytest
import trio

from mesh_pilot.app.upkeep import connections_ended
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.rpc.rpc_support import Bytes, Echo, in_thread, serving, settled
from tests.support.patience import PATIENT_CLIENT, PATIENT_SERVER

BIDI = "/test.Echo/Bidi"


@pytest.mark.slow
async def test_500_connections_at_once_are_served_and_leave_nothing() -> None:
    message = bytes(500)
    ready = 0
    everyone = trio.Event()

    async def client(address: str) -> None:
        nonlocal ready
        async with (
            open_channel(address, limits=PATIENT_CLIENT) as channel,
            channel.request(BIDI, Cardinality.STREAM_STREAM, bytes, bytes) as call,
        ):
            await call.send_message(message)
            assert await call.recv_message() == message
            ready += 1
            if ready == 500:
                everyone.set()
            await everyone.wait()
            await call.send_message(message, end=True)
            assert await call.recv_message() == message

    async with serving(Echo(), limits=PATIENT_SERVER) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(client, server.addresses[0])
            await everyone.wait()
            at_most = server.statistics()
            assert (at_most.connections_open, at_most.streams_open) == (500, 500)
        await settled(lambda: server.statistics().connections_open == 0)
        after = server.statistics()
        assert (after.connections_total, after.streams_open, after.messages_sent) == (500, 0, 1000)


async def test_50_grpcio_channels_with_streams_are_pushed_to() -> None:
    class Pusher(Echo):
        def __init__(self) -> None:
            super().__init__()
            self.waiting = 0
            self.push = trio.Event()

        async def bidi(self, stream: Bytes) -> None:
            self.waiting += 1
            await self.push.wait()
            await stream.send_message(b"one")
            await stream.send_message(b"two")

    pusher = Pusher()

    def clients(address: str) -> list[list[bytes]]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(address, options=options) for _ in range(50)]
        calls = [channel.stream_stream(BIDI)(iter(())) for channel in channels]
        replies = [list(call) for call in calls]
        for channel in channels:
            channel.close()
        return replies

    async with serving(pusher) as server, trio.open_nursery() as nursery:

        async def push_to_all() -> None:
            await settled(lambda: pusher.waiting == 50)
            assert server.statistics().connections_open == 50
            pusher.push.set()

        nursery.start_soon(push_to_all)
        assert await in_thread(clients, server.addresses[0]) == [[b"one", b"two"]] * 50


async def test_connections_that_never_spoke_count_as_ended() -> None:
    """By that number it is decided when memory is given back."""
    async with serving(Echo()) as server:
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", int(server.addresses[0].rpartition(":")[2])):
                pass
        with trio.fail_after(60):
            while connections_ended([server]) < 3:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert server.statistics().streams_total == 0
