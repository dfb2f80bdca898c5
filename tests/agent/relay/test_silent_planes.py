"""Control planes that are connected and do not answer, or flood: none keeps an agent from one that answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot.agent.relay import planes as planes_module
from mesh_pilot.agent.relay import relay as relay_module
from mesh_pilot.model.service import Locality
from mesh_pilot.net.rpc import ConnectionLost, open_channel
from tests.agent.relay.test_relay import envoy_stream, request
from tests.hostile.transport_attacks import (
    CONTINUATION,
    HEADERS,
    PING,
    SETTINGS,
    frame,
)
from tests.support.envoy import eventually
from tests.support.fake_plane import fake_plane
from tests.support.relayed import relayed

HERE = Locality("eu", "eu-1")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes_module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(planes_module, "HELLO_SECONDS", 0.1)
    monkeypatch.setattr(relay_module, "ANSWER_SECONDS", 0.3)


async def test_an_agent_starts_at_the_one_that_answers(tmp_path: Path) -> None:
    async with fake_plane() as near, fake_plane() as far:
        near.is_mute = True
        async with relayed(tmp_path, f"{near.address}@eu/eu-1", f"{far.address}@us/a", locality=HERE) as relay:
            found = await relay.planes.usable(10)
            assert found is not None
            assert found.pilot.address == far.address
            await eventually(lambda: relay.planes.statistics().failures > 0, what="the mute one is given up")
            assert "connected, but no answer within" in relay.planes.statistics().last_failure


async def test_a_control_plane_that_answers_is_not_left_for_a_nearer_one_that_does_not(tmp_path: Path) -> None:
    async with fake_plane() as near, fake_plane() as far:
        near_address, near.is_mute = near.address, True
        async with (
            relayed(tmp_path, f"{far.address}@us/a", f"{near_address}@eu/eu-1", locality=HERE) as relay,
            envoy_stream(relay.address, request()) as envoy,
        ):
            await envoy.receive()
            before = relay.planes.current.value
            await eventually(lambda: relay.planes.statistics().failures >= 4, what="it is tried again and again")
            assert relay.planes.current.value is before
            assert relay.planes.statistics().connects == 1
            near.is_mute = False
            with trio.fail_after(20):
                assert await envoy.call.recv_message() is None  # now it moves
            assert relay.planes.statistics().connected == near_address


async def test_a_control_plane_that_has_become_silent_is_left_when_an_envoy_gets_no_answer(tmp_path: Path) -> None:
    async with (
        fake_plane() as near,
        fake_plane() as far,
        relayed(tmp_path, f"{near.address}@eu/eu-1", f"{far.address}@us/a", locality=HERE) as relay,
    ):
        async with envoy_stream(relay.address, request()) as envoy:
            await envoy.receive()
            assert relay.planes.statistics().connected == near.address
        near.is_mute = True
        async with envoy_stream(relay.address, request()) as envoy:
            await eventually(lambda: relay.planes.statistics().connected == far.address, what="the other one")
            with trio.fail_after(20):
                assert await envoy.call.recv_message() is None
        async with envoy_stream(relay.address, request()) as envoy:
            await envoy.receive()
        assert far.requests == [request()]


FLOODS = {
    "SETTINGS": frame(SETTINGS),
    "PING": frame(PING, b"01234567"),
    "CONTINUATION": frame(CONTINUATION, b"", stream=1),
}


@asynccontextmanager
async def flooding(kind: str) -> AsyncIterator[str]:
    """A control plane that begins as one, and sends frames without end; its address."""
    sent = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal sent
        async with stream:
            await stream.send_all(frame(SETTINGS))
            if kind == "CONTINUATION":
                await stream.receive_some(1000)
                await stream.send_all(frame(HEADERS, b"", stream=1))
            try:
                while True:
                    await stream.send_all(FLOODS[kind] * 100)
                    sent += 100
            except trio.BrokenResourceError:
                pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_server_that_floods_is_hung_up_on(kind: str) -> None:
    async with flooding(kind) as address:
        with trio.fail_after(10):
            try:
                async with open_channel(address) as channel:
                    reason = await channel.wait_lost()
            except ConnectionLost as error:
                reason = str(error)
    assert "protocol error" in reason
    assert kind == "CONTINUATION" or "too many frames that make work and carry nothing" in reason


async def test_an_agent_is_at_the_control_plane_that_does_not_flood(tmp_path: Path) -> None:
    async with (
        flooding("PING") as address,
        fake_plane() as far,
        relayed(tmp_path, f"{address}@eu/eu-1", f"{far.address}@us/a", locality=HERE) as relay,
    ):
        found = await relay.planes.usable(10)
        assert found is not None
        assert found.pilot.address == far.address
