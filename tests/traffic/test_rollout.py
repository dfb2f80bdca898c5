"""Rollouts at three real Envoys: a bad change touches one, a good one reaches all, a restart changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.model.events import Item, RolloutPlan
from mesh_pilot.safety.rollout.progress import RolloutPhase
from mesh_pilot.safety.state.settings import StateSettings
from tests.cli.test_history import KeptSource
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.manifests import routes, service
from tests.support.mistakes import RULES
from tests.support.planes import settings
from tests.support.quarantined import unchecked
from tests.support.shop import CLIENT

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

HOST = "bad.test"
ENVOYS = 3
LONG = RolloutPlan((30.0, 70.0, 100.0), interval=3600.0)
SHORT = attrs.evolve(LONG, interval=0.05)


def versioned(version: str) -> list[Item]:
    rule = f"""
    - headers: {{response: {{set: {{x-version: "{version}"}}}}}}
      route: [{{destination: {{host: {HOST}}}}}]
    """
    return [*unchecked(routes(HOST, rule))]


@asynccontextmanager
async def plane_of(source: KeptSource, folder: Path, port: int) -> AsyncIterator[ControlPlane]:
    state = StateSettings(folder=folder / "state")
    given = settings(debounce_after=0.02, shutdown_seconds=0.5, state=state, guard=None, grpc_addr=f"127.0.0.1:{port}")
    async with control_plane(given, more_sources=[source]) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        yield plane


def start(plane: ControlPlane, plan: RolloutPlan) -> None:
    keeper = plane.state.rollouts
    assert keeper is not None
    keeper.order(lambda progress: progress.arm(plan, trio.current_time()), "start")


def phase(plane: ControlPlane) -> RolloutPhase:
    assert plane.state.rollouts is not None
    return plane.state.rollouts.progress.phase


async def having(envoys: list[RealEnvoy], version: str) -> list[int]:
    """The Envoys whose routes have this version."""
    return [i for i, envoy in enumerate(envoys) if f'"{version}"' in str((await envoy.get("/config_dump")).text)]


async def all_have(envoys: list[RealEnvoy], version: str) -> None:
    async def have() -> bool:
        return len(await having(envoys, version)) == ENVOYS

    await eventually(have, what=f"all have {version}")


@pytest.mark.smoke
async def test_a_bad_change_touches_one_envoy_and_a_good_one_reaches_all(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, listener = free_ports(2)
    base = [*unchecked(service(HOST, listener, {"address": "10.0.0.1"})), *versioned("first")]
    source = KeptSource(*base)
    async with AsyncExitStack() as stack:
        envoys: list[RealEnvoy] = []
        async with plane_of(source, tmp_path, port) as plane:
            for number in range(ENVOYS):
                node = attrs.evolve(CLIENT, name=f"web-{number}", ip=f"127.0.0.{number + 2}")
                made = real_envoy(
                    plane.addresses.grpc,
                    tmp_path,
                    node,
                    delta=number != 1,
                    name=f"envoy-{number}",
                    reconnects_soon=True,
                )
                envoys.append(await stack.enter_async_context(made))
            await all_have(envoys, "first")

            start(plane, LONG)
            source.put(unchecked(routes(HOST, RULES["formatter in a header"])))
            await eventually(lambda: phase(plane) is RolloutPhase.TAKEN_BACK)
            await eventually(lambda: not any(c.waiting.acks for c in plane.state.xds.status.connections()))
            assert sum([bool(await envoy.rejected()) for envoy in envoys]) <= 1
            assert sum(plane.state.xds.status.totals.rejects.values()) == 1
            assert await having(envoys, "first") == [0, 1, 2]
            assert plane.state.quarantine is not None
            assert plane.state.quarantine.withheld() == ()

            source.put(versioned("fixed"))
            await eventually(lambda: phase(plane) is RolloutPhase.RUNNING)

            async def canary_has_it() -> bool:
                return len(await having(envoys, "fixed")) == 1

            await eventually(canary_has_it)
            before = await having(envoys, "fixed")
            recorder = plane.state.recorder
            assert recorder is not None
            writes = recorder.statistics().writes
            await eventually(lambda: recorder.statistics().writes > writes, what="the rollout is in the state")

        again = KeptSource(*unchecked(service(HOST, listener, {"address": "10.0.0.1"})), *versioned("fixed"))
        async with plane_of(again, tmp_path, port) as plane:
            await eventually(lambda: len(plane.state.xds.status.connections()) == ENVOYS)
            await eventually(lambda: not any(c.waiting.acks for c in plane.state.xds.status.connections()))
            assert phase(plane) is RolloutPhase.RUNNING
            assert await having(envoys, "fixed") == before
            assert plane.state.rollouts is not None
            plane.state.rollouts.order(lambda progress: progress.promote(), "promote")
            await all_have(envoys, "fixed")

            start(plane, SHORT)
            again.put(versioned("last"))
            await all_have(envoys, "last")
            await eventually(lambda: phase(plane) is RolloutPhase.OFF)
            await eventually(lambda: not plane.state.world.overlays)
