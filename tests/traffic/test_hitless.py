"""No request fails while the control plane dies and comes back, and while all that it serves changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh_pilot.model.proxy import NodeType
from tests.support.envoy import eventually
from tests.support.hitless import HOSTS, VARIANTS, Hitless, hitless, unretried

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]

BROKEN = ("kind: [", "\x00\x01 not YAML", "apiVersion: networking.istio.io/v1\nkind: Gateway\nspec: 7")


@pytest.fixture(params=VARIANTS)
def delta(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "delta")


@pytest.mark.parametrize(
    ("variant", "kind"),
    [("sotw", NodeType.SIDECAR), ("sotw", NodeType.ROUTER), ("delta", NodeType.SIDECAR)],
)
async def test_routes_move_while_the_control_plane_is_killed(
    tmp_path: Path, free_ports: Ports, variant: str, kind: NodeType
) -> None:
    """A new process knows nothing of what its clients have (decision 011)."""
    async with hitless(tmp_path, free_ports, delta=variant == "delta", kind=kind) as at:
        for _ in range(2):
            await at.plane.kill()
            at.move_all()
            await at.plane.start()
            await at.until_moved()


async def test_the_control_plane_is_restarted_and_stays_away_without_its_configuration(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    async with hitless(tmp_path, free_ports, delta=delta) as at:
        await at.plane.terminate()
        await at.plane.start()
        await eventually(at.envoy.connected, what="Envoy is back")
        folder, away = tmp_path / "config", tmp_path / "away"
        folder.rename(away)
        await at.plane.kill()
        assert await at.plane.fail_to_start() != 0
        away.rename(folder)
        await at.plane.start()
        await eventually(at.envoy.connected, what="Envoy is back")
        at.move_all()
        await at.until_moved()


async def test_services_come_and_go_with_the_routes_to_them(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    async with hitless(tmp_path, free_ports, delta=delta) as at:
        for _ in range(10):
            at.move_all()
            await at.until_moved()


async def test_a_thousand_virtual_services_and_broken_files_come_and_go(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    def crowd(number: int) -> str:
        return "".join(unretried(f"crowd-{n}.test", HOSTS[(n + number) % len(HOSTS)]) for n in range(1000))

    async with hitless(tmp_path, free_ports, delta=delta, kind=NodeType.ROUTER, services=True) as at:
        for number in range(3):
            at.write("crowd.yaml", crowd(number))
            for n in range(100):
                at.write(f"broken-{n}.yaml", BROKEN[n % len(BROKEN)])
            at.move_all()
            await at.until_moved()
            await eventually(lambda number=number: is_routed(at, f"crowd-{number}.test"), what="the crowd is there")
            for n in range(100):
                at.write(f"broken-{n}.yaml", None)
        at.write("crowd.yaml", None)
        at.move_all()
        await at.until_moved()


async def is_routed(at: Hitless, host: str) -> bool:
    with trio.fail_after(60):
        reply = await at.envoy.client.get(f"http://127.0.0.1:{at.port}/", headers={"host": host})
    return reply.status_code == 200
