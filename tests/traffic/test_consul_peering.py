"""Two peered Consuls: an Envoy of one cluster calls what the other exports, which takes over for its own services."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.consul.source.statistics import ConsulStatistics
from mesh_pilot.model.proxy import Interception
from tests.support.consul import TTL, Consul, export, peer, real_consul
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.usefixtures("newest_consul")]

CLIENT = EnvoyNode("client", "default", "127.0.0.2", interception=Interception.NONE)
TIMING = ConsulTiming(retry_seconds=0.05, pace_seconds=0.05)
OWN, ITS = "web.service.consul", "web.service.west.peer.consul"

Ports = Callable[[int], list[int]]


@asynccontextmanager
async def two_consuls(folder: Path, free_ports: Ports) -> AsyncIterator[tuple[Consul, Consul]]:
    """Our Consul, and that of peer `west`; both call their datacenter dc1, as Consul does unless told."""
    async with (
        real_consul(folder, free_ports(5), name="here") as here,
        real_consul(folder, free_ports(5), name="there") as there,
    ):
        await peer(there, "here", here, "west")
        yield here, there


async def register(mesh: Fleet, consul: Consul, name: str, backend: str, port: int) -> str:
    """Start a backend and put it into a Consul; returns its address and port."""
    app = await mesh.backend(backend)
    meta = {"protocol": "http", "service_port": str(port)}
    await consul.register(name, id=backend, address=app.host, port=app.port, meta=meta, Check=TTL)
    return f"{app.host}:{app.port}"


async def resolver(consul: Consul, name: str, **rule: Any) -> None:
    entry = {"Kind": "service-resolver", "Name": name, "Failover": {"*": rule}}
    await consul.ask("PUT", "/v1/config", json=entry)


def registries(consul: Consul) -> tuple[ConsulRegistry, ...]:
    own = ConsulSettings(agent=Agent(consul.address), mesh=True, peers=("west",), timing=TIMING)
    return (ConsulRegistry((own,)),)


async def priorities(envoy: RealEnvoy, port: int) -> dict[str, int]:
    """The priority of each endpoint of our `web` in an Envoy, by address and port."""
    held = (await envoy.dynamic("ClusterLoadAssignment")).get(f"outbound|{port}||{OWN}", {})
    found = {}
    for group in held.get("endpoints", []):
        for member in group.get("lb_endpoints", []):
            socket = member["endpoint"]["address"]["socket_address"]
            found[f"{socket['address']}:{socket['port_value']}"] = group.get("priority", 0)
    return found


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
async def test_a_peer_is_called_by_its_name_and_takes_over_for_a_service(
    tmp_path: Path, free_ports: Ports, delta: bool
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with (
        two_consuls(tmp_path, free_ports) as (here, there),
        fleet(tmp_path, registries=registries(here), guard=None) as mesh,
    ):
        near = await register(mesh, here, "web", "near", port)
        far = await register(mesh, there, "web", "far", port)
        await register(mesh, there, "other", "unexported", port)
        await export(there, "here", "web")
        envoy = await mesh.envoy(CLIENT, delta=delta)
        await mesh.until_answered_by({"far"}, url, host=ITS)
        await mesh.until_answered_by({"near"}, url, host=OWN)
        assert not mesh.plane.state.world.view.services_named("other.service.west.peer.consul")
        await resolver(here, "web", Targets=[{"Peer": "west"}])

        async def is_next() -> bool:
            return await priorities(envoy, port) == {near: 0, far: 1}

        await eventually(is_next, what="the peer is next")
        async with mesh.load(url, host=OWN) as load:
            await here.check("near", "fail")
            await mesh.until_answered_by({"far"}, url, host=OWN)
            await here.check("near", "pass")
            await mesh.until_answered_by({"near"}, url, host=OWN)
        assert load.failures == []
        await here.ask("DELETE", "/v1/config/service-resolver/web")

        async def is_alone() -> bool:
            return await priorities(envoy, port) == {near: 0}

        await eventually(is_alone, what="the peer takes over no longer")
        await mesh.assert_all_taken()


@pytest.mark.parametrize("ended_by", ["here", "there"])
async def test_a_peering_that_is_ended_keeps_what_was_imported(
    tmp_path: Path, free_ports: Ports, ended_by: str
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with (
        two_consuls(tmp_path, free_ports) as (here, there),
        fleet(tmp_path, registries=registries(here), guard=None) as mesh,
    ):
        await register(mesh, there, "web", "far", port)
        await export(there, "here", "web")
        await mesh.envoy(CLIENT)
        await mesh.until_answered_by({"far"}, url, host=ITS)
        source = next(s.source for s in mesh.plane.state.supervisors if s.source.name == "consul-peer-west")

        def told() -> str:
            statistics = source.statistics()
            assert isinstance(statistics, ConsulStatistics)
            return statistics.blindness

        async with mesh.load(url, host=ITS) as load:
            ends, name = (here, "west") if ended_by == "here" else (there, "here")
            await ends.ask("DELETE", f"/v1/peering/{name}")

            async def is_deleted() -> bool:
                return not (await here.ask("GET", "/v1/health/service/web", params={"peer": "west"})).json()

            await eventually(is_deleted, what="Consul deletes what it imported")
            await eventually(lambda: told().endswith("what was imported before is kept"))
        assert load.failures == []
        assert ("Consul has no peering 'west'" if ended_by == "here" else "is TERMINATED") in told()
        # Another instance counts once the two are peered again.
        await there.deregister("far")
        await register(mesh, there, "web", "other", port)
        if ended_by == "there":
            await here.ask("DELETE", "/v1/peering/west")

        async def is_forgotten() -> bool:
            return (await here.client.get("/v1/peering/west")).status_code == 404

        await eventually(is_forgotten, what="Consul has no such peering")
        await peer(there, "here-again", here, "west")
        await export(there, "here-again", "web")
        await mesh.until_answered_by({"other"}, url, host=ITS)
        await eventually(lambda: not told(), what="it is well again")
