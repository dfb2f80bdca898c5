"""grpcio clients against our server: calls of every kind, and every way a call can end."""

from __future__ import annotations

import grpc
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.net.rpc import Cardinality, Handler, Limits, Server
from tests.rpc.rpc_support import UNLIMITED, Bytes, Echo, in_thread, serving, settled


class Client:
    """A grpcio channel to one server, used from a thread."""

    def __init__(self, server: Server) -> None:
        self.channel = grpc.insecure_channel(server.addresses[0], options=UNLIMITED)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def unary(self, name: str, request: bytes, **options: object) -> bytes:
        reply: bytes = self.channel.unary_unary(f"/test.Echo/{name}")(request, timeout=60, **options)
        return reply

    def error(self, name: str, request: bytes, timeout: float = 10) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as caught:
            self.channel.unary_unary(f"/test.Echo/{name}")(request, timeout=timeout)
        return caught.value.code(), caught.value.details()


async def test_calls_of_every_cardinality_are_answered() -> None:
    def calls(server: Server) -> None:
        with Client(server) as client:
            assert client.unary("Unary", b"ping") == b"ping"
            assert client.unary("Unary", b"") == b""
            assert list(client.channel.unary_stream("/test.Echo/Count")(b"3")) == [b"0", b"1", b"2"]
            assert client.channel.stream_unary("/test.Echo/Join")(iter([b"a", b"b", b""])) == b"ab"
            many = [str(number).encode() * 50 for number in range(300)]
            assert list(client.channel.stream_stream("/test.Echo/Bidi")(iter(many))) == many
            assert server.connections()[0].peer.startswith("127.0.0.1:")

    async with serving(Echo()) as server:
        await in_thread(calls, server)
        after = server.statistics()
        assert (after.streams_total, after.streams_open, after.connections_total) == (5, 0, 1)
        assert (after.messages_received, after.messages_sent) == (306, 306)
        assert after.bytes_received > 30_000


@pytest.mark.parametrize("size", [1_000_000, 16_000_000])
async def test_large_messages_go_both_ways(size: int) -> None:
    message = bytes(range(256)) * (size // 256)

    def calls(server: Server) -> None:
        with Client(server) as client:
            assert client.unary("Unary", message) == message
            assert list(client.channel.stream_stream("/test.Echo/Bidi")(iter([message, b"x"]))) == [message, b"x"]

    async with serving(Echo()) as server:
        await in_thread(calls, server)


async def test_a_message_larger_than_the_limit_is_refused_and_the_connection_lives() -> None:
    def calls(server: Server) -> None:
        with Client(server) as client:
            code, details = client.error("Unary", bytes(1001))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == "a message of 1001 bytes is larger than the limit of 1000 bytes"
            assert client.unary("Unary", bytes(1000)) == bytes(1000)

    async with serving(Echo(), limits=Limits(max_message_size=1000)) as server:
        await in_thread(calls, server)
        assert server.statistics().connections_total == 1


async def test_errors_of_handlers_become_statuses_and_the_server_lives() -> None:
    def calls(server: Server) -> None:
        with Client(server) as client:
            assert client.error("Fail", b"status") == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "tea pots only: 100 % naïve",
            )
            assert client.error("Fail", b"group") == (grpc.StatusCode.ABORTED, "from a nursery")
            assert client.error("Fail", b"bug") == (grpc.StatusCode.INTERNAL, "internal error of the server")
            assert client.error("Fail", b"silent") == (grpc.StatusCode.INTERNAL, "internal error of the server")
            assert client.error("Nothing", b"") == (
                grpc.StatusCode.UNIMPLEMENTED,
                "there is no method /test.Echo/Nothing",
            )
            assert client.unary("Unary", b"ping") == b"ping"

    with capture_logs() as logs:
        async with serving(Echo()) as server:
            await in_thread(calls, server)
            assert server.statistics().connections_total == 1
    assert [entry["event"] for entry in logs] == [
        "a gRPC handler failed",
        "a gRPC handler returned without a reply",
    ]


