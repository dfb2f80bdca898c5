"""A tenant's mistake that Envoy refuses costs this tenant alone, at a real Envoy with another tenant's requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import trio

from mesh_pilot.model.events import item_key
from mesh_pilot.model.proxy import NodeType
from tests.support.envoy import eventually
from tests.support.mistakes import Mistake, broken_script, formatter_in_header, mistakes
from tests.support.quarantined import BAD, Quarantined, bad_route, quarantined, unchecked

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]

CERTAIN = 6
"""At least so many mistakes are such that no control plane can know them."""

RESTART_EVERY = 7
"""Mistakes."""

ONE_OF_EACH = pytest.mark.parametrize(
    ("kind", "delta"), [(NodeType.ROUTER, True), (NodeType.SIDECAR, False)], ids=["router-delta", "sidecar-sotw"]
)


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        pytest.param(NodeType.ROUTER, True, id="router-delta"),
        pytest.param(NodeType.SIDECAR, False, id="sidecar-sotw"),
        pytest.param(NodeType.ROUTER, False, id="router-sotw", marks=pytest.mark.slow),
        pytest.param(NodeType.SIDECAR, True, id="sidecar-delta", marks=pytest.mark.slow),
    ],
)
async def test_each_mistake_costs_its_owner_alone(
    tmp_path: Path, free_ports: Ports, kind: NodeType, delta: bool
) -> None:
    """No request of the good tenant fails, its edits arrive, and a restarted Envoy serves it."""
    async with quarantined(tmp_path, free_ports(3), kind, delta=delta) as world:
        withheld = 0
        for number, mistake in enumerate(mistakes(world), 1):
            is_withheld = await commit(world, mistake)
            withheld += is_withheld
            if number % RESTART_EVERY == 0:
                await world.restart()
                assert not is_withheld or await world.envoy.rejected() == {}, mistake.name
            await fix(world, mistake)
        assert withheld >= CERTAIN
        assert median(world.seconds) < 1
        print(f"{number} mistakes, {withheld} withheld; edits took {median(world.seconds):.2f} s in the median")
        print(f"at most {max(world.seconds):.2f} s; {world.requests} requests")


async def commit(world: Quarantined, mistake: Mistake) -> bool:
    """Make a mistake; True if Envoy refused it. If it does not, our translators knew better."""
    before, trials = world.rejects(), world.quarantine.statistics().trials
    keys = world.put(mistake.items)
    if mistake.is_alone:
        with trio.move_on_after(1):
            await eventually(lambda: bool(world.withheld()))
    await world.edit_arrives()
    await world.until_decided()
    is_refused = world.rejects() > before
    assert bool(world.withheld()) == is_refused, f"{mistake.name}: {world.state()}"
    assert world.withheld() <= keys, f"{mistake.name}: {world.state()}"
    assert world.quarantine.statistics().trials <= trials + 8, mistake.name
    if is_refused and mistake.mended and next(iter(keys))[:2] == ("config", "VirtualService"):
        await eventually(lambda: answers(world, "bad-1"), what=f"{mistake.name}: the last accepted version is served")
    await world.edit_arrives()
    return is_refused


async def fix(world: Quarantined, mistake: Mistake) -> None:
    """Its owner puts it right."""
    mended = {item_key(item) for item in mistake.mended}
    world.put(mistake.mended, {item_key(item) for item in mistake.items} - mended)
    await world.edit_arrives()  # and so what was fixed: it is the last accepted version for the next mistake
    await eventually(lambda: not world.withheld(), seconds=10, what=f"the end of {mistake.name}: {world.state()}")
    assert world.quarantine.held() == (), mistake.name


async def answers(world: Quarantined, version: str) -> bool:
    return await world.ask(BAD) == (200, version)


@ONE_OF_EACH
async def test_a_mistake_that_was_there_before_envoy_is_left_out(
    tmp_path: Path, free_ports: Ports, kind: NodeType, delta: bool
) -> None:
    async with quarantined(tmp_path, free_ports(3), kind, delta=delta, before=formatter_in_header()) as world:
        await world.until_decided()
        assert world.withheld() == {("config", "VirtualService", "shop", "bad-test")}
        await world.edit_arrives()
        await world.restart()
        assert await world.envoy.rejected() == {}


@ONE_OF_EACH
async def test_two_mistakes_at_once_are_both_withheld(
    tmp_path: Path, free_ports: Ports, kind: NodeType, delta: bool
) -> None:
    async with quarantined(tmp_path, free_ports(3), kind, delta=delta) as world:
        keys = world.put(unchecked(formatter_in_header() + broken_script(world)))
        await world.edit_arrives()
        await eventually(lambda: world.withheld() == keys, what=f"both are withheld; {world.state()}")
        assert await answers(world, "bad-1")
        await world.edit_arrives()
        await world.restart()
        assert await world.envoy.rejected() == {}


@pytest.mark.smoke
@ONE_OF_EACH
async def test_a_mistake_that_becomes_another_one_and_then_right(
    tmp_path: Path, free_ports: Ports, kind: NodeType, delta: bool
) -> None:
    async with quarantined(tmp_path, free_ports(3), kind, delta=delta) as world:
        for http in (formatter_in_header(), formatter_in_header().replace("%FOO%", "%BAR%")):
            keys = world.put(unchecked(http))
            await world.edit_arrives()
            await world.until_decided()
            assert world.withheld() == keys
            assert await answers(world, "bad-1")
        world.put(unchecked(bad_route("bad-2")))
        await world.edit_arrives()
        await eventually(lambda: answers(world, "bad-2"), what="the right version")
        assert not world.withheld() and not world.quarantine.held()
