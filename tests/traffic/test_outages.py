"""Nothing is forgotten: a control plane is killed together with what it reads from, and returns alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.envoy import RealEnvoy
from tests.support.outage import GONE, SENT, TAKEN, ConsulMesh, consul_mesh

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]


async def holdings(envoy: RealEnvoy) -> dict[str, dict[str, Any]]:
    """What an Envoy holds by type and name."""
    kinds = ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration")
    return {kind: await envoy.dynamic(kind) for kind in kinds}


def like(holdings: Mapping[str, Mapping[str, Any]], address: str, other: str) -> Any:
    """The holdings as another Envoy has them, whose listeners are at another address."""
    return json.loads(json.dumps(holdings).replace(address, other))


async def lose_both(at: ConsulMesh) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(at.plane.kill)
        nursery.start_soon(at.consul.kill)
    await at.requests.go_on()


async def test_the_plane_and_consul_are_killed_and_the_plane_returns_alone(tmp_path: Path, free_ports: Ports) -> None:
    async with consul_mesh(tmp_path, free_ports) as at:
        before, taken = await at.counters(SENT), await at.counters(TAKEN)
        await lose_both(at)
        await at.plane.start()
        await at.connected()
        await at.requests.go_on()
        assert await at.counters(SENT) == before
        after = await at.counters(TAKEN)
        assert {name: after[name] for name in ("delta", "edge")} == {name: taken[name] for name in ("delta", "edge")}

        newcomer = await at.join("newcomer")
        had = await holdings(at.envoys["delta"])
        assert like(await holdings(newcomer), "127.0.1.3", "127.0.1.2") == had

        at.line.cut()
        await at.consul.start()
        await at.change()
        assert at.requests.failures == []
        at.line.fix()
        await at.changed()
        await at.join("latecomer")
        assert at.failed(besides=GONE) == []
