"""Clocks of plane and agent that are set while certificates are renewed: what is in force stays until the next is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity import rotator as keeper_module
from mesh_pilot.agent.identity import signing as signing_module
from mesh_pilot.agent.identity.folder import CertificateFolder
from mesh_pilot.agent.identity.material import IdentityMaterial
from mesh_pilot.agent.identity.rotator import CertificateRotator
from mesh_pilot.agent.settings import CredentialSettings, PlaneSettings

START = datetime(2026, 11, 28, tzinfo=UTC)
EARLY = timedelta(minutes=2)
"""How long before now the plane's certificates begin."""
JUMPS = [timedelta(minutes=minutes) for minutes in (-2880, -10, 4, 10, 2880)]
LIFETIMES = [timedelta(minutes=4), timedelta(hours=1), timedelta(hours=24)]


@attrs.define
class World:
    """A plane and a machine, each with its own clock, and the certificate that the agent has."""

    lifetime: timedelta
    plane_ahead: timedelta = timedelta(0)
    agent_ahead: timedelta = timedelta(0)
    asked: int = 0
    by_token: int = 0
    material: Observable[IdentityMaterial | None] = attrs.field(factory=lambda: Observable(None))

    def plane_now(self) -> datetime:
        return START + timedelta(seconds=trio.current_time()) + self.plane_ahead

    def agent_now(self) -> datetime:
        return START + timedelta(seconds=trio.current_time()) + self.agent_ahead

    async def sign(self, *_: object, metadata: Mapping[str, str], **__: object) -> tuple[bytes, bytes]:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        self.by_token += bool(metadata)
        return b"", b""

    def read(self, *_: object) -> IdentityMaterial:
        now = self.plane_now()
        return IdentityMaterial("spiffe://x", b"", b"", b"", now - EARLY, now + self.lifetime)

    def is_in_force(self) -> bool:
        held = self.material.value
        return held is not None and held.clock_difference(self.agent_now()) is None


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(getattr(request, "param", timedelta(hours=24)))

    async def run_sync(function: Any, *arguments: object, **_: object) -> Any:
        """Threads would let the clock jump."""
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(signing_module, "request_certificate", world.sign)
    monkeypatch.setattr(signing_module, "read_material", world.read)
    monkeypatch.setattr(keeper_module, "new_key", lambda _: None)
    monkeypatch.setattr(signing_module, "new_request", lambda *_: (b"", b""))
    monkeypatch.setattr(keeper_module.trio.to_thread, "run_sync", run_sync)
    yield world


def keeper_of(world: World, tmp_path: Any) -> CertificateRotator:
    token = tmp_path / "token"
    token.write_text("token")
    return CertificateRotator(
        CredentialSettings(token_file=token),
        PlaneSettings((Pilot.parse("127.0.0.1:1"),)),
        CertificateFolder(tmp_path / "identity"),
        world.material,
        lambda _: None,
        wall=lambda: world.agent_now().timestamp(),
    )


@pytest.mark.parametrize("world", LIFETIMES, indirect=True, ids=str)
@pytest.mark.parametrize("jump", JUMPS, ids=str)
@pytest.mark.parametrize("who", ["plane_ahead", "agent_ahead"])
async def test_a_certificate_in_force_is_never_given_up_for_one_that_is_not(
    world: World, jump: timedelta, who: str, tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    keeper = keeper_of(world, tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        await world.material.wait_for(lambda held: held is not None)
        await trio.sleep(30)
        assert world.is_in_force()
        setattr(world, who, jump)
        keeper.hasten()
        for _ in range(20):
            before, was_in_force = world.material.value, world.is_in_force()
            await trio.sleep(15)
            if was_in_force and world.material.value is not before:
                assert world.is_in_force(), "one in force was replaced"
        setattr(world, who, timedelta(0))
        await trio.sleep(125)
        assert world.is_in_force(), "with the right clock there is one in force within two minutes"
        nursery.cancel_scope.cancel()


async def test_it_changes_over_when_the_new_one_begins_and_keeps_that_on_disk(
    world: World, tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    keeper = keeper_of(world, tmp_path)
    saved: list[IdentityMaterial] = []
    keeper._folder.save = saved.append  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        first = await world.material.wait_for(lambda held: held is not None)
        world.plane_ahead = timedelta(minutes=5)
        with capture_logs() as logs:
            keeper.hasten()
            await trio.sleep(100)
        assert world.material.value is first
        assert saved == [first]
        (line,) = [line for line in logs if line["event"] == "clock differs"]
        assert "the one before stays until this one begins" in line["advice"]
        # The plane is ahead by five minutes, and its certificates begin two minutes early.
        await trio.sleep(150)
        second = world.material.value
        assert second is not first
        assert world.is_in_force()
        await trio.sleep(15)
        assert saved[-1] is world.material.value
        nursery.cancel_scope.cancel()


async def test_a_first_one_that_is_not_in_force_is_used_and_another_asked_for_each_minute(
    world: World, tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    world.plane_ahead = timedelta(minutes=30)
    keeper = keeper_of(world, tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        await world.material.wait_for(lambda held: held is not None)
        assert not world.is_in_force()
        assert keeper.settled.value or keeper.renewals == 1
        await trio.sleep(300)
        assert 5 <= world.asked <= 6
        world.plane_ahead = timedelta(0)
        await trio.sleep(61)
        assert world.is_in_force()
        asked = world.asked
        await trio.sleep(3600)
        assert world.asked == asked, "one in force is enough"
        nursery.cancel_scope.cancel()


async def test_a_token_is_not_spent_each_minute_by_a_clock_that_is_ahead(
    world: World, tmp_path: Any, autojump_clock: trio.testing.MockClock
) -> None:
    world.agent_ahead = timedelta(days=2)  # each certificate ended on arrival
    keeper = keeper_of(world, tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        await trio.sleep(601)
        assert world.asked >= 10
        assert world.by_token == 1
        nursery.cancel_scope.cancel()
