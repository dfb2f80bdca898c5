"""Limits on connections and handshakes, through the server: the stalled give way first, then whoever has most."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import trio
from h2.settings import SettingCodes
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.net.rpc import (
    Cardinality,
    CertificateFiles,
    GRPCError,
    Limits,
    RpcError,
    client_tls,
    connection_shares,
    open_channel,
    open_listeners,
    serve,
    server_tls,
)
from mesh_pilot.net.rpc.net import connect
from tests.rpc.rpc_support import Echo, RawPeer, serving, settled
from tests.support.certificates import CertificateFiles as Written
from tests.support.certificates import write_certificates
from tests.support.patience import HANDSHAKE_SECONDS, PATIENT_CLIENT, PATIENT_SERVER

UNARY = "/test.Echo/Unary"
WAIT = "/test.Echo/Wait"
FLOOD = "/test.Echo/Flood"


@asynccontextmanager
async def peer(address: str, local: str, path: str = "") -> AsyncIterator[RawPeer]:
    """A client at its own local address, with a stream if it has a path."""
    found = await trio.to_thread.run_sync(partial(RawPeer, address, local=local))
    if path:
        found.request(path)
        found.message(b"")
    try:
        yield found
    finally:
        found.close()


async def is_served(address: str) -> bool:
    try:
        async with open_channel(address) as channel:
            return await channel.unary(UNARY, b"ping", bytes) == b"ping"
    except RpcError:
        return False


async def test_below_the_limit_one_address_may_have_any_number_of_connections() -> None:
    async with serving(Echo(), limits=Limits(max_connections=8)) as server, AsyncExitStack() as peers:
        for number in range(1, 8):
            await peers.enter_async_context(peer(server.addresses[0], "127.0.0.1", WAIT))
            await settled(lambda number=number: server.statistics().streams_open == number)  # type: ignore[misc]
        assert await is_served(server.addresses[0])
        assert server.statistics().connections_refused == {}


async def test_at_the_limit_who_has_no_stream_gives_way_the_longest_first() -> None:
    async with serving(Echo(), limits=Limits(max_connections=4)) as server, AsyncExitStack() as peers:
        address = server.addresses[0]
        busy = [await peers.enter_async_context(peer(address, f"127.0.0.{number}", WAIT)) for number in (3, 4)]
        await settled(lambda: server.statistics().streams_open == 2)
        silent = await peers.enter_async_context(peer(address, "127.0.0.2"))
        await settled(lambda: server.statistics().connections_open == 3)
        idle = await peers.enter_async_context(open_channel(address))
        assert await idle.unary(UNARY, b"ping", bytes) == b"ping"
        with capture_logs() as logs:
            assert await is_served(address)
        assert server.statistics().connections_refused == {"stalled": 1}
        (line,) = (each for each in logs if each["event"] == "a connection was closed to make room for another")
        assert line["reason"].endswith("the one stalled longest was closed, of 127.0.0.2")
        assert silent.is_closed() and not any(each.is_closed() for each in busy)


async def test_who_does_not_read_what_it_asked_for_is_stalled() -> None:
    async with serving(Echo(), limits=Limits(max_connections=2)) as server, AsyncExitStack() as peers:
        address = server.addresses[0]
        await peers.enter_async_context(peer(address, "127.0.0.1", WAIT))
        deaf = await peers.enter_async_context(peer(address, "127.0.0.1"))
        deaf.h2.increment_flow_control_window(2**31 - 1 - 65535)
        deaf.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        deaf.request(FLOOD)
        deaf.message(b"go")
        await settled(lambda: any(each.bytes_waiting for each in server.connections()))
        assert await is_served(address)
        assert server.statistics().connections_refused == {"stalled": 1}
        await settled(lambda: [each.streams_open for each in server.connections()] == [1])


async def test_when_all_have_streams_the_newest_of_whoever_has_more_than_half_gives_way() -> None:
    """To others; more of its own are refused."""
    async with serving(Echo(), limits=Limits(max_connections=4)) as server, AsyncExitStack() as stack:
        address = server.addresses[0]
        peers: list[RawPeer] = []

        async def come(local: str, streams: int) -> None:
            peers.append(await stack.enter_async_context(peer(address, local, WAIT)))
            await settled(lambda: server.statistics().streams_total == streams)

        for number in range(1, 5):
            await come("127.0.0.1", number)
        assert not await is_served(address)
        assert server.statistics().connections_refused == {"total": 1}
        await come("127.0.0.2", 5)
        await come("127.0.0.2", 6)
        assert server.statistics().connections_refused == {"total": 1, "share": 2}
        assert [each.is_closed() for each in peers] == [False, False, True, True, False, False]
        with suppress(ConnectionError):
            refused = await stack.enter_async_context(peer(address, "127.0.0.3"))
            await settled(refused.is_closed)
        assert server.statistics().connections_refused == {"total": 2, "share": 2}
        assert [each.is_closed() for each in peers[:2]] == [False, False], "who has no more than half loses nothing"


async def test_identities_that_are_proven_have_shares_whatever_their_address(tmp_path: Path) -> None:
    evil, good = (
        write_certificates(tmp_path, name, uris=(f"spiffe://cluster.local/ns/{name}/sa/x",))
        for name in ("evil", "good")
    )
    tls = server_tls(CertificateFiles(certificate=good.certificate, key=good.key, trusted=good.ca))
    limits = attrs.evolve(PATIENT_SERVER, max_connections=4)
    async with serving(Echo(), tls=tls, limits=limits) as server, trio.open_nursery() as nursery:

        async def hold(shown: Written, *, is_kept: bool) -> None:
            ours = client_tls(CertificateFiles(certificate=shown.certificate, key=shown.key, trusted=good.ca))
            async with (
                open_channel(server.addresses[0], tls=ours, limits=PATIENT_CLIENT) as channel,
                channel.request(WAIT, Cardinality.STREAM_STREAM, bytes, bytes) as call,
            ):
                await call.send_request()
                with suppress(RpcError, GRPCError):
                    while await call.recv_message() is not None:
                        pass
                assert not is_kept

        for number in range(1, 5):
            nursery.start_soon(partial(hold, evil, is_kept=number < 4))
            await settled(lambda number=number: server.statistics().streams_total == number)  # type: ignore[misc]
        nursery.start_soon(partial(hold, good, is_kept=True))
        await settled(lambda: server.statistics().streams_total == 5)
        assert server.statistics().connections_refused == {"share": 1}
        nursery.cancel_scope.cancel()


async def test_servers_may_share_a_limit(nursery: trio.Nursery) -> None:
    shares = connection_shares(Limits(max_connections=3))
    servers = []
    for _ in range(2):
        listeners = await open_listeners("127.0.0.1:0")
        servers.append(await nursery.start(partial(serve, [Echo()], listeners, shares=shares)))
    async with peer(servers[0].addresses[0], "127.0.0.1") as silent:
        await settled(lambda: servers[0].statistics().connections_open == 1)
        async with peer(servers[1].addresses[0], "127.0.0.1", WAIT), peer(servers[1].addresses[0], "127.0.0.1", WAIT):
            await settled(lambda: servers[1].statistics().streams_open == 2)
            assert await is_served(servers[1].addresses[0])
            await settled(silent.is_closed)
            assert servers[0].statistics().connections_open == 0
    await settled(lambda: not len(shares))


async def test_a_handshake_beyond_the_limit_waits_for_its_turn(tmp_path: Path) -> None:
    own = write_certificates(tmp_path, "server")
    tls = server_tls(CertificateFiles(certificate=own.certificate, key=own.key))
    limits = attrs.evolve(PATIENT_SERVER, max_handshakes=1, silence_seconds=HANDSHAKE_SECONDS)
    answers: list[bytes] = []
    async with serving(Echo(), tls=tls, limits=limits) as server, trio.open_nursery() as nursery:
        silent = await connect(server.addresses[0])
        await settled(lambda: server.statistics().connections_open == 1)

        async def call() -> None:
            ours = client_tls(CertificateFiles(trusted=own.ca))
            async with open_channel(server.addresses[0], tls=ours, limits=PATIENT_CLIENT) as channel:
                answers.append(await channel.unary(UNARY, b"ping", bytes))

        nursery.start_soon(call)
        await settled(lambda: server.statistics().connections_open == 2)
        await wait_all_tasks_blocked(0.05)
        assert answers == []
        silent.close()
        await settled(lambda: answers == [b"ping"])


async def test_a_handshake_without_a_turn_is_given_up_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    own = write_certificates(tmp_path, "server")
    tls = server_tls(CertificateFiles(certificate=own.certificate, key=own.key))
    limits = Limits(max_handshakes=1, handshake_timeout_seconds=10, silence_seconds=60)
    async with serving(Echo(), tls=tls, limits=limits) as server:
        slow, late, latest = [], [], []
        for some in (slow, late):
            some.append(await connect(server.addresses[0]))
        await settled(lambda: server.statistics().connections_open == 2)
        mock_clock.jump(9)
        latest.append(await connect(server.addresses[0]))
        await settled(lambda: server.statistics().connections_open == 3)
        mock_clock.jump(2)
        await settled(lambda: server.statistics().handshakes_failed == 2)
        assert server.statistics().failed_handshakes == {"handshake": 1, "no_turn": 1}
        assert server.statistics().connections_open == 1
        for each in (*slow, *late, *latest):
            each.close()


async def test_a_silent_handshake_gives_its_place_to_one_that_waits(tmp_path: Path, mock_clock: MockClock) -> None:
    """After two seconds; the one that has been silent longest, also where it sends a byte now and then."""
    own = write_certificates(tmp_path, "server")
    tls = server_tls(CertificateFiles(certificate=own.certificate, key=own.key))
    limits = Limits(max_handshakes=2, handshake_timeout_seconds=1e6)
    ours = client_tls(CertificateFiles(trusted=own.ca))
    answers: list[bytes] = []
    async with serving(Echo(), tls=tls, limits=limits) as server, trio.open_nursery() as nursery:
        silent = []
        for number in range(1, 3):
            silent.append(await connect(server.addresses[0]))
            await settled(lambda number=number: server.statistics().connections_open == number)  # type: ignore[misc]
        mock_clock.jump(1)
        silent[0].send(b"\x16")
        await wait_all_tasks_blocked(0.01)

        async def call() -> None:
            patient = attrs.evolve(PATIENT_CLIENT, handshake_timeout_seconds=1e6)
            async with open_channel(server.addresses[0], tls=ours, limits=patient) as channel:
                answers.append(await channel.unary(UNARY, b"ping", bytes))

        nursery.start_soon(call)
        await settled(lambda: server.statistics().connections_open == 3)
        await wait_all_tasks_blocked(0.01)
        assert answers == []
        mock_clock.jump(1.1)
        await settled(lambda: answers == [b"ping"])
        assert server.statistics().failed_handshakes == {"silent": 1}
        assert silent[0].recv(1) == b""
        for each in silent:
            each.close()
