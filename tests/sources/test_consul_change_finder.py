"""Many services and few queries: how soon a change of any of them is read, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.consul.client.api import Answer
from mesh_pilot.consul.client.blocking_query import OutageGate, run_blocking_query
from mesh_pilot.consul.client.client import ConsulError
from mesh_pilot.consul.client.query_pool import QueryPool
from mesh_pilot.consul.source import ConsulSettings
from mesh_pilot.consul.source.change_finder import ChangeFinder
from mesh_pilot.consul.source.instance import ConsulInstance, read_instance

SOON = 3.0
"""Seconds after which whoever comes or goes is known, at any size."""

Where = tuple[str, str]


@attrs.define
class Fleet:
    """A Consul of many services, in which each question takes a while, and a source that follows them.

    State: the instances of each service with their indexes and nodes' indexes, as Consul has them; as the source has
    them; and what was asked.
    """

    services: dict[str, dict[Where, int]]
    nodes: dict[str, int] = attrs.field(factory=lambda: {f"n{i}": 1 for i in range(9)})
    index: int = 1
    asked: Counter[str] = attrs.field(factory=Counter)
    seconds: dict[str, float] = attrs.field(factory=lambda: {"summary": 0.3, "nodes": 0.1, "batch": 0.02, "read": 0.01})
    refused: set[str] = attrs.field(factory=set)
    """What is answered with an error: a question's name, or a service."""
    known: dict[str, Sequence[ConsulInstance]] = attrs.field(factory=dict)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _taken: trio.Event = attrs.field(factory=trio.Event)

    async def _ask(self, what: str) -> None:
        self.asked[what] += 1
        await trio.sleep(self.seconds[what])
        if what in self.refused:
            raise ConsulError("no")

    async def summary(self) -> Answer:
        await self._ask("summary")
        rows = [
            {"Name": name, "Nodes": sorted(node for node, _ in found), "InstanceCount": len(found)}
            for name, found in self.services.items()
        ]
        return Answer(1, rows)

    async def node_indexes(self) -> Mapping[str, int]:
        await self._ask("nodes")
        return dict(self.nodes)

    async def modified_at(self, instances: Sequence[Where]) -> Sequence[int] | None:
        assert len(instances) <= 64
        await self._ask("batch")
        every = {where: index for found in self.services.values() for where, index in found.items()}
        return [every.get(where, 0) for where in instances]

    async def read(self, name: str, index: int, wait_seconds: float) -> Answer:
        while index and index == self._index_of(name):
            await self._changed.wait()
        await self._ask("read")
        if name in self.refused:
            raise ConsulError("no")
        return Answer(self._index_of(name), dict(self.services[name]))

    def _index_of(self, name: str) -> int:
        return max(self.services[name].values(), default=self.index)

    async def take(self, name: str, answer: Answer, is_lost: bool) -> None:
        assert isinstance(answer.data, dict)
        self.known[name] = [_instance(node, id, index) for (node, id), index in answer.data.items()]
        self._taken.set()
        self._taken = trio.Event()

    def put(self, name: str, id: str, node: str = "n1") -> int:
        """Register or change an instance; the index of the change."""
        self.index += 1
        self.services[name][node, id] = self.index
        return self._notify()

    def drop(self, name: str, id: str, node: str = "n1") -> int:
        self.index += 1
        del self.services[name][node, id]
        return self._notify()

    def _notify(self) -> int:
        self._changed.set()
        self._changed = trio.Event()
        return self.index

    def is_known(self, name: str) -> bool:
        """True if the source has of a service what Consul has."""
        return {(i.node, i.id): i.modified_at for i in self.known.get(name, ())} == self.services[name]

    async def until_known(self, *names: str, within_seconds: float = SOON) -> float:
        began = trio.current_time()
        with trio.fail_after(within_seconds):
            while not all(map(self.is_known, names)):
                await self._taken.wait()
        return trio.current_time() - began


def _instance(node: str, id: str, index: int) -> ConsulInstance:
    return read_instance({"Node": {"Node": node}, "Service": {"ID": id, "ModifyIndex": index}})


@asynccontextmanager
async def followed(count: int = 400, **settings: Any) -> AsyncIterator[tuple[Fleet, ChangeFinder]]:
    fleet = Fleet({f"s-{i}": {("n1", f"{i}-{n}"): 1 for n in range(2)} for i in range(count)})
    settings_ = ConsulSettings(max_queries=24, **settings)
    pool = QueryPool(settings_)
    gate = OutageGate("consul", fleet.summary, Backoff(0.1, 0.1))
    finder = ChangeFinder(pool, fleet, lambda: fleet.known, settings_.timing)

    async def follow(name: str) -> None:
        with pool.service(name) as service:
            query, take = partial(fleet.read, name), partial(fleet.take, name)
            await run_blocking_query(name, query, take, gate, pool, settings_, service)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run)
        nursery.start_soon(finder.run)
        first = list(fleet.services)[: pool.slots]  # those take the slots, not the ones that the tests change
        for name in first:
            nursery.start_soon(follow, name)
        await fleet.until_known(*first)
        for name in fleet.services:
            if name not in first:
                nursery.start_soon(follow, name)
        await trio.sleep(20)
        assert all(map(fleet.is_known, fleet.services))
        fleet.asked.clear()
        yield fleet, finder
        nursery.cancel_scope.cancel()


