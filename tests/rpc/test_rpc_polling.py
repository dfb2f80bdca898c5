"""Sockets that one task reads, by each of the ways that a platform may have."""

from __future__ import annotations

import select
import socket
from contextlib import AsyncExitStack

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from mesh_pilot.net.rpc import Cardinality, ConnectionLost, StreamTerminatedError, open_channel
from mesh_pilot.net.rpc.http2 import Http2
from mesh_pilot.net.rpc.polling import EpollPoller, WaitingTasks
from tests.rpc.rpc_support import Echo, serving, settled

Poller = type[EpollPoller] | type[WaitingTasks]
BIDI = "/test.Echo/Bidi"
BOTH = Cardinality.STREAM_STREAM


@pytest.fixture(params=[WaitingTasks, *([EpollPoller] if hasattr(select, "epoll") else [])])
def kind(request: pytest.FixtureRequest) -> Poller:
    found: Poller = request.param
    return found


async def test_readers_are_called_until_they_are_removed(kind: Poller) -> None:
    ours, theirs = zip(*(socket.socketpair() for _ in range(3)), strict=True)
    read: list[tuple[int, bytes]] = []
    async with trio.open_nursery() as nursery:
        poller = kind(nursery)
        for number, sock in enumerate(ours):
            sock.setblocking(False)
            poller.add(sock, lambda number=number, sock=sock: read.append((number, sock.recv(1))))
        theirs[0].send(b"ab")
        theirs[2].send(b"c")
        await settled(lambda: len(read) == 3)
        assert sorted(read) == [(0, b"a"), (0, b"b"), (2, b"c")]
        poller.remove(ours[0])
        poller.remove(ours[0])
        theirs[0].send(b"d")
        theirs[1].send(b"e")
        await settled(lambda: len(read) == 4)
        await wait_all_tasks_blocked()
        assert read[3:] == [(1, b"e")]
        nursery.cancel_scope.cancel()
    for sock in (*ours, *theirs):
        sock.close()


async def test_a_reader_may_remove_another_that_has_something_too(kind: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    read: list[int] = []
    async with trio.open_nursery() as nursery:
        poller = kind(nursery)

        def take(number: int) -> None:
            read.append(number)
            for sock, _ in pairs:
                poller.remove(sock)

        for number, (ours, theirs) in enumerate(pairs):
            theirs.send(b"x")
            poller.add(ours, lambda number=number: take(number))
        await settled(lambda: bool(read))
        await wait_all_tasks_blocked()
        assert len(read) == 1
        nursery.cancel_scope.cancel()
    for pair in pairs:
        for sock in pair:
            sock.close()


async def test_a_server_serves_and_notices_who_leaves(kind: Poller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.net.rpc.server.open_poller", kind)
    async with serving(Echo()) as server, AsyncExitStack() as channels:
        calls = []
        for _ in range(5):
            channel = await channels.enter_async_context(open_channel(server.addresses[0]))
            calls.append(await channels.enter_async_context(channel.request(BIDI, BOTH, bytes, bytes)))
        for size in (1, 100, 300_000):
            for call in calls:
                await call.send_message(bytes(size))
            assert [await call.recv_message() for call in calls] == [bytes(size)] * 5
        await channels.aclose()
        await settled(lambda: server.statistics().connections_open == 0)


async def test_what_goes_wrong_with_one_connection_ends_that_one(kind: Poller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.net.rpc.server.open_poller", kind)
    feed = Http2.feed

    def failing(self: Http2, data: bytes) -> None:
        if b"fatal" in data:
            raise ZeroDivisionError("a bug")
        feed(self, data)

    monkeypatch.setattr(Http2, "feed", failing)
    with capture_logs() as logs:
        async with (
            serving(Echo()) as server,
            open_channel(server.addresses[0]) as one,
            open_channel(server.addresses[0]) as other,
            other.request(BIDI, BOTH, bytes, bytes) as call,
        ):
            await call.send_message(b"before")
            assert await call.recv_message() == b"before"
            with pytest.raises((ConnectionLost, StreamTerminatedError)):
                await one.unary("/test.Echo/Unary", b"fatal", bytes)
            await call.send_message(b"after")
            assert await call.recv_message() == b"after"
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["a gRPC connection failed"]
