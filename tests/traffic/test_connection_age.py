"""Connections to the control plane end with their age, and Envoy's traffic and configuration do not notice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.envoy import eventually, http_client
from tests.support.hitless import VARIANTS, Hitless, hitless

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]

AGES = ("--max-connection-age=2s", "--max-connection-age-grace=5s")


@pytest.fixture(params=VARIANTS)
def delta(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "delta")


async def test_an_envoy_that_is_sent_elsewhere_is_sent_nothing_again(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    """State of the World has no way to say which endpoints and routes a client has: it gets them once a connection."""
    async with hitless(tmp_path, free_ports, delta=delta, flags=AGES) as at:
        start, before = await retired(at), await pushes(at)
        await eventually(lambda: at_least(at, start + 4), seconds=60, what="four connections have grown old")
        await eventually(at.envoy.connected, what="Envoy is back")
        connections = await retired(at) + 1 - start
        sent = {kind: count - before[kind] for kind, count in (await pushes(at)).items() if count != before[kind]}
        if delta:
            assert sent == {}
        else:
            assert sent.keys() <= {"rds", "eds"}
            assert all(count <= connections for count in sent.values())
        assert await metric(at, "mesh_pilot_grpc_connections_cut") == 0


async def test_changes_go_on_while_connections_end(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    async with hitless(tmp_path, free_ports, delta=delta, flags=("--max-connection-age=500ms",)) as at:
        start = await retired(at)
        while await retired(at) < start + 8:
            at.move_all()
            await at.until_moved()


async def at_least(at: Hitless, count: float) -> bool:
    return await retired(at) >= count


async def retired(at: Hitless) -> float:
    return await metric(at, 'mesh_pilot_grpc_connections_retired{reason="age"}')


async def pushes(at: Hitless) -> dict[str, float]:
    """Responses that were sent, by type."""
    found = re.findall(r'^pilot_xds_pushes(?:_total)?\{type="(\w+)"\} (\S+)$', await metrics(at), re.MULTILINE)
    assert found
    return {kind: float(count) for kind, count in found}


async def metric(at: Hitless, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", await metrics(at), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def metrics(at: Hitless) -> str:
    async with http_client() as client:
        return (await client.get(f"{at.plane.web}/metrics")).text
