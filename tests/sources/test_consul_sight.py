"""Tokens that see less than there is: Consul leaves it out of its answers, and nothing of it is taken as gone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.mesh.entries import KINDS
from mesh_pilot.consul.source import Agent, ConsulSettings, ConsulSource
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete
from tests.sources.conformance import Follower, Picture, running
from tests.support.consul import closed_consul, token_for
from tests.support.consul_stub import ConsulStub, consul_stub
from tests.support.envoy import eventually

TIMING = ConsulTiming(
    retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=0.05, pace_seconds=0.02, grace_seconds=5.0
)
CATALOG, WEB, KV = "/v1/catalog/services", "/v1/health/service/web", "/v1/kv/mesh"
INTENTIONS, MATCH = "/v1/connect/intentions", "/v1/connect/intentions/match"
BLIND = "the token sees no service, not even Consul's own: give it service:read and node:read"
OBJECT = """
apiVersion: networking.istio.io/v1
kind: VirtualService
spec: {hosts: [a.b], http: [{redirect: {uri: /}}]}
"""

Ports = Callable[[int], list[int]]


def source_of(address: str, **settings: Any) -> ConsulSource:
    agent = Agent(address, **settings.pop("agent", {}))
    return ConsulSource("consul", ConsulSettings(agent=agent, **{"timing": TIMING, **settings}))


def fill(stub: ConsulStub, index: int = 5) -> None:
    stub.answer(CATALOG, {"consul": [], "web": []}, index=index)
    service = {"ID": "web", "Service": "web", "Address": "10.0.0.1", "Port": 80, "Meta": {"protocol": "http"}}
    stub.answer(WEB, [{"Node": {"Node": "n", "Datacenter": "dc1"}, "Service": service, "Checks": []}], index=index)


async def told(source: ConsulSource, reason: str) -> None:
    await eventually(lambda: source.statistics().blindness == reason, what=f"it says {reason!r}")


async def unchanged(follower: Follower, items: int) -> None:
    """Nothing is lost in some time."""
    with trio.move_on_after(0.4):
        await follower.until(lambda picture: len(picture.items) != items)
    assert len(follower.picture.items) == items
    assert not any(isinstance(event, Delete) for event in follower.take_events())


async def test_a_catalog_without_consul_itself_is_that_of_a_blind_token() -> None:
    async with consul_stub() as stub:
        stub.answer(CATALOG, {}, index=5)
        source = source_of(stub.address)
        async with running(source) as follower:
            await follower.until_synced()
            assert (source.statistics().blindness, source.statistics().trouble) == (BLIND, "")
            assert source.statistics().blind_seconds >= 0
            fill(stub, 6)
            await follower.until(lambda picture: len(picture.items) == 2)
            assert source.statistics().blindness == ""


@pytest.mark.parametrize("settings", [{"consul_namespace": "team"}, {"partition": "east"}])
async def test_an_empty_namespace_is_not_a_blind_token(settings: dict[str, str]) -> None:
    """Consul's own service is in the default one."""
    async with consul_stub() as stub:
        stub.answer(CATALOG, {}, index=5)
        source = source_of(stub.address, **settings)
        async with running(source) as follower:
            await follower.until_synced()
            assert source.statistics().blindness == ""


async def test_an_empty_consul_is_not_blind() -> None:
    async with consul_stub() as stub:
        source = source_of(stub.address, config_prefix="mesh")
        stub.answer(KV, None, status=404)
        async with running(source) as follower:
            await follower.until_synced()
            assert source.statistics().blindness == ""


async def test_a_token_that_goes_blind_loses_nothing() -> None:
    async with consul_stub() as stub:
        fill(stub)
        source = source_of(stub.address)
        async with running(source) as follower:
            await follower.until_synced()
            follower.take_events()
            stub.answer(CATALOG, {}, index=6)
            stub.answer(WEB, [], index=6)
            await told(source, BLIND)
            await unchanged(follower, 2)
            fill(stub, 7)
            await told(source, "")
            await unchanged(follower, 2)


async def test_a_service_that_nobody_sees_any_more_stays_if_the_catalog_is_blind_too() -> None:
    """Its own query may tell first, and the hold be over before the catalog's does."""
    async with consul_stub() as stub:
        fill(stub)
        source = source_of(stub.address)
        async with running(source) as follower:
            await follower.until_synced()
            follower.take_events()
            stub.replies[CATALOG] = attrs.evolve(stub.replies[CATALOG], body={})
            stub.answer(WEB, [], index=6)
            await told(source, BLIND)
            await unchanged(follower, 2)


async def test_a_service_without_instances_still_goes_after_its_hold() -> None:
    async with consul_stub() as stub:
        fill(stub)
        async with running(source_of(stub.address)) as follower:
            await follower.until_synced()
            stub.answer(WEB, [], index=6)
            await follower.until(lambda picture: not picture.items)


async def test_a_token_that_may_not_read_kv_is_told_and_costs_no_object() -> None:
    value = base64.b64encode(OBJECT.encode()).decode()
    async with consul_stub() as stub:
        fill(stub)
        stub.answer(KV, [{"Key": "mesh/VirtualService/shop/web", "Value": value}], index=5)
        source = source_of(stub.address, config_prefix="mesh")
        async with running(source) as follower:
            await follower.until_synced()
            assert len(follower.picture.items) == 3
            follower.take_events()
            stub.answer(f"{KV}/", "Permission denied", status=403)  # a key is denied, of a tree nothing is left
            stub.answer(KV, None, status=404, index=6)
            await told(source, "the token may not read mesh/ in KV: give it key:read")
            await unchanged(follower, 3)


