"""A control plane that starts from its state folder, and a Consul that answers wrongly, less, or from an older day."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.consul_stub import ConsulStub, consul_stub
from tests.support.envoy import eventually, http_client
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

TIMING = ConsulTiming(
    retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=0.1, pace_seconds=0.02, grace_seconds=5.0
)
CATALOG, OBJECTS = "/v1/catalog/services", "/v1/kv/mesh/"
SERVICES = [f"s{number}" for number in range(8)]


def entry(name: str, address: str) -> dict[str, Any]:
    return {
        "Node": {"Node": "n", "Address": "10.9.9.9", "Datacenter": "dc1"},
        "Service": {"ID": f"{name}-{address}", "Service": name, "Address": address, "Port": 80},
        "Checks": [],
    }


def fill(stub: ConsulStub, names: list[str], address: str, *, index: int) -> None:
    """These services, with one instance each; the others are gone."""
    for name in SERVICES:
        found = [entry(name, address)] if name in names else []
        stub.answer(f"/v1/health/service/{name}", found, index=index)
    stub.answer(CATALOG, {"consul": [], **{name: [] for name in names}}, index=index)


@asynccontextmanager
async def plane(stub: ConsulStub, folder: Path) -> AsyncIterator[ControlPlane]:
    """A control plane on this Consul, with its state in this folder; ready."""
    consul = ConsulSettings(agent=Agent(stub.address), timing=TIMING)
    async with running_plane(
        registries=(ConsulRegistry((consul,)),), state=StateSettings(folder=folder), debounce_after=0.01
    ) as running:
        yield running


def served(plane: ControlPlane) -> dict[str, str]:
    """The services in force, and the address of each."""
    world = plane.state.world
    found = {}
    for name in SERVICES:
        endpoints = world.endpoints.peek(ServiceKey(f"{name}.service.consul", "default"))
        if endpoints:
            found[name] = ",".join(sorted(endpoint.address for endpoint in endpoints))
    return found


def all_at(address: str, names: list[str] = SERVICES) -> dict[str, str]:
    return dict.fromkeys(names, address)


@asynccontextmanager
async def known(folder: Path) -> AsyncIterator[ConsulStub]:
    """A Consul whose services a control plane with its state in this folder has served, and that ended."""
    async with consul_stub() as stub:
        fill(stub, SERVICES, "10.0.0.1", index=100)
        async with plane(stub, folder) as first:
            await eventually(lambda: served(first) == all_at("10.0.0.1"), what="all is served")
        yield stub


async def ready(plane: ControlPlane) -> str:
    async with http_client() as client:
        reply = await client.get(f"http://{plane.addresses.http}/ready?verbose")
        return f"{reply.status_code} {reply.text}"


@pytest.mark.parametrize(
    ("status", "body"), [(500, "No cluster leader"), (403, "Permission denied"), (200, "<html>what?</html>")]
)
async def test_no_answer_is_no_reason_to_forget(tmp_path: Path, status: int, body: str) -> None:
    async with known(tmp_path) as stub:
        for path in list(stub.replies):
            stub.answer(path, body, index=101, status=status)
        async with plane(stub, tmp_path) as again:
            assert served(again) == all_at("10.0.0.1")
            await eventually(lambda: stub.counts()[CATALOG] > 3, what="Consul is asked again and again")
            assert served(again) == all_at("10.0.0.1")
            stale = again.state.reducer.intake.stale
            await eventually(lambda: {*stale()} == {"consul"}, what="the other sources have synced, Consul has not")
            assert (await ready(again)).startswith("200")
            assert "consul" in await ready(again)
            fill(stub, SERVICES, "10.0.0.2", index=102)
            await eventually(lambda: served(again) == all_at("10.0.0.2"), what="the change arrives")
            await eventually(lambda: not stale(), what="Consul has synced")


async def test_a_silent_consul_is_no_reason_to_wait(tmp_path: Path) -> None:
    async with known(tmp_path) as stub:
        stub.is_deaf = True
        async with plane(stub, tmp_path) as again:
            assert served(again) == all_at("10.0.0.1")
            stub.is_deaf = False
            fill(stub, SERVICES, "10.0.0.2", index=102)
            await eventually(lambda: served(again) == all_at("10.0.0.2"), what="the change arrives")


async def test_an_older_snapshot_of_consul_is_what_consul_says(tmp_path: Path) -> None:
    """Its indexes go back, also while the plane runs."""
    async with known(tmp_path) as stub:
        fill(stub, SERVICES, "10.0.0.7", index=3)
        async with plane(stub, tmp_path) as again:
            await eventually(lambda: served(again) == all_at("10.0.0.7"), what="what Consul says is served")
            fill(stub, SERVICES, "10.0.0.8", index=2)
            await eventually(
                lambda: all("10.0.0.8" in address for address in served(again).values()), what="it is followed"
            )


@pytest.mark.parametrize("left", [0, 3])
async def test_most_services_are_gone_when_the_plane_returns(tmp_path: Path, left: int) -> None:
    """Empty, or less than half: it is held; what is left is followed; what comes back ends it."""
    async with known(tmp_path) as stub:
        names = SERVICES[:left]
        fill(stub, names, "10.0.0.2", index=101)
        async with plane(stub, tmp_path) as again:
            await eventually(lambda: "consul" in again.state.reducer.intake.held(), what="it is held")
            expected = all_at("10.0.0.1") | all_at("10.0.0.2", names)
            assert served(again) == expected
        async with plane(stub, tmp_path) as third:
            assert served(third) == expected, "also over one more restart"
            fill(stub, SERVICES, "10.0.0.3", index=103)
            await eventually(lambda: served(third) == all_at("10.0.0.3"), what="it is over")
            assert not third.state.reducer.intake.held()


async def test_a_service_that_went_while_the_plane_was_away_goes_when_consul_says_so(tmp_path: Path) -> None:
    async with known(tmp_path) as stub:
        fill(stub, SERVICES[1:], "10.0.0.1", index=101)
        stub.is_deaf = True
        async with plane(stub, tmp_path) as again:
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert served(again) == all_at("10.0.0.1")
            stub.is_deaf = False
            fill(stub, SERVICES[1:], "10.0.0.1", index=102)
            await eventually(lambda: served(again) == all_at("10.0.0.1", SERVICES[1:]), what="it is gone")
            assert not again.state.reducer.intake.held()


async def test_another_consul_is_another_picture(tmp_path: Path) -> None:
    async with known(tmp_path), consul_stub() as other:
        fill(other, SERVICES[:2], "10.1.0.1", index=5)
        async with plane(other, tmp_path) as again:
            await eventually(lambda: served(again) == all_at("10.1.0.1", SERVICES[:2]), what="only what it says")
            assert not again.state.reducer.intake.held()