async def test_whoever_comes_or_goes_is_known_soon_however_often_that_happens(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        for number in range(60):
            name = f"s-{399 - number // 2}"
            index = fleet.drop(name, "new") if number % 2 else fleet.put(name, "new")
            finder.note_catalog(index)
            waited = await fleet.until_known(name)
            await trio.sleep(2 - waited if waited < 2 else 0)
        assert finder.rounds == 0
        assert fleet.asked["read"] <= 4 * 60, "those that changed are read, and not the rest"
        assert fleet.asked["summary"] <= 2 * 60


async def test_nothing_is_asked_while_nothing_happens(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, _):
        await trio.sleep(300)
        assert not fleet.asked


async def test_a_round_of_all_services_and_the_rest_after_it_hold_up_nothing(autojump_clock: MockClock) -> None:
    """What is looked for after Consul has lost its data, or while something does not show where it has changed."""
    async with followed() as (fleet, finder):
        fleet.seconds["read"] = 0.2
        finder.note_anything()
        for number in range(60):
            name = f"s-{399 - number}"
            finder.note_catalog(fleet.put(name, "new"))
            await fleet.until_known(name)
        assert 1 <= finder.rounds <= 2
        assert fleet.asked["read"] <= 400 + 4 * 60


@pytest.mark.parametrize("change", ["moved", "replaced on its node"])
async def test_what_no_summary_shows_is_known_soon_and_alone_is_read(change: str, autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        index = fleet.put("s-399", "399-1")
        if change != "moved":
            fleet.drop("s-399", "399-1")
            index = fleet.put("s-399", "other")
        finder.note_catalog(index)
        await fleet.until_known("s-399")
        await trio.sleep(20)
        assert (finder.rounds, fleet.asked["read"]) == (0, 1)
        assert fleet.asked["batch"] <= 2 * (800 // 64 + 1)


async def test_a_change_that_hides_behind_others_is_found_all_the_same(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        fleet.put("s-399", "399-1")
        finder.note_catalog(fleet.put("s-398", "new"))
        await fleet.until_known("s-398")
        for number in range(4):
            finder.note_catalog(fleet.put(f"s-{390 + number}", "new"))
            await trio.sleep(1)
        await fleet.until_known("s-399")
        assert finder.rounds == 0


async def test_a_node_that_changes_costs_the_services_on_it(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        finder.note_catalog(fleet.put("s-399", "far", node="n7"))
        finder.note_catalog(fleet.put("s-398", "far", node="n7"))
        await fleet.until_known("s-398", "s-399")
        await trio.sleep(20)
        fleet.asked.clear()
        fleet.nodes["n7"] = 99
        finder.note_nodes()
        await trio.sleep(20)
        assert (fleet.asked["read"], fleet.asked["nodes"], finder.rounds) == (2, 1, 0)


async def test_without_summaries_every_service_is_read(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        fleet.refused = {"summary"}
        for number in range(3):
            finder.note_catalog(fleet.put(f"s-{399 - number}", "new"))
        await fleet.until_known("s-399", "s-398", "s-397", within_seconds=10)
        assert finder.rounds <= 2


async def test_a_service_that_cannot_be_read_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        fleet.refused = {"s-399"}
        for name in ("s-399", "s-398"):
            finder.note_catalog(fleet.put(name, "new"))
        await fleet.until_known("s-398")
        for number in range(5):
            finder.note_catalog(fleet.put(f"s-{390 - number}", "new"))
            await fleet.until_known(f"s-{390 - number}")


async def test_a_node_that_changes_long_after_a_riddle_costs_no_round(autojump_clock: MockClock) -> None:
    async with followed() as (fleet, finder):
        finder.note_catalog(fleet.index)  # something that is not followed
        await trio.sleep(60)
        assert finder.rounds == 1
        fleet.nodes["n8"] = 99
        finder.note_nodes()
        await trio.sleep(60)
        assert finder.rounds == 1


async def test_who_comes_is_known_soon_while_most_services_have_changed(autojump_clock: MockClock) -> None:
    """As where a Consul that was started again reads its data bit by bit."""
    async with followed() as (fleet, finder):
        fleet.seconds["read"] = 0.1
        for number in range(100, 400):
            index = fleet.put(f"s-{number}", "new")
        finder.note_catalog(index)
        await trio.sleep(1)
        assert fleet.asked["summary"] == 1
        finder.note_catalog(fleet.put("s-50", "new"))
        await fleet.until_known("s-50")
        assert not all(map(fleet.is_known, fleet.services))
        await fleet.until_known(*fleet.services, within_seconds=30)
