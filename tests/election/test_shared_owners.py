"""Replicas with a real Consul that saw the namespaces of a contested host in different orders: one order for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.consul.source import Agent
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.resource import ENDPOINT
from tests.election.test_consul_lock import RULES
from tests.support.consul import Cable, Consul, closed_consul, token_for
from tests.support.envoy import eventually
from tests.support.planes import running_plane
from tests.support.worlds import sidecar
from tests.world.test_host_owners import entry

pytestmark = [pytest.mark.plane, pytest.mark.process]

KEY = "mesh-pilot/owners"

Ports = Callable[[int], list[int]]


def put(folder: Path, *namespaces: str) -> Path:
    folder.mkdir(exist_ok=True)
    for namespace in namespaces:
        (folder / f"{namespace}.yaml").write_text(entry(namespace))
    return folder


def sent(plane: ControlPlane) -> bytes:
    """The endpoints of the contested host that a client of a third namespace is sent."""
    held = WorldCatalog(plane.state.world).open(sidecar(namespace="bank")).set(ENDPOINT)
    assert held is not None
    name = "outbound|80||be.test"
    found = held.select(frozenset((name,))).entries
    return bytes(found[name].body) if name in found else b""


def gets(plane: ControlPlane, namespace: str) -> Callable[[], bool]:
    address = {"shop": b"10.0.0.1", "evil": b"10.0.0.2"}[namespace]
    return lambda: address in sent(plane)


def knows_both(plane: ControlPlane) -> Callable[[], bool]:
    return lambda: len(plane.state.world.host_owners.peek(("", "be.test"))) == 2


async def stored(consul: Consul) -> list[str]:
    """The namespaces of the host in the entry, in their order."""
    reply = await consul.client.get(f"/v1/kv/{KEY}", params={"raw": ""})
    if reply.status_code != 200:
        return []
    try:
        found = json.loads(reply.text)
    except ValueError:
        return ["rubbish"]
    return [claim["namespace"] for item in found for claim in item["order"]]


async def test_replicas_that_began_with_opposite_orders_end_with_the_same_bytes(
    tmp_path: Path, free_ports: Ports
) -> None:
    *ports, far_port = free_ports(5)
    async with (
        closed_consul(tmp_path, ports, session_ttl_min="1s") as consul,
        trio.open_nursery() as nursery,
    ):
        agent = Agent(consul.address, token=await token_for(consul, "leader", RULES))
        near = ConsulElectionSettings(agent=agent, ttl_seconds=3.0)
        far = attrs.evolve(near, agent=attrs.evolve(agent, address=f"http://127.0.0.1:{far_port}"))

        async def is_stored() -> bool:
            return await stored(consul) == ["shop", "evil"]

        async with running_plane(put(tmp_path / "b", "evil"), election=far) as follower:
            async with running_plane(put(tmp_path / "a", "shop"), election=near) as leader:
                put(tmp_path / "a", "evil")
                put(tmp_path / "b", "shop")
                for plane in (leader, follower):
                    await eventually(knows_both(plane), what="both objects are seen")
                assert gets(leader, "shop")() and gets(follower, "evil")(), "without the store each has its own order"
                await eventually(is_stored, what="the leader has written its order")
                way = await trio.open_tcp_listeners(far_port, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, Cable(consul.port).carry, way)
                await eventually(gets(follower, "shop"), what="the follower has taken it")
                assert sent(leader) == sent(follower)

                # Rubbish in the entry changes nothing for anybody; the next leader writes over it at once.
                with capture_logs() as logs:
                    await consul.put(KEY, "rubbish")
                    await eventually(
                        lambda: any("not a list of owners" in str(log.get("reason")) for log in logs), what="it is said"
                    )
                assert gets(leader, "shop")() and gets(follower, "shop")()
            await eventually(lambda: follower.state.election.statistics().leads, what="the follower leads")
            await eventually(is_stored, what="the entry is whole again")

            # A replica that is added sees both at once: by age and name the host would be evil's.
            async with running_plane(put(tmp_path / "c", "evil", "shop"), election=near) as added:
                await eventually(gets(added, "shop"), what="the new replica has taken the order")
                assert sent(added) == sent(follower)
        nursery.cancel_scope.cancel()