async def test_a_token_that_may_not_read_intentions_is_told_and_costs_none(autojump_clock: MockClock) -> None:
    async with consul_stub() as stub:
        fill(stub)
        for kind in KINDS:
            stub.answer(f"/v1/config/{kind}", [], index=5)
        deny = {"SourceName": "*", "DestinationName": "web", "Action": "deny"}
        stub.answer("/v1/connect/intentions/check", {"Allowed": True})
        stub.answer(INTENTIONS, [deny], index=5)
        source = source_of(stub.address, mesh=True)
        async with running(source) as follower:
            await follower.until_synced()
            policy = ("config", "AuthorizationPolicy", "default", "consul-web")
            assert policy in follower.picture.items
            stub.answer(MATCH, "Permission denied", status=403)
            stub.answer(INTENTIONS, [], index=6)
            await told(source, "the token may not read the intentions about web: give it intentions:read")
            await trio.sleep(2)
            assert policy in follower.picture.items
            stub.answer("/v1/config/service-router", "Permission denied", status=403)
            await eventually(lambda: "Consul denies the service-router entries" in source.statistics().blindness)
            stub.answer(MATCH, {"web": []})
            await follower.until(lambda picture: policy not in picture.items)


async def test_an_object_of_users_replaces_what_is_made_of_entries_once_it_is_good(autojump_clock: MockClock) -> None:
    name = "AuthorizationPolicy/default/consul-web"
    good = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nspec: {action: DENY, rules: [{}]}"

    def value(text: str) -> list[dict[str, str]]:
        return [{"Key": f"mesh/{name}", "Value": base64.b64encode(text.encode()).decode()}]

    async with consul_stub() as stub:
        fill(stub)
        for kind in KINDS:
            stub.answer(f"/v1/config/{kind}", [], index=5)
        deny = {"SourceName": "*", "DestinationName": "web", "Action": "deny"}
        stub.answer("/v1/connect/intentions/check", {"Allowed": True})
        stub.answer(INTENTIONS, [deny], index=5)
        stub.answer(KV, value("kind: AuthorizationPolicy"), index=5)
        async with running(source_of(stub.address, mesh=True, config_prefix="mesh")) as follower:
            await follower.until_synced()
            key = ("config", *name.split("/"))

            def where(picture: Picture) -> str:
                item = picture.items[key]
                assert isinstance(item, Config)
                return item.origin.location

            assert where(follower.picture) == "consul intention/web"
            assert key in follower.picture.rejected
            stub.answer(KV, value(good), index=6)
            await follower.until(lambda picture: where(picture) == f"consul mesh/{name}" and not picture.rejected)
            stub.answer(KV, value("kind: AuthorizationPolicy"), index=7)
            await follower.until(lambda picture: key in picture.rejected)
            assert where(follower.picture) == f"consul mesh/{name}"


@pytest.mark.process
async def test_rights_of_a_real_consul_that_come_and_go(tmp_path: Path, free_ports: Ports) -> None:
    sees = 'service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }'
    async with closed_consul(tmp_path, free_ports(4)) as consul:
        await consul.register("web")
        await consul.put("mesh/VirtualService/shop/web", OBJECT)
        source = source_of(consul.address, config_prefix="mesh")
        async with running(source) as follower:
            await follower.until_synced()
            kv = "the token may not read mesh/ in KV: give it key:read"
            assert source.statistics().blindness == f"{BLIND}; {kv}"
        secret = await token_for(consul, "services", sees)
        # Consul judges a query by the rights that the token had when it was sent.
        timing = attrs.evolve(TIMING, wait_seconds=0.5)
        source = source_of(consul.address, config_prefix="mesh", agent={"token": secret}, timing=timing)
        async with running(source) as follower:
            await follower.until_synced()
            assert len(follower.picture.items) == 2
            assert source.statistics().blindness == kv
            rules = f'{sees} key_prefix "mesh/" {{ policy = "read" }}'
            policies = (await consul.ask("GET", "/v1/acl/policies")).json()
            (policy,) = (each for each in policies if each["Name"] == "services")
            where = f"/v1/acl/policy/{policy['ID']}"
            await consul.ask("PUT", where, json={"Name": "services", "Rules": rules})
            await follower.until(lambda picture: len(picture.items) == 3)
            await told(source, "")
            follower.take_events()
            await consul.ask("PUT", where, json={"Name": "services", "Rules": ""})
            await told(source, f"{BLIND}; {kv}")
            await unchanged(follower, 3)


@pytest.mark.process
async def test_a_wrong_datacenter_is_an_error_with_the_reason_and_not_an_empty_one(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with closed_consul(tmp_path, free_ports(4)) as consul:
        source = source_of(consul.address, datacenter="nowhere")
        async with running(source):
            await eventually(
                lambda: "nowhere" in source.statistics().waiting_for or "No path" in source.statistics().waiting_for
            )
            assert not source.statistics().synced
