"""Services imported from a cluster peer, and the services for which the peer takes over, out of Consul's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.mesh import ConsulMesh, MeshSettings
from mesh_pilot.consul.mesh.entries import read_entry
from mesh_pilot.consul.mesh.failover import takeovers
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings, ConsulSource
from mesh_pilot.model.events import Endpoints
from mesh_pilot.model.service import Endpoint, Locality, Service
from tests.sources.conformance import Follower, running
from tests.support.consul_stub import ConsulStub, consul_stub
from tests.support.envoy import eventually

TIMING = ConsulTiming(
    retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=20.0, pace_seconds=0.02, grace_seconds=5.0
)
PEERING, WEB, DB = "/v1/peering/west", "/v1/health/service/web", "/v1/health/service/db"
RESOLVERS, GROUPS = "/v1/config/service-resolver", "/v1/config/sameness-group"
HOST = "web.service.west.peer.consul"


def entry(address: str, name: str = "web") -> dict[str, Any]:
    """An instance as a datacenter of the same name as ours has exported it."""
    return {
        "Node": {"Node": "n", "Address": "10.9.9.9", "Datacenter": "dc1", "PeerName": "west"},
        "Service": {"ID": f"{name}-{address}", "Service": name, "Address": address, "Port": 80, "PeerName": "west"},
        "Checks": [],
    }


def peering(*services: str, state: str = "ACTIVE") -> dict[str, Any]:
    return {"Name": "west", "State": state, "StreamStatus": {"ImportedServices": list(services)}}


@asynccontextmanager
async def following(stub: ConsulStub, **settings: Any) -> AsyncIterator[tuple[ConsulSource, Follower]]:
    """The source of a peer that has exported one instance of web."""
    stub.answer(PEERING, peering("web"))
    stub.answer(WEB, [entry("10.1.0.1")], index=5)
    for path in (RESOLVERS, GROUPS):
        stub.replies.get(path) or stub.answer(path, [], index=5)
    own = ConsulSettings(agent=Agent(stub.address), peers=("west",), timing=TIMING, **settings)
    _, source = ConsulRegistry((own,)).sources()
    async with running(source) as follower:
        await follower.until_synced()
        follower.take_events()
        yield source, follower


def endpoints(follower: Follower, host: str = HOST) -> list[Endpoint]:
    item = follower.picture.items.get(("endpoints", host, "default"))
    return list(item.endpoints) if isinstance(item, Endpoints) else []


def addresses(follower: Follower, host: str = HOST) -> list[str]:
    return [each.address for each in endpoints(follower, host)]


async def test_imported_services_have_the_names_of_consuls_dns_and_the_peer_for_a_cluster() -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        assert source.name == "consul-peer-west"
        (found,) = endpoints(follower)
        assert (found.address, found.locality, found.cluster_id) == ("10.1.0.1", Locality("west"), "west")
        virtual = follower.picture.items["service", "web.virtual.west.consul", "default"]
        assert isinstance(virtual, Service)
        assert virtual.external_name == HOST
        assert all(asked.parameters["peer"] == "west" for asked in stub.asked if asked.path == WEB)
        assert {asked.path for asked in stub.asked} == {PEERING, WEB}, "what is its own the datacenter's source reads"
        assert not source.statistics().blindness
        assert " peer=west " in source.place


async def test_services_that_are_exported_later_are_noticed(autojump_clock: MockClock) -> None:
    async with consul_stub() as stub, following(stub) as (_, follower):
        stub.answer(DB, [entry("10.1.0.2", "db")])
        # The index of a peering does not move when it imports something.
        stub.answer(PEERING, peering("web", "default/default/db", "other/web"))
        await follower.until(lambda _: addresses(follower, "db.service.west.peer.consul") == ["10.1.0.2"])


async def test_what_is_no_longer_exported_goes_after_a_while(autojump_clock: MockClock) -> None:
    async with consul_stub() as stub, following(stub) as (_, follower):
        began = trio.current_time()
        stub.answer(WEB, [], index=6)
        stub.answer(PEERING, peering())
        await follower.until(lambda picture: ("service", HOST, "default") not in picture.items)
        assert trio.current_time() - began >= TIMING.hold_seconds


@pytest.mark.parametrize("state", ["TERMINATED", "DELETING", "FAILING", "", None])
async def test_a_peering_that_ends_keeps_what_was_imported_and_is_told(
    autojump_clock: MockClock, state: str | None
) -> None:
    """Consul deletes what it has imported, node by node, and last of all the peering."""
    async with consul_stub() as stub, following(stub) as (source, follower):
        stub.answer(WEB, [entry("10.1.0.1"), entry("10.1.0.2")], index=6)
        await follower.until(lambda _: addresses(follower) == ["10.1.0.1", "10.1.0.2"])
        if state is None:
            stub.answer(PEERING, "Peering not found", status=404)
        else:
            stub.answer(PEERING, peering(state=state))
        for index, left in enumerate(([entry("10.1.0.1")], []), start=7):
            stub.answer(WEB, left, index=index)
            await trio.sleep(100)
            assert addresses(follower) == ["10.1.0.1", "10.1.0.2"]
        said = source.statistics().blindness
        assert said.endswith("; what was imported before is kept")
        assert (state or ("no peering 'west'" if state is None else "in no state")) in said
        # It is established again: what is missing then is gone.
        stub.answer(PEERING, peering("web"))
        stub.answer(WEB, [entry("10.1.0.2")], index=20)
        await follower.until(lambda _: addresses(follower) == ["10.1.0.2"])
        await eventually(lambda: not source.statistics().blindness)


async def test_a_token_that_may_not_read_the_peering_is_told_and_removes_nothing(autojump_clock: MockClock) -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        stub.answer(PEERING, "Permission denied", status=403)
        stub.answer(WEB, [], index=6)
        await trio.sleep(100)
        assert addresses(follower) == ["10.1.0.1"]
        assert "give it peering:read" in source.statistics().blindness


async def test_a_peering_that_is_not_there_yet_is_followed_once_it_is(autojump_clock: MockClock) -> None:
    async with consul_stub() as stub:
        settings = ConsulSettings(agent=Agent(stub.address), timing=TIMING).for_peer("west")
        source = ConsulSource("consul-peer-west", settings)
        async with running(source) as follower:
            await follower.until_synced()
            assert "Consul has no peering 'west': establish it, or" in source.statistics().blindness
            stub.answer(WEB, [entry("10.1.0.1")])
            stub.answer(PEERING, peering("web"))
            await follower.until(lambda _: addresses(follower) == ["10.1.0.1"])


@pytest.mark.parametrize(
    "said", [[], "what?", {"State": 7, "StreamStatus": {"ImportedServices": [1, None]}}, {"StreamStatus": []}]
)
async def test_an_odd_peering_removes_nothing(autojump_clock: MockClock, said: object) -> None:
    async with consul_stub() as stub, following(stub) as (source, follower):
        stub.answer(PEERING, said)
        stub.answer(WEB, [], index=6)
        await trio.sleep(100)
        assert addresses(follower) == ["10.1.0.1"]
        assert source.statistics().blindness or source.statistics().trouble


# -- who takes over


def resolver(name: str, **rule: Any) -> dict[str, Any]:
    return {"Kind": "service-resolver", "Name": name, "Failover": {"*": rule}}


def group(*members: Mapping[str, str], **more: Any) -> dict[str, Any]:
    return {"Kind": "sameness-group", "Name": "same", "Members": list(members), **more}


async def test_a_peer_takes_over_for_the_services_whose_resolvers_say_so() -> None:
    own = "web.service.consul"
    async with consul_stub() as stub, following(stub, mesh=True) as (_, follower):
        assert not endpoints(follower, own)
        stub.answer(RESOLVERS, [resolver("web", Targets=[{"Peer": "east"}, {"Peer": "west"}])], index=6)
        await follower.until(lambda _: addresses(follower, own) == ["10.1.0.1"])
        assert endpoints(follower, own)[0].failover_rank == 2
        assert endpoints(follower)[0].failover_rank == 0
        stub.answer(RESOLVERS, [resolver("shop", Targets=[{"Peer": "west", "Service": "web"}])], index=7)
        await follower.until(lambda _: addresses(follower, "shop.service.consul") == ["10.1.0.1"])
        await follower.until(lambda picture: ("service", own, "default") not in picture.items)
        stub.answer(WEB, [entry("10.1.0.7")], index=6)
        await follower.until(lambda _: addresses(follower, "shop.service.consul") == ["10.1.0.7"])


def ranks(peer: str, *entries: Mapping[str, Any], services: str = "web db") -> dict[str, list[tuple[str, int]]]:
    read: dict[str, dict[str, Any]] = {"service-resolver": {}, "sameness-group": {}}
    for each in entries:
        read[each["Kind"]][each["Name"]] = read_entry(each["Kind"], each)
    found = takeovers(peer, "default", read["service-resolver"], read["sameness-group"])
    return {name: list(found.of(name)) for name in services.split() if found.of(name)}


WEST, EAST, LOCAL = {"Peer": "west"}, {"Peer": "east"}, {"Partition": "default"}


def test_the_members_of_a_sameness_group_take_over_in_its_order() -> None:
    """By the documents of Consul Enterprise: the free Consul has no sameness groups."""
    same, failover = group(LOCAL, EAST, WEST), resolver("web", SamenessGroup="same")
    assert ranks("east", same, failover) == {"web": [("web", 1)]}
    assert ranks("west", same, failover) == {"web": [("web", 2)]}
    assert ranks("west", failover) == {}, "a group that is not there"


def test_the_default_group_is_for_services_without_a_resolver() -> None:
    """By the documents of Consul Enterprise."""
    first = group(EAST, WEST, DefaultForFailover=True, IncludeLocal=True)
    assert ranks("east", first) == {"web": [("web", 1)], "db": [("db", 1)]}
    assert ranks("west", first, resolver("web", Datacenters=["dc2"])) == {"db": [("db", 2)]}
    between = group(EAST, LOCAL, WEST, DefaultForFailover=True)
    assert (ranks("east", between, services="web"), ranks("west", between, services="web")) == (
        {"web": [("web", -1)]},
        {"web": [("web", 1)]},
    )
    without = group(EAST, WEST, DefaultForFailover=True)
    assert ranks("west", without, services="web") == {"web": [("web", -1)]}
    assert ranks("west", group(EAST, WEST)) == {}
    assert ranks("north", first) == {}


def problems(*entries: Mapping[str, Any], peers: tuple[str, ...] = ("west",), merged: bool = False) -> list[str]:
    mesh = ConsulMesh(MeshSettings(datacenter="dc1", peers=peers, merged=merged))
    for each in entries:
        mesh.put_entry(each["Kind"], each["Name"], each)
    return sorted(str(p) for part in mesh.flush() for change in part for p in change.problems)


def test_a_failover_that_can_be_carried_out_is_no_problem() -> None:
    assert problems(resolver("web", Targets=[WEST])) == []
    assert problems(resolver("web", Targets=[{**WEST, "Service": "old-web"}])) == []
    assert problems(resolver("web", Targets=[{"Datacenter": "dc2"}, WEST]), merged=True) == []
    assert problems(resolver("web", SamenessGroup="same"), group(LOCAL, WEST)) == []


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([resolver("web", Targets=[EAST])], "Failover[*]: needs --consul-peer east: without it, what the peer exports"),
        ([resolver("web", Targets=[WEST, {"Datacenter": "dc2"}])], "datacenter 'dc2' takes over before peer 'west'"),
        ([resolver("web", SamenessGroup="none")], "SamenessGroup: sameness group 'none' does not exist; it has"),
        ([group(LOCAL, EAST)], "Members[1].Peer: needs --consul-peer east"),
        ([group(LOCAL, {"Partition": "other"})], "Members[1].Partition: other partitions are not read"),
        (
            [group(WEST, DefaultForFailover=True)],
            "Members: partition 'default' is not a member; its own",
        ),
        ([group({**WEST, **LOCAL})], "Members[0]: is a Peer or a Partition; it is passed over"),
        ([group({})], "Members[0]: is a Peer or a Partition; it is passed over"),
        ([group(WEST, Unheard=True)], "Unheard: has no counterpart"),
        ([{**group(), "Members": "west"}], "Members: expected a list"),
        ([resolver("web", Targets=[{**WEST, "ServiceSubset": "v2"}])], "failover to another service or subset"),
        ([resolver("web", Targets=[{**WEST, "Namespace": "other"}])], "failover to another service or subset"),
        ([resolver("web", Targets="west")], "Targets: expected a list"),
    ],
)
def test_what_has_no_effect_is_told(entries: list[Mapping[str, Any]], reason: str) -> None:
    assert any(reason in found for found in problems(*entries, merged=True)), problems(*entries, merged=True)


def test_a_redirect_to_a_peer_leads_to_what_it_exports() -> None:
    mesh = ConsulMesh(MeshSettings(datacenter="dc1", peers=("west",)))
    mesh.put_entry("service-resolver", "web", {"Redirect": {"Peer": "west", "Service": "shop"}})
    unread = {"Kind": "service-resolver", "Name": "web", "Redirect": {"Peer": "east"}}
    assert problems(unread) == [
        "service web: a redirect to peer 'east' needs --consul-peer east; its requests go to all its instances"
    ]
    (made,) = [o for part in mesh.flush() for change in part for o in change.objects]
    (route,) = made.spec["http"]
    assert [each["destination"] for each in route["route"]] == [{"host": "shop.service.west.peer.consul"}]