async def test_a_request_that_cannot_be_decoded_is_refused() -> None:
    class Strict(Echo):
        def __mapping__(self) -> dict[str, Handler]:
            class Number(int):
                @classmethod
                def FromString(cls, data: bytes) -> Number:
                    return cls(data)

            return {"/test.Echo/Unary": Handler(self.unary, Cardinality.UNARY_UNARY, Number, bytes)}

    def calls(server: Server) -> None:
        with Client(server) as client:
            code, details = client.error("Unary", b"x")
            assert code is grpc.StatusCode.INTERNAL
            assert details.startswith("the request cannot be decoded: invalid literal")

    async with serving(Strict()) as server:
        await in_thread(calls, server)


async def test_a_handler_knows_the_metadata_and_its_peer() -> None:
    class Meta(Echo):
        async def unary(self, stream: Bytes) -> None:
            assert stream.metadata["key"] == "value"
            assert stream.metadata["raw-bin"] == b"\0\xff"
            assert stream.path == "/test.Echo/Unary"
            assert stream.peer.address.startswith("127.0.0.1:")
            assert (stream.peer.tls, stream.peer.spiffe_ids) == (False, ())
            await stream.send_message(b"")

    def calls(server: Server) -> None:
        with Client(server) as client:
            method = client.channel.unary_unary("/test.Echo/Unary")
            assert method(b"", metadata=(("key", "value"), ("raw-bin", b"\0\xff")), timeout=60) == b""

    async with serving(Meta()) as server:
        await in_thread(calls, server)


async def test_a_deadline_cancels_the_handler(mock_clock: MockClock) -> None:
    echo = Echo()

    def calls(server: Server) -> None:
        with Client(server) as client:
            replies = client.channel.stream_stream("/test.Echo/Wait")(iter(()), timeout=100)
            with pytest.raises(grpc.RpcError) as caught:
                list(replies)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async with serving(echo) as server, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, calls, server)
        await echo.until("waiting")
        mock_clock.jump(100)
        await echo.until("cancelled")
        await settled(lambda: server.statistics().streams_open == 0)


async def test_a_client_that_cancels_cancels_the_handler_and_the_connection_lives() -> None:
    echo = Echo()

    def calls(server: Server) -> None:
        with Client(server) as client:
            replies = client.channel.stream_stream("/test.Echo/Wait")(iter(()))
            assert next(replies) == b"hello"
            replies.cancel()
            assert client.unary("Unary", b"ping") == b"ping"

    async with serving(echo) as server:
        await in_thread(calls, server)
        await echo.until("cancelled")
        assert server.statistics().connections_total == 1


async def test_cancelling_the_server_resets_the_streams() -> None:
    echo = Echo()
    outcome: list[grpc.StatusCode] = []

    def calls(server: Server) -> None:
        with Client(server) as client:
            replies = client.channel.stream_stream("/test.Echo/Wait")(iter(()))
            with pytest.raises(grpc.RpcError) as caught:
                list(replies)
            outcome.append(caught.value.code())

    async with trio.open_nursery() as nursery:
        async with serving(echo) as server:
            nursery.start_soon(in_thread, calls, server)
            await echo.until("waiting")
        assert echo.events[-1] == "cancelled"
    assert outcome[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


async def test_a_handler_may_receive_and_send_in_two_tasks() -> None:
    class TwoTasks(Echo):
        async def bidi(self, stream: Bytes) -> None:
            to_sender, queue = trio.open_memory_channel[bytes](10)

            async def receive() -> None:
                async with to_sender:
                    async for request in stream:
                        await to_sender.send(request)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                async for each in queue:
                    await stream.send_message(each)
                    await stream.send_message(each)

    def calls(server: Server) -> None:
        with Client(server) as client:
            replies = list(client.channel.stream_stream("/test.Echo/Bidi")(iter([b"a", b"b"])))
            assert replies == [b"a", b"a", b"b", b"b"]

    async with serving(TwoTasks()) as server:
        await in_thread(calls, server)


async def test_more_streams_than_allowed_wait_for_their_turn() -> None:
    echo = Echo()

    def calls(server: Server) -> None:
        with Client(server) as client:
            first, second = (client.channel.stream_stream("/test.Echo/Wait")(iter(())) for _ in range(2))
            assert next(first) == next(second) == b"hello"
            third = client.channel.unary_unary("/test.Echo/Unary").future(b"ping", timeout=60)
            first.cancel()
            assert third.result() == b"ping"
            second.cancel()

    async with serving(echo, limits=Limits(max_concurrent_streams=2)) as server:
        await in_thread(calls, server)
        assert server.statistics().connections_total == 1
