"""Consul at size: a cluster of three servers whose leader is killed, and five hundred services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, Consistency, ConsulSettings, ConsulSource
from mesh_pilot.model.events import Delete, Endpoints, Upsert
from tests.sources.conformance import running
from tests.support.consul import TTL, Consul, real_consul
from tests.support.envoy import eventually

pytestmark = pytest.mark.process

TIMING = ConsulTiming(retry_seconds=0.05, retry_limit_seconds=0.5, hold_seconds=5.0, pace_seconds=0.05)

Ports = Callable[[int], list[int]]


async def _the_leader(servers: Sequence[Consul], ports: Sequence[Sequence[int]]) -> Consul | None:
    """The leader that all servers agree on, once each knows them all."""
    said = set()
    for server in servers:
        nodes = await server.client.get("/v1/catalog/nodes")
        if nodes.status_code != 200 or len(nodes.json()) != len(servers):
            return None
        said.add((await server.client.get("/v1/status/leader")).json())
    by_address = {f"127.0.0.1:{own[1]}": server for server, own in zip(servers, ports, strict=True)}
    return by_address.get(said.pop()) if len(said) == 1 else None


async def test_a_killed_leader_costs_nothing_that_is_served(tmp_path: Path, free_ports: Ports) -> None:
    ports = [free_ports(4) for _ in range(3)]
    async with AsyncExitStack() as stack:
        servers: list[Consul] = []
        for rank, own in enumerate(ports):
            config = {
                "server": True,
                "bootstrap_expect": 3,
                "data_dir": str(tmp_path / f"data-{rank}"),
                "retry_join": [f"127.0.0.1:{others[2]}" for others in ports],
                "retry_interval": "1s",
                "performance": {"raft_multiplier": 1},
            }
            servers.append(
                await stack.enter_async_context(
                    real_consul(tmp_path, own, name=f"server-{rank}", config=config, arguments=(), led=False)
                )
            )

        leader: Consul | None = None

        async def is_led() -> bool:
            nonlocal leader
            leader = await _the_leader(servers, ports)
            return leader is not None

        await eventually(is_led, what="the cluster has a leader")
        assert leader is not None
        follower_agent, third = (s for s in servers if s is not leader)
        await follower_agent.register("web")
        await third.register("api", address="10.0.0.2")
        source = ConsulSource("consul", ConsulSettings(agent=Agent(follower_agent.address), timing=TIMING))
        async with running(source) as follower:
            await follower.until(lambda picture: len(picture.items) == 4 and picture.synced > 0)
            await leader.kill()

            move = {"Name": "api", "ID": "api", "Address": "10.0.0.9", "Port": 8080}

            async def is_moved() -> bool:
                reply = await third.client.put("/v1/agent/service/register", json=move)
                return reply.status_code == 200

            await eventually(is_moved, seconds=60, what="there is a new leader")
            with trio.fail_after(60):
                await follower.until(lambda picture: "10.0.0.9" in str(picture.items))
            assert not any(isinstance(event, Delete) for event in follower.events)
            assert len(follower.picture.items) == 4


@pytest.mark.parametrize("max_queries", [600, 150], ids=["all at once", "sharing"])
async def test_five_hundred_services_of_four_instances(tmp_path: Path, free_ports: Ports, max_queries: int) -> None:
    services, instances = 500, 4
    async with real_consul(tmp_path, free_ports(4)) as consul:
        async with trio.open_nursery() as nursery:
            for part in range(8):
                nursery.start_soon(_register, consul, range(part, services, 8), instances)
        settings = ConsulSettings(
            agent=Agent(consul.address),
            timing=TIMING,
            max_queries=max_queries,
            consistency=Consistency.STALE,
        )
        source = ConsulSource("consul", settings)
        async with running(source, room=5000) as follower:
            await follower.until_synced()
            assert len(follower.picture.items) == 2 * services
            assert sum(len(i.endpoints) for i in follower.picture.items.values() if isinstance(i, Endpoints)) == 2000
            follower.take_events()
            if max_queries > services:
                await eventually(lambda: source.statistics().under_way == services + 1, what="all are followed")
                before = source.statistics().queries
                assert before <= 2 * (services + 1), "each is asked once at once, and once to wait"
                with trio.move_on_after(1):
                    follower.events.append(await follower.channel.receive())
                assert (source.statistics().queries, follower.events) == (before, [])
            else:
                await eventually(lambda: source.statistics().waiting > 300, what="the others hold no query")
                before = source.statistics().queries
                assert source.statistics().under_way <= max_queries
            await consul.check("s-7-2", "fail")
            await follower.until(lambda _: bool(follower.events))
            (event,) = follower.take_events()
            assert isinstance(event, Upsert) and isinstance(event.item, Endpoints)
            assert event.item.service.host == "s-7.service.consul" and len(event.item.endpoints) == 3
            assert source.statistics().queries - before <= 8, "a few, however many services there are"


async def _register(consul: Consul, numbers: range, instances: int) -> None:
    for number in numbers:
        for rank in range(instances):
            address = f"10.{rank}.{number // 250}.{number % 250 + 1}"
            await consul.register(
                f"s-{number}", id=f"s-{number}-{rank}", address=address, meta={"protocol": "http"}, Check=TTL
            )


async def test_a_restart_is_no_trouble_under_the_limit_that_consul_has_by_itself(
    tmp_path: Path, free_ports: Ports
) -> None:
    """Consul keeps the connections of queries that were given up, and counts them."""
    config = {"limits": {"http_max_conns_per_client": 200}}
    async with real_consul(tmp_path, free_ports(4), config=config) as consul:
        await _register(consul, range(100), 1)
        for _ in range(3):
            source = ConsulSource("consul", ConsulSettings(agent=Agent(consul.address)))
            async with running(source, room=5000) as follower:
                await follower.until_synced()
                await eventually(lambda s=source: s.statistics().under_way >= 40, what="all slots are taken")
                assert source.statistics().failures == 0
