"""Connections that grow old: warned, not interrupted, and never all at once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import attrs
import trio
from hyperframe.frame import GoAwayFrame
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import Cardinality, CertificateFiles, Limits, client_tls, open_channel, server_tls
from mesh_pilot.net.rpc.net import connect
from tests.rpc.rpc_support import Bytes, Echo, RawPeer, in_thread, serving, settled
from tests.support.certificates import write_certificates
from tests.support.patience import PATIENT_CLIENT

UNARY = "/test.Echo/Unary"
WAIT = "/test.Echo/Wait"
BOTH = Cardinality.STREAM_STREAM
HOUR = Limits(max_connection_age_seconds=3600, max_connection_age_grace_seconds=60, keepalive_interval_seconds=1e6)
OLDEST, YOUNGEST = 3960, 3240
"""An hour and a tenth, an hour less a tenth."""


class Polite(Echo):
    """``Wait`` ends on its own when its connection is to end."""

    async def wait(self, stream: Bytes) -> None:
        end = trio.Event()
        stream.when_retiring(end.set)
        await stream.send_message(b"hello")
        self.note("waiting")
        await end.wait()
        await stream.send_message(b"goodbye")


async def test_a_stream_that_listens_ends_with_ok_at_once(mock_clock: MockClock) -> None:
    async with (
        serving(Polite(), limits=HOUR) as server,
        open_channel(server.addresses[0]) as channel,
        channel.request(WAIT, BOTH, bytes, bytes) as call,
    ):
        await call.send_request()
        assert await call.recv_message() == b"hello"
        mock_clock.jump(YOUNGEST - 1)
        await wait_all_tasks_blocked()
        assert not server.connections()[0].draining
        mock_clock.jump(OLDEST - YOUNGEST + 1)
        assert await call.recv_message() == b"goodbye"
        assert await call.recv_message() is None
        await settled(lambda: server.statistics().connections_open == 0)
        assert server.statistics().connections_retired == {"age": 1}
        assert server.statistics().connections_cut == 0


class Late(Polite):
    """``Wait`` listens for the end of its connection only after a while, as a call that has to be authenticated."""

    def __init__(self) -> None:
        super().__init__()
        self.authenticated = trio.Event()

    async def wait(self, stream: Bytes) -> None:
        self.note("begun")
        await self.authenticated.wait()
        await super().wait(stream)


async def test_a_stream_that_listens_after_the_warning_is_told_at_once(mock_clock: MockClock) -> None:
    late = Late()
    async with (
        serving(late, limits=HOUR) as server,
        open_channel(server.addresses[0]) as channel,
        channel.request(WAIT, BOTH, bytes, bytes) as call,
    ):
        await call.send_request()
        await late.until("begun")
        mock_clock.jump(OLDEST)
        await settled(lambda: channel.lost == "the server is going away")
        late.authenticated.set()
        assert await call.recv_message() == b"hello"
        assert await call.recv_message() == b"goodbye"
        assert await call.recv_message() is None


async def test_streams_on_their_way_when_the_client_is_warned_are_served(mock_clock: MockClock) -> None:
    """RFC 9113, 6.8: a GOAWAY with the highest stream id, and one with the real one when the client has read it."""
    echo = Polite()
    async with serving(echo, limits=HOUR) as server:
        peer = RawPeer(server.addresses[0])
        await in_thread(peer.request, WAIT)
        await echo.until("waiting")
        mock_clock.jump(OLDEST)

        def until_warned() -> bytes:
            received = b""
            while b"mesh-ppl" not in received:
                received += peer.socket.recv(65536)
            return received

        received = await in_thread(until_warned)
        warning = GoAwayFrame(0)
        warning.last_stream_id = 2**31 - 1
        assert warning.serialize() in received

        def answer() -> bytes:
            peer.request(UNARY, stream_id=3)  # it left before the warning was read
            peer.message(b"late", stream_id=3, end_stream=True)
            received = b""
            while b"late" not in received and (data := peer.socket.recv(65536)):
                received += data
            return received

        assert b"late" in await in_thread(answer)
        await in_thread(peer.close)


async def test_a_client_that_does_not_answer_the_warning_is_refused_streams_soon(mock_clock: MockClock) -> None:
    async with serving(Echo(), limits=HOUR) as server:
        peer = RawPeer(server.addresses[0])
        await settled(lambda: server.statistics().connections_open == 1)
        await wait_all_tasks_blocked(0.05)
        mock_clock.jump(OLDEST)
        await settled(lambda: server.connections()[0].draining)
        mock_clock.jump(1)

        def until_closed() -> None:  # there is no stream, so it is closed with the second GOAWAY
            while peer.socket.recv(65536):
                pass
            peer.close()

        await in_thread(until_closed)
        await settled(lambda: server.statistics().connections_open == 0)
        assert server.statistics().connections_retired == {"age": 1}


async def test_calls_that_do_not_listen_end_in_their_own_time(mock_clock: MockClock) -> None:
    async with (
        serving(Echo(), limits=HOUR) as server,
        open_channel(server.addresses[0]) as channel,
        channel.request("/test.Echo/Bidi", BOTH, bytes, bytes) as call,
    ):
        await call.send_message(b"1")
        assert await call.recv_message() == b"1"
        mock_clock.jump(OLDEST)
        await settled(lambda: channel.lost == "the server is going away")
        await call.send_message(b"2", end=True)
        assert await call.recv_message() == b"2"
        assert await call.recv_message() is None


async def test_old_connections_are_retired_one_by_one(mock_clock: MockClock) -> None:
    """All are of an age, and older than the oldest may be; ten a second may go."""
    limits = Limits(
        max_connection_age_seconds=100,
        retirement_rate=10,
        stream_burst=100,
        keepalive_interval_seconds=1e6,
        handshake_timeout_seconds=1e6,
    )
    async with serving(Polite(), limits=limits) as server, AsyncExitStack() as channels:
        for _ in range(30):
            channel = await channels.enter_async_context(open_channel(server.addresses[0]))
            assert await channel.unary(UNARY, b"ping", bytes) == b"ping"
        mock_clock.jump(111)
        gone = []
        for _ in range(4):
            await wait_all_tasks_blocked(0.01)
            gone.append(sum(each.draining for each in server.connections()) + sum_of(server.statistics()))
            mock_clock.jump(1)
        await settled(lambda: sum_of(server.statistics()) == 30)
    assert gone[0] <= 2
    assert all(later - earlier <= 11 for earlier, later in pairwise(gone))


async def tasks_of_a_connection(limits: Limits) -> int:
    async with serving(Echo(), limits=limits) as server:
        await wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        peer = await connect(server.addresses[0])
        await settled(lambda: server.statistics().connections_open == 1)
        await wait_all_tasks_blocked()
        found = trio.lowlevel.current_statistics().tasks_living - before
        peer.close()
    return found


async def test_a_connection_has_one_task_whether_or_not_it_may_grow_old() -> None:
    assert await tasks_of_a_connection(Limits()) == 1  # its keepalive waits; the server's poller reads
    assert await tasks_of_a_connection(HOUR) == 1


def sum_of(statistics: object) -> int:
    return sum(statistics.connections_retired.values())  # type: ignore[attr-defined]


async def test_a_connection_that_grew_old_is_cut_when_its_certificate_is_revoked(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    own = write_certificates(tmp_path, "both")
    files = CertificateFiles(certificate=own.certificate, key=own.key, trusted=own.ca)
    limits = attrs.evolve(HOUR, max_connection_age_grace_seconds=1e6, handshake_timeout_seconds=1e6)
    patient = attrs.evolve(PATIENT_CLIENT, keepalive_interval_seconds=1e6)
    async with (
        serving(Echo(), tls=server_tls(files), limits=limits) as server,
        open_channel(server.addresses[0], tls=client_tls(files), limits=patient) as channel,
        channel.request(WAIT, BOTH, bytes, bytes) as call,
    ):
        await call.send_request()
        assert await call.recv_message() == b"hello"
        mock_clock.jump(OLDEST)
        await settled(lambda: channel.lost == "the server is going away")
        assert server.statistics().connections_open == 1
        await server.end_revoked(lambda peer: True)
        await settled(lambda: server.statistics().connections_open == 0)
        assert server.statistics().connections_retired == {"revoked": 1}
