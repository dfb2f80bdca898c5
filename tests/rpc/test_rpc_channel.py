"""Our channel against grpcio servers, and against ours where the server's side of the story matters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import trio
from grpclib.metadata import Deadline
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from trio.testing import MockClock

from mesh_pilot.net.rpc import (
    AddressError,
    Cardinality,
    Channel,
    ConnectionLost,
    GRPCError,
    Limits,
    Status,
    open_channel,
    open_listeners,
)
from mesh_pilot.net.rpc.net import address_of
from tests.rpc.rpc_support import Bytes, Echo, grpcio_server, in_thread, serving, settled

UNARY = "/test.Echo/Unary"
BIDI = "/test.Echo/Bidi"
WAIT = "/test.Echo/Wait"
BOTH = Cardinality.STREAM_STREAM


def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
    context.set_trailing_metadata((("seen", str(context.time_remaining() is not None)),))
    if request == b"fail":
        context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: naïve")
    return request


def echo_all(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield from requests


HANDLERS = {
    "Unary": grpc.unary_unary_rpc_method_handler(echo),
    "Bidi": grpc.stream_stream_rpc_method_handler(echo_all),
    "Count": grpc.unary_stream_rpc_method_handler(lambda request, _: (b"%d" % n for n in range(int(request)))),
    "Join": grpc.stream_unary_rpc_method_handler(lambda requests, _: b"".join(requests)),
}


async def test_calls_of_every_cardinality_are_answered_by_grpcio() -> None:
    with grpcio_server(HANDLERS) as address:
        async with open_channel(address) as channel:
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
            async with channel.request("/test.Echo/Count", Cardinality.UNARY_STREAM, bytes, bytes) as call:
                await call.send_message(b"3")
                assert [reply async for reply in call] == [b"0", b"1", b"2"]
            async with channel.request("/test.Echo/Join", Cardinality.STREAM_UNARY, bytes, bytes) as call:
                await call.send_message(b"a")
                await call.send_message(b"b", end=True)
                assert await call.recv_message() == b"ab"
            async with channel.request(BIDI, BOTH, bytes, bytes) as call:
                for number in range(100):
                    await call.send_message(b"%d" % number)
                    assert await call.recv_message() == b"%d" % number
                await call.end()
                assert await call.recv_message() is None
            after = channel.statistics()
            assert (after.streams_open, after.streams_total, after.messages_sent) == (0, 4, 104)


@pytest.mark.parametrize("size", [1_000_000, 16_000_000])
async def test_large_messages_go_both_ways_with_grpcio(size: int) -> None:
    message = bytes(range(256)) * (size // 256)
    with grpcio_server(HANDLERS) as address:
        async with open_channel(address) as channel:
            assert await channel.unary(UNARY, message, bytes) == message


async def test_a_status_that_is_not_ok_is_raised() -> None:
    with grpcio_server(HANDLERS) as address:
        async with open_channel(address) as channel:
            with pytest.raises(GRPCError) as caught:
                await channel.unary(UNARY, b"fail", bytes)
            assert (caught.value.status, caught.value.message) == (Status.NOT_FOUND, "no such thing: naïve")
            with pytest.raises(GRPCError) as caught:
                await channel.unary("/test.Echo/None", b"", bytes)
            assert caught.value.status is Status.UNIMPLEMENTED
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"


async def test_metadata_and_deadline_reach_the_server_and_trailers_come_back() -> None:
    seen: list[object] = []

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.extend((dict(context.invocation_metadata())["key"], context.time_remaining() < 21))
        return echo(request, context)

    with grpcio_server({"Unary": grpc.unary_unary_rpc_method_handler(handler)}) as address:
        async with open_channel(address) as channel:
            call = channel.request(
                UNARY,
                Cardinality.UNARY_UNARY,
                bytes,
                bytes,
                timeout=30,
                deadline=Deadline.from_timeout(20),
                metadata={"key": "value"},
            )
            async with call:
                await call.send_message(b"x")
                assert await call.recv_message() == b"x"
            assert seen == ["value", True]


async def test_a_deadline_that_passes_is_raised_and_resets_the_call(mock_clock: MockClock) -> None:
    service = Echo()
    async with serving(service) as server, open_channel(server.addresses[0]) as channel:
        async with channel.request(WAIT, BOTH, bytes, bytes, timeout=50) as call:
            await call.send_request()
            assert await call.recv_message() == b"hello"
            mock_clock.jump(60)
            with pytest.raises(GRPCError) as caught:
                await call.recv_message()
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        await service.until("cancelled")


async def test_leaving_a_call_early_cancels_it_at_a_grpcio_server() -> None:
    cancelled = threading.Event()

    def wait(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(cancelled.set)
        yield b"hello"
        cancelled.wait()

    with grpcio_server({"Wait": grpc.stream_stream_rpc_method_handler(wait)}) as address:
        async with open_channel(address) as channel:
            async with channel.request(WAIT, BOTH, bytes, bytes) as call:
                await call.send_request()
                assert await call.recv_message() == b"hello"
            assert await in_thread(cancelled.wait, 10)


async def test_cancelling_the_task_of_a_call_cancels_its_handler() -> None:
    service = Echo()
    async with serving(service) as server, open_channel(server.addresses[0]) as channel:
        with trio.CancelScope() as scope:
            async with channel.request(WAIT, BOTH, bytes, bytes) as call:
                await call.send_request()
                await service.until("waiting")
                scope.cancel()
                await call.recv_message()
        await service.until("cancelled")
        assert await channel.unary(UNARY, b"ping", bytes) == b"ping"


async def test_a_lost_connection_is_raised_in_every_call_and_by_new_ones() -> None:
    lost: list[str] = []

    async def hang_up_after_two_calls(listener: trio.SocketListener) -> None:
        http = H2Connection(H2Configuration(client_side=False))
        http.initiate_connection()
        calls = 0
        async with await listener.accept() as stream:
            while calls < 2:
                await stream.send_all(http.data_to_send())
                events = http.receive_data(await stream.receive_some())
                calls += sum(isinstance(event, RequestReceived) for event in events)

    async def call_until_lost(channel: Channel) -> None:
        with pytest.raises(ConnectionLost) as caught:
            async with channel.request(WAIT, BOTH, bytes, bytes) as call:
                await call.send_request()
                await call.recv_message()
        lost.append(str(caught.value))

    (listener,) = await open_listeners("127.0.0.1:0")
    address = address_of(listener.socket)
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(hang_up_after_two_calls, listener)
        async with open_channel(address) as channel:
            async with trio.open_nursery() as calls:
                calls.start_soon(call_until_lost, channel)
                calls.start_soon(call_until_lost, channel)
            assert {text.removeprefix(f"{address}: the connection is lost: ") for text in lost} <= {
                "closed by the peer",
                "Connection reset by peer",
            }
            with pytest.raises(ConnectionLost, match="the connection is lost"):
                await channel.unary(UNARY, b"ping", bytes)
            assert channel.statistics().streams_open == 0


async def test_an_address_where_nobody_listens_is_one_clear_line(free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    with pytest.raises(AddressError, match=f"^cannot connect to 127.0.0.1:{port}: Connection refused$"):
        async with open_channel(f"127.0.0.1:{port}"):
            pass


async def test_an_error_in_the_block_of_a_channel_comes_out_as_it_is() -> None:
    async with serving(Echo()) as server:
        with pytest.raises(ZeroDivisionError):
            async with open_channel(server.addresses[0]):
                raise ZeroDivisionError


async def test_a_server_that_goes_away_lets_open_calls_end_and_takes_no_more() -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", HANDLERS),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    async with open_channel(address) as channel:
        async with channel.request(BIDI, BOTH, bytes, bytes) as call:
            await call.send_message(b"1")
            assert await call.recv_message() == b"1"
            stopped = server.stop(10)
            await settled(lambda: channel.lost is not None)
            assert channel.lost == "the server is going away"
            with pytest.raises(ConnectionLost, match="the server is going away"):
                await channel.unary(UNARY, b"ping", bytes)
            await call.send_message(b"2", end=True)
            assert [reply async for reply in call] == [b"2"]
        assert await in_thread(stopped.wait, 10)


async def test_a_reply_larger_than_the_limit_is_refused() -> None:
    with grpcio_server(HANDLERS) as address:
        async with open_channel(address, limits=Limits(max_message_size=100)) as channel:
            with pytest.raises(GRPCError) as caught:
                await channel.unary(UNARY, bytes(101), bytes)
            assert caught.value.status is Status.RESOURCE_EXHAUSTED
            assert await channel.unary(UNARY, bytes(100), bytes) == bytes(100)


async def test_more_calls_than_the_server_allows_wait_for_their_turn() -> None:
    most = 0

    class Counting(Echo):
        async def unary(self, stream: Bytes) -> None:
            nonlocal most
            most = max(most, server.statistics().streams_open)
            await super().unary(stream)

    limits = Limits(max_concurrent_streams=3)
    async with serving(Counting(), limits=limits) as server, open_channel(server.addresses[0]) as channel:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(channel.unary, UNARY, b"ping", bytes)
        assert channel.statistics().messages_received == 50
    assert most <= 3


async def test_a_server_behind_a_unix_socket_is_reached(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/echo.sock"
    async with serving(Echo(), address=address) as server:
        assert server.addresses == [address]
        async with open_channel(address) as channel:
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
            assert server.connections()[0].peer == address
        target = address.replace("unix://", "unix:")

        def call() -> bytes:
            with grpc.insecure_channel(target) as channel:
                reply: bytes = channel.unary_unary(UNARY)(b"ping", timeout=60)
                return reply

        assert await in_thread(call) == b"ping"
