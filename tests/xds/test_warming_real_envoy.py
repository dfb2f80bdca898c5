"""A real Envoy without an agent, whose listener names a route table that does not exist: it is said, not SYNCED."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.explain.truth.facts import of_proxy, of_types
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.resource import LISTENER
from tests.support.envoy import eventually, real_envoy
from tests.support.warming import shorten_warming
from tests.xds.test_xds_real_envoy import EnvoyWorld, served

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_fresh_envoy_that_waits_for_a_missing_table_is_warming_until_it_is_there(
    delta: bool, tmp_path: Path, free_ports: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_warming(monkeypatch, 0.5)
    world = EnvoyWorld()
    (port,) = free_ports(1)
    world.put_cluster("one")
    world.put_endpoints("one", 9)
    world.put_listener(port)
    async with served(world) as (xds, address), real_envoy(address, tmp_path, EnvoyNode("web-1"), delta=delta) as envoy:

        def states() -> list[TruthState]:
            return [of_proxy(each).state for each in xds.status.proxies()]

        await eventually(lambda: states() == [TruthState.WARMING], what="it is said to warm")
        (connection,) = xds.status.connections()
        truth = of_types(connection)[LISTENER]
        assert (truth.state, truth.why) == (TruthState.WARMING, "LDS web waits for RDS routes")
        assert (await envoy.get("/ready")).status_code == 503
        world.put_route("one")
        await envoy.wait_live()
        await eventually(lambda: states() == [TruthState.IN_FORCE], what="it is in force")
