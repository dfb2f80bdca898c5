"""A server that is to go: running streams end or are cut, new ones are refused, nothing is left."""

from __future__ import annotations

import math
from pathlib import Path

import grpc
import pytest
import trio
from h2.errors import ErrorCodes
from hyperframe.frame import RstStreamFrame
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import (
    AddressError,
    Cardinality,
    CertificateFiles,
    ConnectionLost,
    GRPCError,
    Limits,
    Status,
    client_tls,
    open_channel,
    server_tls,
)
from mesh_pilot.net.rpc.net import connect
from tests.rpc.rpc_support import Echo, RawPeer, in_thread, serving, settled
from tests.support.certificates import write_certificates

UNARY = "/test.Echo/Unary"
BIDI = "/test.Echo/Bidi"
WAIT = "/test.Echo/Wait"
BOTH = Cardinality.STREAM_STREAM


async def test_a_drain_without_streams_closes_at_once() -> None:
    async with serving(Echo()) as server, open_channel(server.addresses[0]) as channel:
        assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
        await server.drain(60)
        assert repr(server) == f"<Server at {server.addresses[0]}, stopped, 0 connections>"
        assert server.statistics().draining
        with pytest.raises(AddressError, match="Connection refused"):
            async with open_channel(server.addresses[0]):
                pass
        await settled(lambda: channel.lost is not None)


async def test_a_drain_does_not_wait_for_handshakes(tmp_path: Path) -> None:
    own = write_certificates(tmp_path, "server")
    tls = server_tls(CertificateFiles(certificate=own.certificate, key=own.key))
    limits = Limits(max_handshakes=1, handshake_timeout_seconds=3600, silence_seconds=3600)
    async with serving(Echo(), tls=tls, limits=limits) as server:
        silent = [await connect(server.addresses[0]) for _ in range(2)]
        await settled(lambda: server.statistics().connections_open == 2)
        with trio.fail_after(30):
            await server.drain(3600)
        assert server.statistics().connections_open == 0
        assert server.statistics().failed_handshakes == {}
        for each in silent:
            each.close()


async def test_a_drain_lets_streams_end_and_takes_no_more() -> None:
    async with (
        serving(Echo()) as server,
        open_channel(server.addresses[0]) as channel,
        trio.open_nursery() as nursery,
        channel.request(BIDI, BOTH, bytes, bytes) as call,
    ):
        await call.send_message(b"1")
        assert await call.recv_message() == b"1"
        nursery.start_soon(server.drain, 60)
        await settled(lambda: channel.lost is not None)
        with pytest.raises(ConnectionLost, match="going away"):
            await channel.unary(UNARY, b"ping", bytes)
        await call.send_message(b"2", end=True)
        assert [reply async for reply in call] == [b"2"]


async def test_a_drain_cuts_what_runs_too_long_with_unavailable() -> None:
    echo = Echo()
    codes: list[object] = []

    def call(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            replies = channel.stream_stream(WAIT)(iter(()))
            try:
                list(replies)
            except grpc.RpcError as error:
                codes.append((error.code(), error.details()))

    async with serving(echo) as server, trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, call, server.addresses[0])
        await echo.until("waiting")
        await server.drain(0.05)
        assert server.statistics().streams_open == 0
    assert codes == [(grpc.StatusCode.UNAVAILABLE, "the server is going away")]


async def test_a_drain_does_not_wait_for_a_client_that_reads_nothing() -> None:
    echo = Echo()
    async with serving(echo) as server:
        peer = RawPeer(server.addresses[0])

        def ask() -> None:
            peer.h2.update_settings({4: 2**31 - 1})
            peer.h2.increment_flow_control_window(2**31 - 1 - 65535)
            peer.request("/test.Echo/Flood")
            peer.message(b"", end_stream=True)

        await in_thread(ask)
        await settled(lambda: bool(server.connections()) and server.connections()[0].bytes_waiting > 64 * 1024)
        with trio.fail_after(60):
            await server.drain(0)
        assert server.statistics().connections_open == 0
        await in_thread(peer.close)


async def test_streams_that_come_after_the_goaway_are_refused() -> None:
    echo = Echo()
    async with serving(echo) as server, trio.open_nursery() as nursery:
        peer = RawPeer(server.addresses[0])
        await in_thread(peer.request, WAIT)
        await echo.until("waiting")
        nursery.start_soon(server.drain, 60)

        def open_another() -> None:
            peer.request(WAIT, stream_id=3)
            refused = RstStreamFrame(3, error_code=ErrorCodes.REFUSED_STREAM).serialize()
            received = b""
            while refused not in received:
                received += peer.socket.recv(65536)
            peer.close()

        await in_thread(open_another)


async def test_a_connection_that_is_too_old_is_drained(mock_clock: MockClock) -> None:
    limits = Limits(max_connection_age_seconds=3600, max_connection_age_grace_seconds=60)
    echo = Echo()
    async with serving(echo, limits=limits) as server, open_channel(server.addresses[0]) as channel:
        async with channel.request(WAIT, BOTH, bytes, bytes) as call:
            await call.send_request()
            assert await call.recv_message() == b"hello"
            mock_clock.jump(3960)
            await settled(lambda: channel.lost == "the server is going away")
            await wait_all_tasks_blocked()
            mock_clock.jump(60)
            with pytest.raises(GRPCError) as caught:
                await call.recv_message()
        assert caught.value.status is Status.UNAVAILABLE
        await settled(lambda: server.statistics().connections_open == 0)
        async with open_channel(server.addresses[0]) as again:
            assert await again.unary(UNARY, b"ping", bytes) == b"ping"


async def test_a_connection_ends_with_the_certificate_of_its_client(mock_clock: MockClock, tmp_path: Path) -> None:
    """Theirs are of an hour."""
    own, theirs = write_certificates(tmp_path, "server"), write_certificates(tmp_path, "client")
    tls = server_tls(CertificateFiles(certificate=own.certificate, key=own.key, trusted=own.ca))
    ours = client_tls(CertificateFiles(certificate=theirs.certificate, key=theirs.key, trusted=own.ca))
    limits = Limits(
        keepalive_interval_seconds=math.inf, max_connection_age_seconds=7200, max_connection_age_grace_seconds=60
    )
    async with (
        serving(Echo(), tls=tls, limits=limits) as server,
        open_channel(server.addresses[0], tls=ours) as channel,
        channel.request(WAIT, BOTH, bytes, bytes) as call,
    ):
        await call.send_request()
        assert await call.recv_message() == b"hello"
        mock_clock.jump(3000)
        await wait_all_tasks_blocked()
        assert not channel.lost
        mock_clock.jump(700)
        await settled(lambda: channel.lost == "the server is going away")
        await wait_all_tasks_blocked()
        mock_clock.jump(60)
        with pytest.raises(GRPCError) as caught:
            await call.recv_message()
        assert caught.value.status is Status.UNAVAILABLE
