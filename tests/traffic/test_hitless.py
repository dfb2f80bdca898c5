"""No request fails while the control plane dies and comes back, and while all that it serves changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.hitless import VARIANTS, hitless

from mesh_pilot.model.proxy import NodeType

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]


@pytest.fixture(params=VARIANTS)
def delta(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "delta")


@pytest.mark.parametrize("kind", NodeType)
async def test_routes_move_while_the_control_plane_is_away(
    tmp_path: Path, free_ports: Ports, delta: bool, kind: NodeType
) -> None:
    async with hitless(tmp_path, free_ports, delta=delta, kind=kind) as at:
        for _ in range(3):
            await at.plane.kill()
            at.move_all()
            await at.plane.start()
            await at.until_moved()
