"""A control plane whose Consul answers with nothing because the token sees nothing."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.ops.plane.state import BLIND_SECONDS
from tests.state.test_consul_returns import CATALOG, SERVICES, fill, plane, served
from tests.support.consul_stub import consul_stub
from tests.support.envoy import eventually, http_client

pytestmark = pytest.mark.plane

WHY = "consul: the token sees no service, not even Consul's own: give it service:read and node:read"


async def ready(plane: ControlPlane) -> httpx.Response:
    async with http_client() as client:
        return await client.get(f"http://{plane.addresses.http}/ready")


async def test_with_nothing_at_all_to_serve_it_is_not_ready_for_a_while_and_says_why(tmp_path: Path) -> None:
    async with consul_stub() as stub:
        stub.answer(CATALOG, {}, index=5)
        async with plane(stub, tmp_path) as running:
            reply = await ready(running)
            assert (reply.status_code, reply.text) == (503, f"{WHY}\n")
            fill(stub, SERVICES, "10.0.0.1", index=6)
            await eventually(lambda: not running.state.not_ready(), what="it sees something")
            assert (await ready(running)).text == "ready\n"


async def test_after_a_while_it_is_ready_and_still_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BLIND_SECONDS == 30
    monkeypatch.setattr("mesh_pilot.ops.plane.state.BLIND_SECONDS", 0.2)
    async with consul_stub() as stub:
        stub.answer(CATALOG, {}, index=5)
        async with plane(stub, tmp_path) as running:
            await eventually(lambda: not running.state.not_ready(), what="the while is over")
            assert (await ready(running)).text == f"ready\n{WHY}\n"
            async with http_client() as client:
                status = (await client.get(f"http://{running.addresses.http}/api/v1/status")).json()
                sources = (await client.get(f"http://{running.addresses.http}/api/v1/sources")).json()
            (consul,) = [each for each in sources if each["name"] == "consul"]
            (condition,) = consul["conditions"]
            assert condition["state"] == "blind" and f"consul: {condition['reason']}" == WHY
            assert status["stale"] == {"consul": WHY.removeprefix("consul: ")}


@pytest.mark.parametrize("count", [1, len(SERVICES)])
async def test_what_it_knows_from_an_earlier_run_stays_and_it_is_ready_with_that(tmp_path: Path, count: int) -> None:
    async with consul_stub() as stub:
        fill(stub, SERVICES[:count], "10.0.0.1", index=5)
        async with plane(stub, tmp_path) as running:
            before = served(running)
            assert len(before) == count
        stub.answer(CATALOG, {}, index=6)
        async with plane(stub, tmp_path) as running:
            await eventually(lambda: bool(running.state.stale()), what="it says why")
            reply = await ready(running)
            assert reply.status_code == 200 and WHY in reply.text
            assert served(running) == before
