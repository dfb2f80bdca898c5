"""A real Consul, followed through what happens to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulSettings, ConsulSource, CriticalRule, WarningRule
from mesh_pilot.model.events import Delete, Endpoints, Rejected, Replace, Synced, Upsert
from mesh_pilot.model.service import Health, Service
from tests.sources.conformance import Follower, running
from tests.sources.files_feed import text
from tests.support.consul import TTL, Consul, cable, real_consul
from tests.support.envoy import eventually

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("each_consul")]

TIMING = ConsulTiming(retry_seconds=0.05, retry_limit_seconds=0.2, hold_seconds=0.3, pace_seconds=0.05)

Ports = Callable[[int], list[int]]


@pytest.fixture
async def consul(tmp_path: Path, free_ports: Ports) -> AsyncIterator[Consul]:
    async with real_consul(tmp_path, free_ports(4)) as agent:
        yield agent


def source_of(address: str, **settings: Any) -> ConsulSource:
    timing = settings.pop("timing", TIMING)
    agent = settings.pop("agent", Agent(address))
    return ConsulSource("consul", ConsulSettings(agent=agent, timing=timing, **settings))


@asynccontextmanager
async def following(address: str, **settings: Any) -> AsyncIterator[tuple[ConsulSource, Follower]]:
    """A source that has synced."""
    source = source_of(address, **settings)
    async with running(source) as follower:
        await follower.until_synced()
        yield source, follower


def host(name: str) -> tuple[str, ...]:
    return ("service", f"{name}.service.consul", "default")


def addresses(follower: Follower, name: str) -> list[str]:
    """Where the healthy endpoints of a service are."""
    item = follower.picture.items.get(("endpoints", f"{name}.service.consul", "default"))
    if not isinstance(item, Endpoints):
        return []
    return [f"{e.address}:{e.port}" for e in item.endpoints if e.health is Health.HEALTHY]


async def until_at(follower: Follower, name: str, *expected: str) -> None:
    await follower.until(lambda _: addresses(follower, name) == list(expected))


async def settle(source: ConsulSource, follower: Follower) -> int:
    """Wait until everything is asked and answered; returns how many queries were sent so far."""
    await eventually(lambda: source.statistics().under_way == source.statistics().services + 1, what="all is followed")
    count = source.statistics().queries
    with trio.move_on_after(0.3):
        follower.events.append(await follower.channel.receive())
        raise AssertionError(f"an event out of nothing: {follower.events}")
    return count


async def test_services_come_and_go(consul: Consul) -> None:
    await consul.register("web", meta={"protocol": "http", "version": "v1"})
    async with following(consul.address) as (source, follower):
        service = follower.picture.items[host("web")]
        assert isinstance(service, Service) and service.registry == "Consul"
        assert addresses(follower, "web") == ["10.0.0.1:8080"]
        await consul.register("api", address="10.0.0.2")
        await follower.until(lambda picture: host("api") in picture.items)
        assert addresses(follower, "api") == ["10.0.0.2:8080"]
        await consul.deregister("web")
        await follower.until(lambda picture: host("web") not in picture.items)
        await follower.until(lambda picture: len(picture.items) == 2)
        assert source.statistics().items == 2
        assert source.statistics().services == 1


async def test_consul_itself_is_no_service_of_the_mesh(consul: Consul) -> None:
    async with following(consul.address) as (source, follower):
        assert follower.picture.items == {}
        assert source.statistics().services == 0


async def test_a_changed_instance_touches_its_service_only(consul: Consul) -> None:
    for name in ("web", "api"):
        await consul.register(name)
    async with following(consul.address) as (_, follower):
        follower.take_events()
        await consul.register("web", id="web-2", address="10.0.0.2")
        await until_at(follower, "web", "10.0.0.1:8080", "10.0.0.2:8080")
        assert [type(e) for e in follower.take_events()] == [Upsert]


async def test_events_have_the_index_of_the_answer(consul: Consul) -> None:
    await consul.register("web")
    async with following(consul.address) as (_, follower):
        follower.take_events()
        await consul.register("web", id="web-2", address="10.0.0.2")
        await until_at(follower, "web", "10.0.0.1:8080", "10.0.0.2:8080")
        await consul.deregister("web")
        await consul.deregister("web-2")
        await follower.until(lambda picture: host("web") not in picture.items)
        causes = [event.cause for event in follower.take_events() if isinstance(event, Upsert | Delete)]
        indexes = [int(cause.removeprefix("Consul index ")) for cause in causes]
        assert indexes == sorted(indexes)
        assert indexes[0] < indexes[-1]


async def test_health_and_maintenance_take_instances_out_and_in(consul: Consul) -> None:
    for number in (1, 2):
        await consul.register("web", id=f"web-{number}", address=f"10.0.0.{number}", Check=TTL)
    both = ["10.0.0.1:8080", "10.0.0.2:8080"]
    async with following(consul.address) as (_, follower):
        assert addresses(follower, "web") == both
        await consul.check("web-1", "fail")
        await until_at(follower, "web", both[1])
        await consul.check("web-1", "pass")
        await until_at(follower, "web", *both)
        await consul.maintenance("web-2", True)
        await until_at(follower, "web", both[0])
        await consul.maintenance("web-2", False)
        await until_at(follower, "web", *both)
        await consul.check("web-1", "fail")
        await consul.check("web-2", "fail")
        await until_at(follower, "web")
        assert host("web") in follower.picture.items


async def test_critical_instances_may_stay_as_unhealthy(consul: Consul) -> None:
    await consul.register("web", Check={**TTL, "Status": "critical"})
    async with following(consul.address, critical=CriticalRule.UNHEALTHY) as (_, follower):
        item = follower.picture.items["endpoints", "web.service.consul", "default"]
        assert isinstance(item, Endpoints)
        assert [e.health for e in item.endpoints] == [Health.UNHEALTHY]


async def test_an_idle_mesh_asks_nothing_and_a_flap_costs_a_constant_number(consul: Consul) -> None:
    for number in range(12):
        await consul.register(f"s-{number}", Check=TTL)
    async with following(consul.address) as (source, follower):
        before = await settle(source, follower)
        assert before == 2 + 2 * 12, "the catalog and each service: once at once, and once to wait"
        assert await settle(source, follower) == before
        await consul.check("s-3", "fail")
        await until_at(follower, "s-3")
        assert await settle(source, follower) - before <= 2, "the service again, and perhaps the catalog"


async def test_only_services_with_the_tag_and_within_the_filter_are_followed(consul: Consul) -> None:
    await consul.register("web", tags=["mesh"])
    await consul.register("web", id="web-2", address="10.0.0.2")
    await consul.register("api", address="10.0.0.3", meta={"team": "a"})
    async with following(consul.address, service_tag="mesh") as (source, follower):
        assert addresses(follower, "web") == ["10.0.0.1:8080"]
        assert source.statistics().services == 1
    async with following(consul.address, service_filter='Service.Meta.team == "a"') as (_, follower):
        assert set(follower.picture.items) == {host("api"), ("endpoints", *host("api")[1:])}


async def test_services_that_the_filter_or_the_tag_rule_out_are_never_asked_for(consul: Consul) -> None:
    for number in range(10):
        await consul.register(f"s-{number}", tags=["mesh"] if number < 2 else [], meta={"team": "a"})
    for narrowing in (
        {"service_tag": "mesh"},
        {"service_filter": '"mesh" in Service.Tags and Service.Meta.team == "a"'},
    ):
        async with following(consul.address, **narrowing) as (source, follower):
            assert await settle(source, follower) == 2 + 2 * 2, "the catalog and two services"
            assert source.statistics().services == 2


async def test_a_bad_filter_is_said(consul: Consul) -> None:
    await consul.register("web")
    source = source_of(consul.address, service_filter="Service.Meta ===")
    async with running(source):
        await eventually(lambda: "boolean expression" in source.statistics().waiting_for, what="the reason is known")
        assert source.statistics().waiting_for.startswith("consul service web: Consul answers")


async def test_a_service_that_can_not_be_served_is_told_by_name(consul: Consul) -> None:
    await consul.register("web")
    await consul.register("odd", port=0)
    async with following(consul.address) as (source, follower):
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert rejected.origin.location == "consul service odd"
        assert source.statistics().rejected == 1
        await consul.register("web", port=0)
        await follower.until(lambda picture: len(picture.rejected) == 2)
        assert addresses(follower, "web") == ["10.0.0.1:8080"], "what was good stays"
        await consul.register("web", port=81)
        await until_at(follower, "web", "10.0.0.1:81")
        await consul.deregister("odd")
        await follower.until(lambda picture: not picture.rejected)


async def test_an_outage_keeps_everything_and_costs_only_what_changed_meanwhile(consul: Consul) -> None:
    for name in ("web", "api", "db"):
        await consul.register(name, meta={"protocol": "http"})
    async with cable(consul.port) as line, following(line.address) as (source, follower):
        follower.take_events()
        line.cut()
        await eventually(lambda: source.statistics().stale_seconds > 0.1, what="the outage is noticed")
        assert source.statistics().trouble
        await consul.register("api", address="10.0.0.9", meta={"protocol": "http"})
        line.fix()
        await until_at(follower, "api", "10.0.0.9:8080")
        # A query's trouble is over with its answer: under way it is before.
        await eventually(lambda: source.statistics().under_way == 4 and not source.statistics().trouble)
        assert [type(e) for e in follower.take_events()] == [Upsert]
        assert source.statistics().stale_seconds == 0
        assert source.statistics().outages == 1


async def test_a_consul_that_lost_everything_is_not_believed_until_services_are_back(
    tmp_path: Path, free_ports: Ports
) -> None:
    ports = free_ports(4)
    async with cable(ports[0]) as line, real_consul(tmp_path, ports) as first:
        for number in range(40):  # so that the next one's indexes are far behind
            await first.put(f"x/{number}", "y")
        await first.register("web")
        await first.register("web", id="web-2", address="10.0.0.7")
        await first.register("api", address="10.0.0.2")
        source = source_of(line.address, timing=attrs.evolve(TIMING, hold_seconds=30.0))
        async with running(source) as follower:
            await follower.until_synced()
            follower.take_events()
            await first.kill()
            async with real_consul(tmp_path, ports) as second:
                await eventually(lambda: "the catalog" in source.statistics().held_back, what="it is held back")
                await second.register("web")
                await second.register("api", address="10.0.0.3")
                await until_at(follower, "api", "10.0.0.3:8080")
                assert addresses(follower, "web") == ["10.0.0.1:8080", "10.0.0.7:8080"]
                await second.register("web", id="web-2", address="10.0.0.7")
                await eventually(lambda: source.statistics().held_back == (), what="nothing is held back")
                assert [type(e) for e in follower.take_events()] == [Upsert]
                assert addresses(follower, "web") == ["10.0.0.1:8080", "10.0.0.7:8080"]


async def test_an_empty_answer_that_stays_is_believed(consul: Consul) -> None:
    await consul.register("web")
    async with following(consul.address) as (source, follower):
        await consul.deregister("web")
        await eventually(lambda: bool(source.statistics().held_back), what="it is held back")
        assert host("web") in follower.picture.items
        await follower.until(lambda picture: not picture.items)
        await eventually(lambda: source.statistics().held_back == (), what="nothing is held back")


async def test_configs_stand_in_the_kv_store(consul: Consul) -> None:
    prefix = "mesh-pilot/config"
    await consul.put(f"{prefix}/VirtualService/shop/web", text("web", 1))
    await consul.put(f"{prefix}/VirtualService/shop/other", text("web", 1))
    await consul.put(f"{prefix}/VirtualService/nowhere", text("nowhere", 1))
    await consul.put(f"{prefix}/", "")
    async with following(consul.address, config_prefix=prefix) as (_, follower):
        await follower.until(lambda picture: len(picture.rejected) == 2)
        assert set(follower.picture.items) == {("config", "VirtualService", "shop", "web")}
        told = {r.origin.location: str(r.problems[0]) for r in follower.picture.rejected.values()}
        assert told == {
            f"consul {prefix}/VirtualService/nowhere": "the key must be <prefix>/<kind>/<namespace>/<name>, such as "
            "mesh-pilot/config/VirtualService/shop/reviews",
            f"consul {prefix}/VirtualService/shop/other": "metadata: the object is VirtualService/shop/web, but its "
            "key says VirtualService/shop/other",
        }
        spec = '{"hosts": ["a.b"], "http": [{"redirect": {"uri": "/"}}]}'
        document = f'{{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",\n\t"spec": {spec}}}'
        await consul.put(f"{prefix}/virtualservice/shop/json", document)
        await follower.until(lambda picture: ("config", "VirtualService", "shop", "json") in picture.items)


async def test_the_first_events_are_the_whole_picture(consul: Consul) -> None:
    await consul.register("web")
    await consul.register("api")
    async with following(consul.address) as (_, follower):
        assert [type(e) for e in follower.events] == [Replace, Synced]


QUICK = attrs.evolve(TIMING, hidden_seconds=0.1, trigger_pace_seconds=0.01)

CROWDED: dict[str, Any] = {"max_queries": 16, "timing": QUICK}
"""Seven services hold a query."""


async def filled(consul: Consul, count: int) -> list[str]:
    names = [f"s-{number:02}" for number in range(count)]
    for name in names:
        await consul.register(name, Check=TTL)
    return names


async def test_idle_services_without_slots_ask_nothing_and_a_flap_costs_a_constant_number(consul: Consul) -> None:
    names = await filled(consul, 30)
    timing = attrs.evolve(QUICK, hidden_seconds=30.0)
    async with following(consul.address, max_queries=16, timing=timing) as (source, follower):
        held = 7 + 4  # with the catalog, the nodes, and the critical and warning checks
        await eventually(lambda: source.statistics().under_way == held, what="slots are taken")
        await eventually(lambda: source.statistics().waiting == 23, what="others wait")
        # Whoever was read before the nodes were is read again, once.
        await eventually(lambda: source.statistics().queries >= 2 * held + 1 + 23, what="all is asked at least once")
        with trio.move_on_after(1):
            follower.events.append(await follower.channel.receive())
        before = source.statistics().queries
        with trio.move_on_after(0.5):
            follower.events.append(await follower.channel.receive())
        assert source.statistics().queries == before
        for name in names:
            await consul.check(name, "fail")
            await until_at(follower, name)
        assert source.statistics().queries - before <= 5 * len(names)
        assert source.statistics().under_way <= 16


@pytest.mark.parametrize("status", ["warn", "fail"])
async def test_with_more_services_than_slots_every_flap_is_seen(consul: Consul, status: str) -> None:
    names = await filled(consul, 20)
    async with following(consul.address, **CROWDED, warning=WarningRule.OUT) as (_, follower):
        for _ in range(2):
            for name in names:
                await consul.check(name, status)
            for name in names:
                await until_at(follower, name)
            for name in names:
                await consul.check(name, "pass")
            for name in names:
                await until_at(follower, name, "10.0.0.1:8080")
        assert not any(isinstance(e, Rejected | Delete) for e in follower.events)


async def test_with_more_services_than_slots_instances_come_change_and_go(consul: Consul) -> None:
    names = await filled(consul, 20)
    async with following(consul.address, **CROWDED) as (_, follower):
        for name in names:
            await consul.register(name, id=f"{name}-b", address="10.0.0.2")
        for name in names:
            await until_at(follower, name, "10.0.0.1:8080", "10.0.0.2:8080")
        for name in names:
            await consul.register(name, id=f"{name}-b", address="10.0.0.3")
        for name in names:
            await until_at(follower, name, "10.0.0.1:8080", "10.0.0.3:8080")
        for name in names:
            await consul.deregister(f"{name}-b")
        for name in names:
            await until_at(follower, name, "10.0.0.1:8080")
        await consul.deregister(names[3])
        await follower.until(lambda picture: host(names[3]) not in picture.items)


async def test_with_more_services_than_slots_a_node_that_changes_or_fails_is_seen(consul: Consul) -> None:
    names = [f"s-{number:02}" for number in range(20)]
    node = {"Node": "vm-1", "Address": "10.1.0.1"}
    for name in names:
        service = {"ID": f"{name}-1", "Service": name, "Port": 80}
        await consul.ask("PUT", "/v1/catalog/register", json={**node, "Service": service})
    async with following(consul.address, **CROWDED) as (_, follower):
        await consul.ask("PUT", "/v1/catalog/register", json={**node, "Address": "10.1.0.2"})
        for name in names:
            await until_at(follower, name, "10.1.0.2:80")
        check = {"CheckID": "alive", "Name": "alive", "Status": "critical"}
        await consul.ask("PUT", "/v1/catalog/register", json={**node, "Address": "10.1.0.2", "Check": check})
        for name in names:
            await until_at(follower, name)


async def test_services_without_slots_survive_an_outage_in_which_things_changed(consul: Consul) -> None:
    names = await filled(consul, 20)
    async with cable(consul.port) as line, following(line.address, **CROWDED) as (source, follower):
        line.cut()
        await eventually(lambda: source.statistics().stale_seconds > 0.1, what="the outage is noticed")
        for name in names[::2]:
            await consul.register(name, address="10.0.0.9", Check=TTL)
        line.fix()
        for rank, name in enumerate(names):
            await until_at(follower, name, "10.0.0.1:8080" if rank % 2 else "10.0.0.9:8080")
