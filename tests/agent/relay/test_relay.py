"""The relay between clients and control planes of a test's own: what passes, what ends, what is taken over."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from envoy.service.discovery.v3 import discovery_pb2

from mesh_pilot.agent.relay import relay as relay_module
from mesh_pilot.agent.relay.messages import XdsProtocol
from mesh_pilot.agent.relay.planes import LIMITS
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.model.service import Locality
from mesh_pilot.net.rpc import (
    SERVER_LIMITS,
    Cardinality,
    ClientCall,
    GRPCError,
    Status,
    open_channel,
    open_listeners,
)
from tests.support.envoy import eventually
from tests.support.fake_plane import FakePlane, answer, fake_plane
from tests.support.relayed import Relayed, relayed

PATH = XdsProtocol.SOTW.path


def request(type_url: str = CLUSTER, version: str = "", nonce: str = "", node: str = "n") -> bytes:
    message = discovery_pb2.DiscoveryRequest(type_url=type_url, version_info=version, response_nonce=nonce)
    message.node.id = node
    return message.SerializeToString()


@attrs.define
class EnvoyStream:
    call: ClientCall[bytes, bytes]

    async def receive(self) -> discovery_pb2.DiscoveryResponse:
        with trio.fail_after(20):
            data = await self.call.recv_message()
        assert data is not None
        return discovery_pb2.DiscoveryResponse.FromString(data)


@asynccontextmanager
async def envoy_stream(address: str, first: bytes) -> AsyncIterator[EnvoyStream]:
    async with (
        open_channel(address) as channel,
        channel.request(PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call,
    ):
        await call.send_message(first)
        yield EnvoyStream(call)


async def test_requests_and_responses_pass_byte_by_byte(tmp_path: Path) -> None:
    strange = request(node="first") + b"\xfa\x3f\x03new"  # a field that nobody knows yet
    async with (
        fake_plane() as plane,
        relayed(tmp_path, plane.address) as relay,
        envoy_stream(relay.address, strange) as envoy,
    ):
        data = await envoy.call.recv_message()
        assert data == answer()
        await envoy.call.send_message(request(version="1", nonce="n1"))
        await eventually(lambda: len(plane.requests) == 2)
        assert plane.requests == [strange, request(version="1", nonce="n1")]
        await envoy.call.end()
        await eventually(lambda: plane.streams == 0, what="the end is passed on")


async def test_a_status_is_passed_on_once_the_control_plane_has_answered(tmp_path: Path) -> None:
    async with (
        fake_plane() as plane,
        relayed(tmp_path, plane.address) as relay,
        envoy_stream(relay.address, request()) as envoy,
    ):
        await envoy.receive()
        assert plane.server is not None
        for connection in list(plane.server._connections):
            connection.cut()
        with pytest.raises(GRPCError) as ended:
            await envoy.receive()
        assert ended.value.status is Status.UNAVAILABLE


async def test_a_slow_envoy_makes_the_control_plane_wait_not_the_agent_grow(tmp_path: Path) -> None:
    big = answer(size=500_000)
    async with (
        fake_plane() as plane,
        relayed(tmp_path, plane.address) as relay,
        envoy_stream(relay.address, request()) as envoy,
    ):
        await envoy.receive()
        await plane.send(*[big] * 200)  # 100 MB that nobody takes
        await settled(lambda: plane.sent)
        sent = plane.sent
        # windows of both hops and socket buffers: some 4 MB each, and not all of it
        assert sent < 60
        for _ in range(100):
            await envoy.receive()
        assert plane.sent > sent


async def settled(value: object) -> None:
    """Until a count has not moved for a while."""
    assert callable(value)
    before = None
    while before != (before := value()):
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        await trio.sleep(0.2)


async def test_a_retired_connection_is_left_for_a_new_one_without_a_gap(tmp_path: Path) -> None:
    limits = attrs.evolve(SERVER_LIMITS, max_connection_age_seconds=0.5, max_connection_age_grace_seconds=10.0)
    async with fake_plane(limits=limits) as plane, relayed(tmp_path, plane.address) as relay:
        plane.goes_on = True
        gaps = 0

        async def watch() -> None:
            nonlocal gaps
            async for current in relay.planes.current.changes():
                gaps += current is None

        await relay.planes.usable(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for _ in range(3):
                async with envoy_stream(relay.address, request()) as envoy:
                    await envoy.receive()
                    with trio.fail_after(10):
                        assert await envoy.call.recv_message() is None  # it moves
            nursery.cancel_scope.cancel()
        assert gaps == 0
        assert relay.planes.statistics().connects >= 4
        server = plane.server
        assert server is not None
        await eventually(lambda: server.statistics().connections_open <= 2, what="old ones are closed")


async def test_envoys_stream_moves_to_a_better_control_plane_that_is_back(tmp_path: Path) -> None:
    here = Locality("eu", "eu-1")
    async with fake_plane() as far:
        async with fake_plane() as near:
            address = near.address
            async with (
                relayed(tmp_path, f"{far.address}@us/a", f"{address}@eu/eu-1", locality=here) as relay,
                envoy_stream(relay.address, request()) as envoy,
            ):
                await envoy.receive()
                assert (near.streams, far.streams) == (1, 0)
        async with (
            relayed(tmp_path, f"{far.address}@us/a", f"{address}@eu/eu-1", locality=here) as relay,
            envoy_stream(relay.address, request()) as envoy,
        ):
            await envoy.receive()
            assert far.streams == 1
            async with fake_plane(address=address) as near:
                with trio.fail_after(20):
                    assert await envoy.call.recv_message() is None  # the end, with status OK
                async with envoy_stream(relay.address, request()) as again:
                    await again.receive()
                    assert near.streams == 1
                    await eventually(lambda: far.streams == 0)


@pytest.mark.parametrize("status", [Status.UNAUTHENTICATED, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED])
async def test_a_control_plane_that_refuses_streams_is_left_for_another(tmp_path: Path, status: Status) -> None:
    async with fake_plane() as near, fake_plane() as far:
        near.refuses = status
        pilots = (f"{near.address}@eu/eu-1", f"{far.address}@us/a")
        async with (
            relayed(tmp_path, *pilots, locality=Locality("eu", "eu-1")) as relay,
            envoy_stream(relay.address, request()) as envoy,
        ):
            assert (await envoy.receive()).nonce == "n1"
            assert far.requests == [request()]
            assert status.name in relay.planes.statistics().last_failure


@pytest.mark.parametrize("others", [0, 1])
async def test_while_all_refuse_an_envoy_is_served_from_disk_and_taken_back(tmp_path: Path, others: int) -> None:
    async with fake_plane() as plane, fake_plane() as other:
        other.refuses = Status.UNAUTHENTICATED
        async with relayed(tmp_path, plane.address, *[other.address][:others]) as relay:
            await _refused_then_taken_back(plane, relay)


async def _refused_then_taken_back(plane: FakePlane, relay: Relayed) -> None:
    async with envoy_stream(relay.address, request()) as envoy:
        await envoy.receive()
        await envoy.call.send_message(request(version="1", nonce="n1"))
        await eventually(lambda: relay.relay.statistics().kept == 1, what="the accepted answer is kept")
    plane.refuses = Status.UNAUTHENTICATED
    async with envoy_stream(relay.address, request()) as envoy:
        found = await envoy.receive()
        assert (found.version_info, len(found.resources)) == ("1", 1)
        assert found.nonce != "n1"
        await envoy.call.send_message(request(LISTENER))  # never answered: waits for a control plane
        plane.refuses = None
        with trio.fail_after(20):
            assert await envoy.call.recv_message() is None


@pytest.mark.parametrize("others", [0, 1])
async def test_an_envoy_that_starts_while_all_are_mute_gets_all_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """They take connections and streams, and answer none, such as one that waits for its sources."""
    monkeypatch.setattr(relay_module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(relay_module, "START_SECONDS", 3.0)
    async with (
        fake_plane() as plane,
        fake_plane() as other,
        relayed(tmp_path, plane.address, *[other.address][:others]) as relay,
    ):
        other.answers = plane.answers = lambda request: answer(type_url=request.type_url)
        async with envoy_stream(relay.address, request()) as envoy:
            await envoy.receive()
            await envoy.call.send_message(request(version="1", nonce="n1"))
            await envoy.call.send_message(request(LISTENER))
            await envoy.receive()
            await envoy.call.send_message(request(LISTENER, version="1", nonce="n1"))
            await eventually(lambda: relay.relay.statistics().kept == 2, what="the accepted answers are kept")
        other.answers = plane.answers = lambda request: None
        async with envoy_stream(relay.address, request()) as starting:
            first = await starting.receive()
            assert (first.type_url, first.version_info) == (CLUSTER, "1")
            assert "no answer within" in relay.planes.statistics().last_failure
            await eventually(lambda: relay.planes.current.value is not None, what="connected again")
            await starting.call.send_message(request(LISTENER))
            assert (await starting.receive()).type_url == LISTENER
            with trio.fail_after(20):
                assert await starting.call.recv_message() is None  # it has all, and continues there


async def test_a_refused_answer_is_not_kept(tmp_path: Path) -> None:
    async with (
        fake_plane() as plane,
        relayed(tmp_path, plane.address) as relay,
        envoy_stream(relay.address, request()) as envoy,
    ):
        await envoy.receive()
        refusal = discovery_pb2.DiscoveryRequest(type_url=CLUSTER, response_nonce="n1")
        refusal.error_detail.message = "bad cluster"
        await envoy.call.send_message(refusal.SerializeToString())
        await eventually(lambda: relay.relay.statistics().refused == 1)
        assert relay.relay.statistics().accepted == 0


async def test_a_control_plane_that_hangs_is_noticed(tmp_path: Path) -> None:
    """It takes connections and never speaks: the next one is tried next to it."""
    (mute,) = await open_listeners("127.0.0.1:0")
    async with mute, fake_plane() as plane:
        host, port = mute.socket.getsockname()
        pilots = (f"{host}:{port}@eu/eu-1", f"{plane.address}@us/a")
        async with relayed(tmp_path, *pilots, locality=Locality("eu", "eu-1")) as relay:
            found = await relay.planes.usable(10)
            assert found is not None
            assert found.pilot.address == plane.address


async def test_a_name_that_cannot_be_one_is_passed_over(tmp_path: Path) -> None:
    async with fake_plane() as plane, relayed(tmp_path, f"{'a' * 64}.test:1", plane.address) as relay:
        assert await relay.planes.usable(10) is not None
    async with relayed(tmp_path, "a..test:1") as relay:
        assert await relay.planes.usable(10) is None
        assert relay.planes.statistics().last_failure == "a..test:1: this is not a name of a host"


async def test_a_name_with_several_addresses_is_tried_at_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trio.socket.getaddrinfo

    async def three(host: str, port: int, **more: object) -> object:
        if host != "planes.test":
            return await real(host, port, **more)  # type: ignore[arg-type]
        return [(2, 1, 6, "", (f"127.0.0.{last}", port)) for last in (7, 8, 1)]

    monkeypatch.setattr(trio.socket, "getaddrinfo", three)
    async with fake_plane() as plane:
        port = plane.address.rpartition(":")[2]
        async with relayed(tmp_path, f"planes.test:{port}") as relay:
            assert await relay.planes.usable(10) is not None


def test_a_control_plane_that_hangs_later_is_pinged() -> None:
    assert LIMITS.keepalive_interval_seconds + LIMITS.keepalive_timeout_seconds < math.inf
