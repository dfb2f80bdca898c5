"""Host names of gateways between networks: resolved, and resolved again, while they are wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.events import Event, ResolvedHost
from mesh_pilot.net.fetching import FetchError
from mesh_pilot.sources.gateway_hosts.source import REFRESH_SECONDS, GatewayHosts, resolve
from mesh_pilot.world import World

LB = "lb.example.com"


class Names:
    """Name servers, and what is wanted of them."""

    def __init__(self) -> None:
        self.wanted = frozenset({LB})
        self.complete = True
        self.answers: dict[str, tuple[str, ...]] = {LB: ("198.51.100.2",)}
        self.asked = 0

    def wanted_hosts(self) -> frozenset[str]:
        return self.wanted

    def is_complete(self) -> bool:
        return self.complete

    async def resolve(self, host: str) -> tuple[str, ...]:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if host not in self.answers:
            raise FetchError("Name or service not known")
        return self.answers[host]


class Bench:
    def __init__(self, names: Names, hosts: GatewayHosts) -> None:
        self.names, self.hosts, self.world = names, hosts, World()
        self.world.expect(hosts.name)

    async def send(self, event: Event) -> None:
        self.world.apply([event])

    async def looks(self) -> tuple[str, ...]:
        self.hosts.revised([("service", "a", "b")])
        await wait_all_tasks_blocked()
        return self.world.host_addresses.peek(LB)


@asynccontextmanager
async def bench(seed: tuple[ResolvedHost, ...] = ()) -> AsyncIterator[Bench]:
    names = Names()
    hosts = GatewayHosts(names, resolve=names.resolve)
    hosts.seed(seed)
    at = Bench(names, hosts)
    async with trio.open_nursery() as nursery:
        await nursery.start(hosts.run, at)
        await wait_all_tasks_blocked()
        yield at
        nursery.cancel_scope.cancel()


async def test_names_are_resolved_again_and_keep_their_last_addresses(autojump_clock: MockClock) -> None:
    async with bench() as at:
        assert await at.looks() == ("198.51.100.2",)
        assert not at.world.unsynced()
        at.names.answers[LB] = ("198.51.100.3", "198.51.100.4")
        await trio.sleep(REFRESH_SECONDS + 1)
        assert await at.looks() == ("198.51.100.3", "198.51.100.4")
        at.names.answers.clear()
        await trio.sleep(REFRESH_SECONDS * 3)
        assert await at.looks() == ("198.51.100.3", "198.51.100.4")
        assert "not known" in at.hosts.statistics().trouble
        at.names.wanted = frozenset()
        assert await at.looks() == ()
        asked = at.names.asked
        await trio.sleep(REFRESH_SECONDS * 3)
        assert at.names.asked == asked


async def test_what_may_change_the_demand_is_looked_at(autojump_clock: MockClock) -> None:
    async with bench() as at:
        at.names.wanted = frozenset()
        at.hosts.revised([("endpoints", "a", "b"), ("config", "VirtualService", "a", "b")])
        await wait_all_tasks_blocked()
        assert at.world.host_addresses.peek(LB)
        at.hosts.revised([("config", "ServiceEntry", "a", "b")])  # a ServiceEntry with the host has its endpoints
        await wait_all_tasks_blocked()
        assert not at.world.host_addresses.peek(LB)


async def test_a_name_that_does_not_resolve_holds_up_nothing(autojump_clock: MockClock) -> None:
    async with bench() as at:
        at.names.wanted = frozenset({LB, "gone.example.com"})
        await at.looks()
        assert not at.world.unsynced()
        assert at.hosts.statistics().rejected == 1


async def test_addresses_of_an_earlier_run_are_in_force_until_names_are_known(autojump_clock: MockClock) -> None:
    kept = ResolvedHost(LB, ("198.51.100.9",)), ResolvedHost("old.example.com", ("198.51.100.8",))
    async with bench(kept) as at:
        assert at.world.host_addresses.peek("old.example.com") == ()
        assert await at.looks() == ("198.51.100.2",)


async def test_the_systems_resolver_is_asked() -> None:
    assert "127.0.0.1" in await resolve("localhost")
