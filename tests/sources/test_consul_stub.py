"""Answers that a real Consul can't be made to give: refusals, errors, silence, indexes that go back."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, Consistency, ConsulSettings, ConsulSource
from mesh_pilot.consul.source.source import CONFIGS
from mesh_pilot.model.events import Delete, Endpoints, Upsert
from mesh_pilot.model.service import Resolution, Service
from tests.sources.conformance import Follower, running
from tests.support.consul_stub import ConsulStub, consul_stub
from tests.support.envoy import eventually

TIMING = ConsulTiming(
    retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=30.0, pace_seconds=0.02, grace_seconds=5.0
)
CATALOG, WEB = "/v1/catalog/services", "/v1/health/service/web"
KEY = ("endpoints", "web.service.consul", "default")


def entry(address: str) -> dict[str, Any]:
    return {
        "Node": {"Node": "n", "Address": "10.9.9.9", "Datacenter": "dc1"},
        "Service": {"ID": f"web-{address}", "Service": "web", "Address": address, "Port": 80},
        "Checks": [],
    }


@asynccontextmanager
async def following(stub: ConsulStub, **settings: Any) -> AsyncIterator[tuple[ConsulSource, Follower]]:
    """A source that knows one instance of web."""
    stub.answer(CATALOG, {"consul": [], "web": ["mesh"]}, index=5)
    stub.answer(WEB, [entry("10.0.0.1")], index=5)
    source = ConsulSource("consul", ConsulSettings(agent=Agent(stub.address), **{"timing": TIMING, **settings}))
    async with running(source) as follower:
        await follower.until_synced()
        follower.take_events()
        yield source, follower


def addresses(follower: Follower) -> list[str]:
    item = follower.picture.items[KEY]
    assert isinstance(item, Endpoints)
    return [endpoint.address for endpoint in item.endpoints]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, "Your IP is issuing too many concurrent connections, please rate limit your calls"),
        (500, "No cluster leader"),
        (500, "rpc error making call: EOF"),
        (503, "Service Unavailable"),
        (403, "Permission denied"),
        (200, "<html>what?</html>"),
    ],
)
async def test_what_is_no_answer_keeps_what_is_served_and_is_told(status: int, text: str) -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        for path in (CATALOG, WEB):
            stub.answer(path, text, index=6, status=status)
        await eventually(lambda: source.statistics().stale_seconds > 0, what="the outage is noticed")
        assert source.statistics().trouble
        assert addresses(follower) == ["10.0.0.1"]
        stub.answer(CATALOG, {"consul": [], "web": []}, index=7)
        stub.answer(WEB, [entry("10.0.0.1"), entry("10.0.0.2")], index=7)
        await follower.until(lambda _: addresses(follower) == ["10.0.0.1", "10.0.0.2"])
        await eventually(lambda: source.statistics().stale_seconds == 0, what="it is over")
        await eventually(lambda: source.statistics().trouble == "", what="each query is answered again")
        assert len(follower.take_events()) == 1


async def test_one_service_that_can_not_be_read_does_not_touch_the_others() -> None:
    async with consul_stub() as stub:
        stub.answer("/v1/health/service/api", "rpc error", index=6, status=500)
        stub.answer("/v1/health/service/db", [], index=6)
        async with following(stub) as (source, follower):
            stub.answer(CATALOG, {"api": [], "web": []}, index=7)
            await eventually(lambda: "rpc error" in source.statistics().trouble, what="it is told")
            stub.answer(WEB, [entry("10.0.0.2"), entry("10.0.0.3")], index=9)
            await follower.until(lambda _: addresses(follower) == ["10.0.0.2", "10.0.0.3"])


async def test_an_agent_that_falls_silent_is_noticed() -> None:
    timing = attrs.evolve(TIMING, wait_seconds=0.2, grace_seconds=0.1)
    async with consul_stub() as stub, following(stub, timing=timing) as (source, follower):
        stub.is_deaf = True
        await eventually(lambda: "ReadTimeout" in source.statistics().trouble, what="it is overdue")
        stub.is_deaf = False
        stub.answer(WEB, [entry("10.0.0.9")], index=9)
        await follower.until(lambda _: addresses(follower) == ["10.0.0.9"])


async def test_an_index_that_goes_back_is_asked_for_anew_and_what_is_missing_stays() -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        stub.answer(WEB, [entry("10.0.0.2")], index=2)
        await follower.until(lambda _: addresses(follower) == ["10.0.0.2", "10.0.0.1"] or len(addresses(follower)) == 2)
        asked = [a.parameters.get("index") for a in stub.asked if a.path == WEB]
        await eventually(lambda: stub.asked[-1].parameters.get("index") == "2", what="it continues from there")
        assert "5" in asked
        assert None in [a.parameters.get("index") for a in stub.asked if a.path == WEB][2:], "and first without one"
        assert source.statistics().held_back == ("consul service web",)


async def test_an_empty_answer_is_held_back_until_the_instances_are_there_again() -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        stub.answer(WEB, [], index=6)
        await eventually(lambda: source.statistics().held_back == ("consul service web",), what="it is doubted")
        stub.answer(WEB, [entry("10.0.0.1")], index=7)
        await eventually(lambda: source.statistics().held_back == (), what="it is over")
        assert follower.take_events() == []
        stub.answer(CATALOG, {"consul": []}, index=8)
        await eventually(lambda: source.statistics().held_back == ("the catalog",), what="it is doubted")
        stub.answer(CATALOG, {"web": []}, index=9)
        await eventually(lambda: source.statistics().held_back == (), what="it is over")
        assert follower.take_events() == []


KV = "/v1/kv/mesh/config"


def key_of(name: str) -> dict[str, str]:
    spec = '{"hosts": ["a.b"], "http": [{"redirect": {"uri": "/"}}]}'
    text = f'{{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "spec": {spec}}}'
    return {"Key": f"mesh/config/VirtualService/shop/{name}", "Value": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("before", "after", "explicit"),
    [
        ("abcdef", "f", True),
        ("abcdef", "abcde", True),
        ("ab", "", True),
        ("a", "", True),
        ("abc", "", None),
    ],
    ids=["most-go", "one-goes", "both-go", "the-only-one-goes", "a-prefix-goes-whole"],
)
async def test_keys_that_go_are_deleted_unless_a_prefix_of_many_goes_whole(
    before: str, after: str, explicit: bool | None
) -> None:
    async with consul_stub() as stub:
        stub.answer(KV, [key_of(name) for name in before], index=6)
        async with following(stub, config_prefix="mesh/config") as (source, follower):
            stub.answer(KV, [key_of(name) for name in after], index=7)
            if explicit is None:
                await eventually(lambda: source.statistics().held_back == (CONFIGS,), what="it is doubted")
                assert follower.take_events() == []
                return
            await follower.until(lambda p: sum(key[0] == "config" for key in p.items) == len(after))
            deleted = [event for event in follower.take_events() if isinstance(event, Delete)]
            assert len(deleted) == len(before) - len(after)
            assert all(event.is_explicit is explicit for event in deleted)


async def test_keys_that_a_consul_without_its_data_lacks_are_not_deleted() -> None:
    async with consul_stub() as stub:
        stub.answer(KV, [key_of(name) for name in "ab"], index=6)
        async with following(stub, config_prefix="mesh/config") as (source, follower):
            stub.answer(KV, [key_of("a")], index=2)
            await eventually(lambda: source.statistics().held_back == (CONFIGS,), what="it is doubted")
            assert not [event for event in follower.take_events() if isinstance(event, Delete)]


def resolution(follower: Follower) -> Resolution:
    item = follower.picture.items["service", "web.service.consul", "default"]
    assert isinstance(item, Service)
    return item.resolution


async def test_a_service_of_host_names_stays_one_without_a_healthy_instance() -> None:
    """Case 28: the guard holds its endpoints, which no cluster of IP addresses can use."""
    critical = entry("db.example.com") | {"Checks": [{"CheckID": "c", "Name": "c", "Status": "critical"}]}
    async with consul_stub() as stub, following(stub) as (_, follower):
        stub.answer(WEB, [entry("db.example.com")], index=6)
        await follower.until(lambda _: resolution(follower) is Resolution.DNS)
        stub.answer(WEB, [critical], index=7)
        await follower.until(lambda _: addresses(follower) == [])
        stub.answer(WEB, [critical, entry("db2.example.com")], index=8)
        await follower.until(lambda _: addresses(follower) == ["db2.example.com"])
        services = [event.item for event in follower.events if isinstance(event, Upsert)]
        assert {item.resolution for item in services if isinstance(item, Service)} == {Resolution.DNS}


async def test_parameters_of_every_query_are_passed_on() -> None:
    async with consul_stub() as stub:
        stub.answer("/v1/kv/mesh/config", [], index=3)
        more = {
            "partition": "part",
            "consul_namespace": "team-a",
            "datacenter": "dc7",
            "consistency": Consistency.STALE,
            "service_tag": "mesh",
            "service_filter": 'Service.Meta.team == "a"',
            "config_prefix": "mesh/config",
        }
        async with following(stub, **more):
            everywhere = {"partition": "part", "ns": "team-a", "dc": "dc7"}
            assert stub.counts().keys() == {CATALOG, WEB, "/v1/kv/mesh/config", "/v1/kv/mesh/config/"}
            for asked in stub.asked:
                assert everywhere.items() <= asked.parameters.items(), asked
            by_path = {asked.path: asked.parameters for asked in stub.asked}
            assert by_path[WEB]["filter"] == 'Service.Meta.team == "a"'
            assert by_path[WEB]["tag"] == "mesh"
            assert by_path[CATALOG]["filter"] == 'ServiceMeta.team == "a"'


async def test_a_catalog_that_does_not_take_the_filter_is_asked_without_it() -> None:
    async with consul_stub() as stub, following(stub, service_filter='Service.Meta.team == "a"') as (source, _):
        refusal = 'Failed to create boolean expression evaluator: Selector "ServiceMeta" is not valid'
        stub.answer(CATALOG, refusal, index=6, status=500)
        await eventually(lambda: "filter" not in stub.asked[-1].parameters, what="it is asked without a filter")
        stub.answer(CATALOG, {"web": []}, index=7)
        await eventually(lambda: source.statistics().stale_seconds == 0, what="all is well")


async def test_with_more_services_than_slots_and_no_summary_all_are_read_after_a_change() -> None:
    names = [f"s-{number:02}" for number in range(20)]
    timing = attrs.evolve(TIMING, trigger_pace_seconds=0.01)
    async with consul_stub() as stub:
        for state in ("critical", "warning"):
            stub.answer(f"/v1/health/state/{state}", [], index=5)
        stub.answer("/v1/catalog/nodes", [], index=5)
        stub.answer("/v1/internal/ui/services", "gone", status=404)
        for name in names:
            stub.answer(f"/v1/health/service/{name}", [entry("10.0.0.1")], index=5)
        async with following(stub, max_queries=16, timing=timing) as (source, follower):
            stub.answer(CATALOG, {name: [] for name in ("web", *names)}, index=6)
            await follower.until(lambda picture: len(picture.items) == 2 * 21)
            await eventually(lambda: source.statistics().waiting == 14, what="slots are taken")
            stub.answer("/v1/health/service/s-07", [entry("10.0.0.2"), entry("10.0.0.3")], index=9)
            stub.answer(CATALOG, {name: [] for name in ("web", *names)}, index=9)
            await follower.until(lambda picture: "10.0.0.3" in str(picture.items))


async def test_with_more_services_than_slots_a_stale_server_that_lags_is_asked_again() -> None:
    names = [f"s-{number:02}" for number in range(20)]
    async with consul_stub() as stub:
        for state in ("critical", "warning"):
            stub.answer(f"/v1/health/state/{state}", [], index=5)
        stub.answer("/v1/catalog/nodes", [], index=5)
        for name in names:
            stub.answer(f"/v1/health/service/{name}", [entry("10.0.0.1")], index=5)
        async with following(stub, max_queries=16, consistency=Consistency.STALE) as (source, follower):
            stub.answer(CATALOG, {name: [] for name in ("web", *names)}, index=6)
            await follower.until(lambda picture: len(picture.items) == 2 * 21)
            await eventually(lambda: source.statistics().waiting == 14, what="slots are taken")
            await eventually(lambda: stub.counts()["/v1/health/state/critical"] == 2, what="it waits for checks")
            asked = stub.counts()
            held = {a.path for a in stub.asked if a.path.startswith("/v1/health/service/") and "index" in a.parameters}
            cold = next(name for name in names if f"/v1/health/service/{name}" not in held)
            path = f"/v1/health/service/{cold}"
            stub.answer("/v1/health/state/critical", [{"Node": "n", "CheckID": "c", "ServiceName": cold}], index=9)
            await eventually(lambda: stub.counts()[path] > asked[path], what="it is read, too early")
            stub.answer(path, [entry("10.0.0.1"), entry("10.0.0.3")], index=9)
            await follower.until(lambda picture: "10.0.0.3" in str(picture.items))


async def test_more_services_than_slots_have_no_more_connections_than_allowed() -> None:
    names = [f"s-{number:03}" for number in range(100)]
    most = 0
    async with consul_stub() as stub:
        for state in ("critical", "warning"):
            stub.answer(f"/v1/health/state/{state}", [], index=5)
        stub.answer("/v1/catalog/nodes", [], index=5)
        for name in names:
            stub.answer(f"/v1/health/service/{name}", [entry("10.0.0.1")], index=5)
        async with following(stub, max_queries=20) as (source, follower), trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, source.statistics().under_way)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(watch)
            stub.answer(CATALOG, {name: [] for name in ("web", *names)}, index=6)
            await follower.until(lambda picture: len(picture.items) == 2 * 101)
            nursery.cancel_scope.cancel()
    assert 10 < most <= 20
